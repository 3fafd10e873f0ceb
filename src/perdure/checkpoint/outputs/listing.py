"""The list of what was included with `--outputs`: ``outputs/index.json`` in a checkpoint. Written by `trees`; read by it and preflight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from perdure import errors
from perdure.base import files, text

INDEX = "outputs/index.json"
"""Name of the stored list of what was included."""

_MAX_INDEX_BYTES = 1 << 30
_VERSION = 1


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file, folder or link of an included tree. In the index its names are as `text.storable` makes them."""

    path: str
    kind: Literal["file", "folder", "link"]
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size_bytes: int = 0
    device: int = 0
    inode: int = 0
    stored_as: str | None = None
    target: str | None = None
    attributes: dict[str, bytes] = {}


class Index(msgspec.Struct, frozen=True):
    """What was included: `roots` as they were asked for."""

    version: int
    roots: tuple[str, ...]
    entries: tuple[Entry, ...]


def write(folder: Path, roots: tuple[str, ...], entries: tuple[Entry, ...]) -> None:
    """Write the list to `folder`/`INDEX`, privately. Raises `errors.OutputError`."""
    shown = Index(_VERSION, tuple(map(text.storable, roots)), tuple(_with(entry, text.storable) for entry in entries))
    files.write_bytes(folder / INDEX, msgspec.json.encode(shown))


def read(contents: Path) -> tuple[Entry, ...]:
    """Return what was included in the checkpoint that lies in `contents`; empty when nothing was. Raises `errors.InputFormat`."""
    try:
        with open(contents / INDEX, "rb") as handle:
            content = handle.read(_MAX_INDEX_BYTES)
    except FileNotFoundError:
        return ()
    return parse(content)


def parse(content: bytes) -> tuple[Entry, ...]:
    """Return what the text of an index lists. Raises `errors.InputFormat`."""
    try:
        index = msgspec.json.decode(content, type=Index)
    except msgspec.MsgspecError as error:
        raise errors.InputFormat("the list of included files is damaged") from error
    if index.version != _VERSION:
        raise errors.InputFormat("the list of included files is from a newer Perdure", hint="use the version that made the checkpoint")
    return tuple(_with(entry, text.original) for entry in index.entries)


def _with(entry: Entry, change: Callable[[str], str]) -> Entry:
    target = None if entry.target is None else change(entry.target)
    return msgspec.structs.replace(entry, path=change(entry.path), target=target)
