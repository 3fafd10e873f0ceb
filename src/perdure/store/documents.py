"""Small records in a store, as JSON inside the repository's seal. Called by `locks`, `lives` and `pins`."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from perdure import errors
from perdure.store.repository import Repository

_Record = TypeVar("_Record", bound=msgspec.Struct)


def write(repository: Repository, key: str, record: msgspec.Struct, *, replace: bool) -> None:
    """Write `record` as the object `key`. Raises `errors.ObjectExists` when it is there already and `replace` is false."""
    repository.write_record(key, msgspec.json.encode(record), replace=replace)


def read(repository: Repository, key: str, kind: type[_Record]) -> _Record:
    """Read the object `key` as a `kind`. Raises `errors.ObjectMissing`, `errors.StoreCorrupt`, `errors.StoreFormat`."""
    content = repository.read_record(key)
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.StoreCorrupt(
            f"{key} does not hold what it should: {error}", hint="see what is damaged: perdure store verify", object_key=key
        ) from error
