"""Read a TOML file into frozen records, so that a mistake is answered with its key, what is wrong there, and what to write.

Called by `plan`. Records describe their keys with `msgspec.Meta(description=…)`; the words of the errors come from there.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from perdure import errors
from perdure.base import linkless

LONGEST_BYTES = 1 << 20
"""A plan is a page; a mebibyte is no plan."""

_Record = TypeVar("_Record", bound=msgspec.Struct)
_WHERE = re.compile(r"(?P<what>.*) - at `(?P<path>(?:key in )?\$.*)`\Z", re.DOTALL)


def read(path: Path) -> bytes:
    """Return the content of the regular file `path`; its folder may be reached through links, the file itself is none.

    Raises `errors.InputMissing`, `errors.LinkInPath`, `errors.InputDenied`, and `errors.InputFormat` when it is too large.
    """
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise errors.InputMissing(f"{path} is not there: {error.strerror}") from error
    try:
        with open(linkless.open_regular(folder, path.name), "rb") as handle:
            content = handle.read(LONGEST_BYTES + 1)
    finally:
        os.close(folder)
    if len(content) > LONGEST_BYTES:
        raise errors.InputFormat(f"{path} is larger than {LONGEST_BYTES} bytes: it is no plan")
    return content


def decode(content: bytes, kind: type[_Record], *, source: str) -> _Record:
    """Read a record from TOML. Raises `errors.InputFormat`, which names `source`, the key, what is wrong and what to write."""
    try:
        document = msgspec.toml.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.InputFormat(f"{source}: not valid TOML: {error}", hint="see https://toml.io for how it is written") from error
    types = _types(kind)
    for where, key, known in _unknown(document, inspect.type_info(kind), ""):
        nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        place = f"[{where}]" if where else "the file"
        hint = f"did you mean {nearest[0]}?" if nearest else f"{place} knows: {', '.join(known)}"
        raise errors.InputFormat(f"{source}: {_join(where, key)}: unknown key", hint=hint)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _explained(error, types, source) from error


def _explained(error: msgspec.ValidationError, types: dict[str, str], source: str) -> errors.InputFormat:
    match = _WHERE.fullmatch(str(error))
    what, path = (match["what"], match["path"]) if match else (str(error), "$")
    # A key that the document chose itself (a version's name) is shown by msgspec as [...].
    key = path.removeprefix("key in ").removeprefix("$").removeprefix(".").replace("[...]", ".*")
    missing = re.fullmatch(r"Object missing required field `(.*)`", what)
    if missing:
        key, what = _join(key, missing[1]), "it is not there and is needed"
    elif what.startswith("Expected"):
        what = what.replace("`", "")
    plain = re.sub(r"\[\d+\]|\.\*", "", key)
    description = types.get(plain, "")
    hint = f"{plain.rpartition('.')[2]}: {description}" if description else "perdure eval init writes a commented plan to start from"
    return errors.InputFormat(f"{source}: {key or 'the file'}: {what}", hint=hint)


def describe(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the description of every described key of the record, by its dotted path, in the order of the fields."""
    return _types(kind)


def _types(kind: type[msgspec.Struct]) -> dict[str, str]:
    found: dict[str, str] = {}

    def walk(info: inspect.Type, path: str) -> None:
        for record in _records(info):
            for field in record.fields:
                below = _join(path, field.encode_name)
                text = _description(field.type)
                if text:
                    found.setdefault(below, text)
                walk(field.type, below)

    walk(inspect.type_info(kind), "")
    return found


def _description(info: inspect.Type) -> str:
    if isinstance(info, inspect.Metadata):
        return str((info.extra_json_schema or {}).get("description", "")) or _description(info.type)
    return ""


def _records(info: inspect.Type) -> Iterator[inspect.StructType]:
    """Yield the records that a value of this type may be or, in an array, hold."""
    match info:
        case inspect.StructType():
            yield info
        case inspect.Metadata():
            yield from _records(info.type)
        case inspect.UnionType():
            for member in info.types:
                yield from _records(member)
        case inspect.VarTupleType():
            yield from _records(info.item_type)


def _unknown(value: Any, info: inspect.Type, where: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield (table, key, keys known there) for each key of `value` that no record has."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(item, info, f"{where}[{index}]")
        return
    if not isinstance(value, dict):
        return
    for record in _records(info):
        fields = {field.encode_name: field for field in record.fields}
        for key, below in value.items():
            if key not in fields:
                yield where, key, tuple(fields)
            else:
                yield from _unknown(below, fields[key].type, _join(where, key))


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
