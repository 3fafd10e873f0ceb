"""Blocks and pieces of them: hashing. Called by the writer's scan and by verification.

A block is `BLOCK_BYTES` long. A piece is up to `PIECE_BLOCKS` consecutive blocks that lie between two multiples of `PIECE_BYTES` in the
address space that they belong to: cut by address, pieces stay what they are when something is put before them in a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.model.checkpoint import BLOCK_BYTES, Run
from perdure.store import hashing
from perdure.store.keys import BLOCK_ID_BYTES

PIECE_BLOCKS = 16
PIECE_BYTES = PIECE_BLOCKS * BLOCK_BYTES
FINGERPRINT_BYTES = 16


def block_ids(blocks: memoryview, key: bytes) -> bytes:
    """Return the ids of whole `blocks`, one after the other, `BLOCK_ID_BYTES` each. `key` is `Keys.block`."""
    return hashing.keyed_each(key, BLOCK_ID_BYTES, blocks, BLOCK_BYTES)


def zero_id(key: bytes) -> bytes:
    """Return the id of the block of zeros, which is never stored."""
    return block_ids(memoryview(bytes(BLOCK_BYTES)), key)


def fingerprints(content: memoryview, ends: Sequence[int], key: bytes) -> bytes:
    """Return the fingerprints of the pieces of `content` that end at byte offsets `ends`. `key` is `Keys.fingerprint`."""
    return hashing.keyed_pieces(key, FINGERPRINT_BYTES, content, ends)


def pieces_of(run: Run) -> Iterator[tuple[int, int]]:
    """Yield the pieces of a run: address, and how many blocks."""
    address, end = run.address, run.address + run.blocks * BLOCK_BYTES
    while address < end:
        following = min(address - address % PIECE_BYTES + PIECE_BYTES, end)
        yield address, (following - address) // BLOCK_BYTES
        address = following


def count_pieces(run: Run) -> int:
    """Return how many pieces a run has."""
    if not run.blocks:
        return 0
    return (run.address + run.blocks * BLOCK_BYTES - 1) // PIECE_BYTES - run.address // PIECE_BYTES + 1
