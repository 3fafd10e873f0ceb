"""What the commands of `perdure store` share: which store and with which key, checkpoints as people name them, and how they are shown."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from perdure import errors
from perdure.base import settings
from perdure.cli import console
from perdure.model.checkpoint import NAME, CheckpointId, Manifest
from perdure.store.backends import address
from perdure.store.owners import Owner
from perdure.store.repository import Repository
from perdure.supervisor import folders, place

StoreOption = Annotated[
    str | None, Parameter(name="--store", help="Store: a folder, or s3://BUCKET/PREFIX. Default: setting store, else the state folder's.")
]
KeyFileOption = Annotated[Path | None, Parameter(name="--key-file", help="Key file of an encrypted store. Default: setting key-file.")]
CheckpointArgument = Annotated[str, Parameter(help="Checkpoint, such as train-7b@3.12; a workload's name alone means its newest.")]


@contextlib.contextmanager
def opened(
    common: console.Common, store: str | None, key_file: Path | None, *, create: bool = False
) -> Iterator[tuple[Repository, place.Place]]:
    """Open the store that was asked for while the block runs; with `create`, a missing one is made. Yields it and where it is.

    Raises `errors.StoreMissing`, `errors.StoreKeyWrong` and the other errors of a store, `errors.SettingError`.
    """
    found = locate(console.load_settings(common, store=store, key_file=None if key_file is None else str(key_file)))
    with place.opened(found, create=create) as repository:
        yield repository, found


def locate(values: dict[str, settings.Value]) -> place.Place:
    """Return where the store is that `values` name; by default in the state folder."""
    found = folders_of(values)
    url = values["store"].value or str(found.state / "store")
    key_file = values["key-file"].value
    return place.Place(
        url=address.located(url),
        key_file=os.path.abspath(os.path.expanduser(key_file)) if key_file else None,
        cache=str(found.cache),
        threads=console.threads(values) or os.cpu_count() or 1,
    )


def folders_of(values: dict[str, settings.Value]) -> folders.Folders:
    """Return the folders of state that `values` name."""
    return folders.choose(state=values["state"].value, run=values["run-dir"].value, environ=os.environ, uid=os.geteuid())


def choose(repository: Repository, text: str) -> CheckpointId:
    """Return the checkpoint that `text` names: ``NAME@EPOCH.NUMBER``, or ``NAME`` for its newest.

    Raises `errors.WorkloadMissing` when there is none, `errors.UsageError`.
    """
    if not re.fullmatch(NAME.pattern, text):
        return CheckpointId.parse(text)
    there = repository.checkpoints(text)
    if not there:
        raise errors.WorkloadMissing(f"the store has no checkpoint of {text}", hint="perdure store ls lists what it has")
    return there[-1]


def time_of(at_ns: int) -> str:
    """Return nanoseconds since 1970 as a time in UTC; one beyond all calendars as it is."""
    try:
        found = datetime.datetime.fromtimestamp(at_ns / 1e9, datetime.UTC)
    except (OverflowError, ValueError):
        return f"{at_ns} ns"
    return found.isoformat(timespec="seconds").replace("+00:00", "Z")


def document(manifest: Manifest, *, pinned: bool) -> dict[str, Any]:
    """Return a checkpoint as plain data, with its id as people write it, and its sums."""
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    plain |= {
        "id": str(manifest.id),
        "workload": manifest.id.workload,
        "pinned": pinned,
        "created": time_of(manifest.created_ns),
        "logical_bytes": manifest.logical_bytes,
        "stored_bytes": manifest.stored_bytes,
        "new_bytes": manifest.new_bytes,
    }
    return plain


class Waits:
    """Says once whom a lock waits for."""

    def __init__(self, common: console.Common) -> None:
        self._common = common
        self._told: Owner | None = None
        self._is_told = False

    def __call__(self, owner: Owner | None, _waited_s: float) -> None:
        """Take what `locks` tells."""
        if not self._is_told or owner != self._told:
            self._is_told, self._told = True, owner
            who = str(owner) if owner is not None else "a lock that cannot be read"
            console.note(self._common, f"waiting for {console.printable(who)}")
