"""Bytes of a checkpoint by part: what it is, what the store holds for it, what it added. Called by the writer at its commit."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

from perdure.model.checkpoint import Part, PartSize, StoredFile
from perdure.store.extents import HOLE, Extents
from perdure.store.packs import FRAME_SLOTS


def stored_by_part(files: Sequence[StoredFile], extents: Sequence[Extents], starts: Sequence[array[int]]) -> dict[Part, int]:
    """Return the bytes of the frames that hold the blocks of each part. A frame that two parts need counts for both.

    `starts` says for each pack, in the order of their numbers, where its frames begin, and where the last ends.
    """
    touched: dict[Part, dict[int, bytearray]] = {}
    for file, own in zip(files, extents, strict=True):
        by_pack = touched.setdefault(file.part, {})
        for pack, first, count in own:
            if pack == HOLE:
                continue
            frames = by_pack.get(pack)
            if frames is None:
                frames = by_pack[pack] = bytearray(len(starts[pack - 1]) - 1)
            low, high = first // FRAME_SLOTS, (first + count - 1) // FRAME_SLOTS + 1
            frames[low:high] = b"\x01" * (high - low)
    return {part: sum(_bytes_of(frames, starts[pack - 1]) for pack, frames in by_pack.items()) for part, by_pack in touched.items()}


def _bytes_of(frames: bytearray, starts: array[int]) -> int:
    if 0 not in frames:
        return starts[-1]
    return sum(starts[frame + 1] - starts[frame] for frame, touched in enumerate(frames) if touched)


def sizes(files: Iterable[StoredFile], stored: Mapping[Part, int], new_blocks: Mapping[Part, int], new_bytes: int) -> tuple[PartSize, ...]:
    """Return the sizes of all parts. `new_bytes`, everything that was put, is divided among them as their new blocks are; what was put
    without any new block falls to the largest part. Their sum is exact.
    """
    logical: dict[Part, int] = {}
    for file in files:
        logical[file.part] = logical.get(file.part, 0) + file.size_bytes
    parts = [part for part in Part if part in logical]
    total = sum(new_blocks.get(part, 0) for part in parts)
    shares = {part: new_bytes * new_blocks.get(part, 0) // total if total else 0 for part in parts}
    if parts:
        largest = max(parts, key=lambda part: (new_blocks.get(part, 0), logical[part]))
        shares[largest] += new_bytes - sum(shares.values())
    return tuple(PartSize(part, logical[part], stored.get(part, 0), shares[part]) for part in parts)
