"""The container of CRIU's image files: magic numbers, then entries with their length in front. Called by the other modules of this room.

Format 1.1, as CRIU 2 to 4 write it: two little-endian 32-bit numbers (one common to all images, one for the kind; the inventory and the
statistics have their own first number), then for each entry its length as 32 bits and a message. Source: criu/include/magic.h.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import files

COMMON = 0x54564319
SERVICE = 0x55105940
PAGEMAP = 0x56084025
FILES = 0x56303138
FDINFO = 0x56213732
CORE = 0x55053847
STATS = 0x57093306
PSTREE = 0x50273030

MAX_BYTES = 512 << 20
"""Largest image that is read: a page map with 30 million separate pieces. Raw pages are never read here."""

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


class Image(msgspec.Struct, frozen=True):
    """An image file: the head as it stands in the file, and the entries. Some kinds have raw data after an entry: those are not read."""

    head: bytes
    entries: tuple[bytes, ...]


def parse(text: bytes, kind: int) -> Image:
    """Return the image in `text`, which has to be of `kind` (its magic number). Raises `errors.InputFormat`."""
    if len(text) < _HEAD.size:
        raise errors.InputFormat("not a CRIU image: it is too short")
    first, second = _HEAD.unpack_from(text)
    if first not in (COMMON, SERVICE) or second != kind:
        raise errors.InputFormat(f"not a CRIU image of kind {kind:#x}: it begins with {first:#x} {second:#x}")
    found: list[bytes] = []
    at = _HEAD.size
    while at < len(text):
        if at + _LENGTH.size > len(text):
            raise errors.InputFormat("not a whole CRIU image: it ends within a length")
        (size,) = _LENGTH.unpack_from(text, at)
        at += _LENGTH.size
        if at + size > len(text):
            raise errors.InputFormat("not a whole CRIU image: it ends within an entry")
        found.append(text[at : at + size])
        at += size
    return Image(text[: _HEAD.size], tuple(found))


def assemble(head: bytes, entries: Iterable[bytes]) -> bytes:
    """Return the file that `parse` reads as `head` and `entries`."""
    return head + b"".join(_LENGTH.pack(len(entry)) + entry for entry in entries)


def content(path: Path) -> bytes:
    """Return the bytes of the image file `path`. Raises `errors.InputMissing`, and `errors.InputFormat` for no file or a huge one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise errors.InputMissing(f"cannot read the image {path.name}: {error.strerror}") from error
    with open(descriptor, "rb") as handle:
        there = os.fstat(descriptor)
        if not stat.S_ISREG(there.st_mode) or there.st_size > MAX_BYTES:
            raise errors.InputFormat(f"{path.name} is not an image that can be read: no file, or more than {MAX_BYTES} bytes")
        return handle.read(MAX_BYTES + 1)


def read(path: Path, kind: int) -> Image:
    """Return the image file `path` of `kind`. Raises `errors.InputMissing` and `errors.InputFormat`."""
    return parse(content(path), kind)


def write(path: Path, image: Image) -> None:
    """Replace the image file `path` atomically, with the permissions it has. Raises `errors.OutputError`."""
    files.write_bytes(path, assemble(image.head, image.entries), mode=stat.S_IMODE(path.stat().st_mode))
