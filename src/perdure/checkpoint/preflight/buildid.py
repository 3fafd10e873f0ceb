"""The build id of an ELF file: what tells one build of a program or library from another. Called by `mapped` and `restore`.

Files are whatever a workload has mapped: lengths and offsets in them are believed only within bounds.
Source of the format: System V ABI, chapters 4 and 5 (ELF header, program header, note section).
"""

from __future__ import annotations

import os
import stat
import struct

_MAGIC = b"\x7fELF"
_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_MOST_HEADERS = 512
"""Program headers that are looked at; libraries have about ten."""

_MOST_NOTE_BYTES = 64 << 10
_MOST_ID_BYTES = 64


def of_path(path: str) -> str | None:
    """Return the build id of the ELF file at `path`, hexadecimal; None when it has none, is no ELF file, or cannot be read."""
    try:
        # A path may lead to anything by now: a FIFO must not be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    try:
        return of(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def of(descriptor: int) -> str | None:
    """Return the build id of the ELF file that `descriptor` has open; None when there is none. Raises OSError."""
    there = os.fstat(descriptor)
    if not stat.S_ISREG(there.st_mode):
        return None
    head = os.pread(descriptor, 64, 0)
    table = _program_headers(head)
    if table is None:
        return None
    offset, entry_bytes, count, order, is_64 = table
    entries = os.pread(descriptor, entry_bytes * min(count, _MOST_HEADERS), offset)
    for at in range(0, len(entries) - entry_bytes + 1, entry_bytes):
        note = _note_segment(entries[at : at + entry_bytes], order, is_64=is_64)
        if note is not None:
            found = parse_notes(os.pread(descriptor, min(note[1], _MOST_NOTE_BYTES), note[0]), order)
            if found is not None:
                return found
    return None


def _program_headers(head: bytes) -> tuple[int, int, int, str, bool] | None:
    """Return offset, entry size, count, byte order and width of the program headers; None for what is no ELF file."""
    if len(head) < 52 or head[:4] != _MAGIC or head[4] not in (1, 2) or head[5] not in (1, 2):
        return None
    order, is_64 = "<" if head[5] == 1 else ">", head[4] == 2
    if is_64:
        if len(head) < 64:
            return None
        offset, sizes, least = struct.unpack_from(order + "Q", head, 32)[0], struct.unpack_from(order + "HH", head, 54), 56
    else:
        offset, sizes, least = struct.unpack_from(order + "I", head, 28)[0], struct.unpack_from(order + "HH", head, 42), 32
    entry_bytes, count = sizes
    if not least <= entry_bytes <= 4096 or offset >= 1 << 62:
        return None
    return offset, entry_bytes, count, order, is_64


def _note_segment(entry: bytes, order: str, *, is_64: bool) -> tuple[int, int] | None:
    """Return offset and size of the notes that a program header describes; None when it describes something else."""
    if struct.unpack_from(order + "I", entry)[0] != _PT_NOTE:
        return None
    if is_64:
        offset, size = struct.unpack_from(order + "Q", entry, 8)[0], struct.unpack_from(order + "Q", entry, 32)[0]
    else:
        offset, size = struct.unpack_from(order + "I", entry, 4)[0], struct.unpack_from(order + "I", entry, 16)[0]
    return (offset, size) if offset < 1 << 62 else None


def parse_notes(notes: bytes, order: str) -> str | None:
    """Return the build id in the text of a note segment of byte order `order` (``<`` or ``>``), hexadecimal, or None."""
    at = 0
    while at + 12 <= len(notes):
        name_bytes, value_bytes, kind = struct.unpack_from(order + "III", notes, at)
        name_at = at + 12
        value_at = name_at + (name_bytes + 3 & ~3)
        end = value_at + value_bytes
        if end > len(notes):
            return None
        if kind == _NT_GNU_BUILD_ID and notes[name_at : name_at + name_bytes] == b"GNU\0" and 0 < value_bytes <= _MOST_ID_BYTES:
            return notes[value_at:end].hex()
        at = value_at + (value_bytes + 3 & ~3)
    return None
