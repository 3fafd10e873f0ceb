"""What the checkpoint before offers: where its files' blocks lie, in packs that may be used again. Called by the writer.

Forward compaction: a pack of which the checkpoint before used less than `LEAST_USED`, and whose other content is waste for this workload,
is not used again; the blocks in it are stored anew. So old packs die with old manifests, garbage collection only deletes whole packs,
and no manifest is ever rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from perdure.model.checkpoint import BLOCK_BYTES
from perdure.store.extents import HOLE
from perdure.store.keys import BLOCK_ID_BYTES
from perdure.store.known import KnownPacks
from perdure.store.manifests import Body
from perdure.store.packs import PackRef

LEAST_USED = 0.25
"""Rewriting a pack of which three quarters died costs a third of what died: the most that compaction adds to what is written."""

TOLERATED_WASTE = 0.125
"""While all packs that are used little hold less unused blocks than this part of the used ones, they stay: a workload that shares a few
libraries with another one does not store them again."""


class Reuse:
    """The content of the checkpoint before (`body`; None: there is none), by file and block."""

    def __init__(self, body: Body | None, known: KnownPacks, pool: ThreadPoolExecutor, zero_id: bytes) -> None:
        self._files = body.files if body else ()
        self._refs: tuple[PackRef, ...] = body.packs if body else ()
        self._known = known
        self._zero = zero_id
        self._numbers: list[int] = [0] * (len(self._refs) + 1)
        if body:
            known.check(self._refs, pool)
            known.give_up(self._refs[number] for number in little_used(body))
        self._all_usable = all(known.is_usable(ref) for ref in self._refs)

    def is_usable(self, file: int, block: int, count: int) -> bool:
        """Tell whether all packs that hold these blocks may be used again."""
        return self._all_usable or all(
            pack == HOLE or self._known.is_usable(self._refs[pack - 1]) for pack, _, _ in self._files[file].part(block, count)
        )

    def extents(self, file: int, block: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield where these blocks lie, with packs numbered as in the new checkpoint. Their packs must be usable."""
        for pack, first, taken in self._files[file].part(block, count):
            number = self._numbers[pack]
            if pack != HOLE and not number:
                number = self._numbers[pack] = self._known.number(self._refs[pack - 1])
            yield number, first, taken

    def ids(self, file: int, block: int, count: int) -> bytes:
        """Return the ids of these blocks, as the packs where they lie say; 16 zeros, no block's id, where a pack cannot be used again."""
        found = []
        for pack, first, taken in self._files[file].part(block, count):
            own = self._known.ids(self._refs[pack - 1]) if pack != HOLE else None
            if own is not None:
                found.append(own[first * BLOCK_ID_BYTES : (first + taken) * BLOCK_ID_BYTES])
            else:
                found.append((self._zero if pack == HOLE else bytes(BLOCK_ID_BYTES)) * taken)
        return b"".join(found)


def little_used(body: Body) -> Sequence[int]:
    """Return the packs (from 0) that are given up after the checkpoint `body`."""
    used = [bytearray(ref.slots) for ref in body.packs]
    for file in body.files:
        for pack, first, count in file:
            if pack != HOLE:
                used[pack - 1][first : first + count] = b"\x01" * count
    counts = [marks.count(1) for marks in used]
    little = [number for number, ref in enumerate(body.packs) if counts[number] < LEAST_USED * ref.slots]
    waste_bytes = sum(_unused_bytes(body.packs[number], counts[number]) for number in little)
    return little if waste_bytes > TOLERATED_WASTE * sum(counts) * BLOCK_BYTES else []


def _unused_bytes(ref: PackRef, used: int) -> float:
    return ref.size_bytes * (1 - used / ref.slots)
