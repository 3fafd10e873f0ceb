"""Where the content of one file lies: extents, in the order of the file. Called by the writer, the reader and `manifests`.

An extent is `count` blocks that lie one after the other in a pack, from a slot on, or a hole (`HOLE`: zeros). Held in flat arrays: twelve
bytes an extent, however many there are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

HOLE = 0
"""Pack number of a hole. Packs are numbered from 1 in the order of the manifest's table."""

MAX_COUNT = 2**32 - 1


class Extents:
    """The extents of one file: parallel arrays of u32 (`packs`, `firsts`, `counts`)."""

    __slots__ = ("_starts", "blocks", "counts", "firsts", "packs")

    def __init__(self) -> None:
        self.packs = array("I")
        self.firsts = array("I")
        self.counts = array("I")
        self.blocks = 0
        self._starts: array[int] | None = None

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (pack, first slot, count); a hole has first slot 0."""
        return iter(zip(self.packs, self.firsts, self.counts, strict=True))

    def append(self, pack: int, first: int, count: int) -> None:
        """Add `count` blocks; they become part of the last extent where they follow it."""
        self.blocks += count
        self._starts = None
        if self.counts and self.packs[-1] == pack:
            former = self.counts[-1]
            if former + count <= MAX_COUNT and (pack == HOLE or self.firsts[-1] + former == first):
                self.counts[-1] = former + count
                return
        self.packs.append(pack)
        self.firsts.append(0 if pack == HOLE else first)
        self.counts.append(count)

    def part(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield what covers `count` blocks from block `start` of the file on, cut to them. The file must be that long."""
        if self._starts is None:
            self._starts = array("Q", accumulate(self.counts, initial=0))
        at = bisect_right(self._starts, start) - 1
        skip = start - self._starts[at] if count else 0
        while count:
            pack, first = self.packs[at], self.firsts[at]
            taken = min(self.counts[at] - skip, count)
            yield pack, (HOLE if pack == HOLE else first + skip), taken
            count -= taken
            skip = 0
            at += 1
