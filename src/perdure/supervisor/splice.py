"""How far a file holds what a workload wrote, with lines of others in between. Called by `handback`.

A job's output file is not the workload's alone: Perdure says a line in it now and then, and Slurm's daemon does when it ends a job. Such
lines are known by how they begin; they may stand anywhere, also in the middle of a line of the workload.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

OTHERS = (b"perdure: ", b"slurmstepd: ", b"slurmstepd-")
"""How lines of others begin."""

_LOOK_BACK_BYTES = 4096
"""A line of another may begin as what the workload wrote does: so far back its beginning is looked for."""
_LONGEST_LINE_BYTES = 1 << 16
_READ_BYTES = 1 << 18


class Match(msgspec.Struct, frozen=True):
    """How far a file agrees with what is expected in it."""

    end: int
    """Offset in the file behind what agrees."""
    done_bytes: int
    """So much of what is expected was found."""
    is_whole: bool
    """All that is expected was found."""
    at_end: bool
    """The file ends there: what is missing was lost or never written, and nothing contradicts."""


def match(descriptor: int, start: int, expected: Iterator[bytes]) -> Match:
    """Compare the file at `descriptor` from offset `start` on with `expected`. Raises OSError."""
    at, done, before = start, 0, b""
    for piece in expected:
        rest = piece
        while rest:
            there = os.pread(descriptor, len(rest), at)
            same = _common_bytes(there, rest)
            at, done = at + same, done + same
            before = (before + rest[:same])[-_LOOK_BACK_BYTES:]
            rest = rest[same:]
            if not rest:
                break
            line = _line_of_others(descriptor, at, min(len(before), at - start))
            if line is None:
                return Match(at, done, False, same == len(there) and not os.pread(descriptor, 1, at))
            # What seemed to agree was the beginning of the other's line.
            back = at - line[0]
            if back:
                rest = before[-back:] + rest
                before, done = before[:-back], done - back
            at = line[1]
    return Match(at, done, True, not os.pread(descriptor, 1, at))


def _common_bytes(one: bytes, other: bytes) -> int:
    if one == other[: len(one)]:
        return min(len(one), len(other))
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _line_of_others(descriptor: int, at: int, back: int) -> tuple[int, int] | None:
    """Return where a line of another, which `at` lies in or before, begins and ends; it begins at most `back` bytes before `at`."""
    around = os.pread(descriptor, back + max(map(len, OTHERS)), at - back)
    begin = max(around.rfind(words, 0, back + len(words)) for words in OTHERS)
    if begin < 0:
        return None
    begin += at - back
    line = os.pread(descriptor, _LONGEST_LINE_BYTES, begin)
    end = line.find(b"\n")
    behind = begin + (end + 1 if end >= 0 else len(line))
    # It ended before: what differs is not part of it.
    return (begin, behind) if behind > at else None


def others(descriptor: int, start: int, end: int) -> bytes:
    """Return the lines of others in the file from `start` to `end`, which begin as lines. Raises OSError."""
    found, rest = bytearray(), b""
    while start < end and len(found) < _LONGEST_LINE_BYTES:
        piece = os.pread(descriptor, min(_READ_BYTES, end - start), start)
        if not piece:
            break
        start += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        found += b"".join(line + b"\n" for line in lines if line.startswith(OTHERS))
        rest = rest[:_LONGEST_LINE_BYTES]
    if rest.startswith(OTHERS):
        found += rest + b"\n"
    return bytes(found)
