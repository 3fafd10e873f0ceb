"""Reading a staged file and finding what changed in it: the part of storing that runs in several threads. Called by the writer.

A chunk is some pieces that follow each other in a file. For each the scan says that it is as it was, that it is zeros, or the ids of its
blocks. BLAKE3 lets other threads run; the Python around it is kept to a few microseconds a piece.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES, Run
from perdure.store import blocks
from perdure.store.blocks import FINGERPRINT_BYTES, PIECE_BLOCKS
from perdure.store.fingerprints import Former, Known
from perdure.store.keys import Keys

CHUNK_BLOCKS = 256
CHUNK_BYTES = CHUNK_BLOCKS * BLOCK_BYTES
"""1 MiB: it stays in a core's cache between being read and being hashed."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """One piece of a file: `length` blocks, where they were in the checkpoint before, and their fingerprint then."""

    length: int
    file: int
    """Number of the file of the checkpoint before; -1: its addresses are new."""
    block: int
    available: int
    """How many of its blocks the checkpoint before had at these addresses."""
    former: bytes | None
    """None: cannot be as it was."""


class Chunk(msgspec.Struct, frozen=True):
    """Pieces that follow each other in a file, from block `start` on; `blocks` in all."""

    start: int
    blocks: int
    pieces: list[Piece]


SAME: None = None
ZEROS = b""


class Scanned(msgspec.Struct, frozen=True):
    """What a scan found: fingerprints of all pieces, and for each piece `SAME`, `ZEROS` or the ids of its blocks."""

    prints: bytes
    pieces: list[bytes | None]


IsUsable = Callable[[int, int, int], bool]
"""Tells whether blocks of the checkpoint before may be used again: number of the file, first block, how many."""


def chunks(runs: Sequence[Run], former: Former, is_usable: IsUsable) -> Iterator[Chunk]:
    """Yield the chunks of a file that consists of `runs`."""
    start = length = 0
    pieces: list[Piece] = []
    for run in runs:
        known: Known | None = None
        for address, piece_blocks in blocks.pieces_of(run):
            if length + piece_blocks > CHUNK_BLOCKS:
                yield Chunk(start, length, pieces)
                start, length, pieces = start + length, 0, []
            if known is None or not known.address <= address < known.end:
                known = former.find(run.space, address)
            pieces.append(_piece(former, known, address, piece_blocks, is_usable))
            length += piece_blocks
    if pieces:
        yield Chunk(start, length, pieces)


def _piece(former: Former, known: Known | None, address: int, length: int, is_usable: IsUsable) -> Piece:
    if known is None:
        return Piece(length, -1, 0, 0, None)
    block = known.block + (address - known.address) // BLOCK_BYTES
    available = min(length, (known.end - address) // BLOCK_BYTES)
    fingerprint = former.fingerprint(known, address)
    # One that has become longer is not what it was, and its end lay nowhere.
    if fingerprint is not None and (available < length or not is_usable(known.file, block, length)):
        fingerprint = None
    return Piece(length, known.file, block, available, fingerprint)


class Content(Protocol):
    """What is stored as a file: a file, or something that is read in another way."""

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into` with what there is from byte `offset` on, and with zeros after its end. Called by several threads.

        Every byte is read once; at most some mebibytes lie between what is read at the same time. Raises `errors.CheckpointFailed`.
        """


class File:
    """The content of an open file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, into: memoryview) -> None:
        """See `Content.read`."""
        _read(self._descriptor, offset, into)


class Scanner:
    """Scans chunks. May be used by several threads, each with a buffer of its own."""

    def __init__(self, keys: Keys) -> None:
        self._block, self._fingerprint = keys.block, keys.fingerprint
        zeros = memoryview(bytes(PIECE_BLOCKS * BLOCK_BYTES))
        self._zeros = frozenset(
            blocks.fingerprints(zeros[: length * BLOCK_BYTES], [length * BLOCK_BYTES], keys.fingerprint)
            for length in range(1, PIECE_BLOCKS + 1)
        )

    def scan(self, source: Content, chunk: Chunk, buffer: memoryview) -> Scanned:
        """Read `chunk` of the `source` into `buffer` (zeros after the file's end) and scan it.

        Raises `errors.CheckpointFailed` when a file has become shorter.
        """
        content = buffer[: chunk.blocks * BLOCK_BYTES]
        source.read(chunk.start * BLOCK_BYTES, content)
        ends, end = [], 0
        for piece in chunk.pieces:
            end += piece.length * BLOCK_BYTES
            ends.append(end)
        prints = blocks.fingerprints(content, ends, self._fingerprint)
        found: list[bytes | None] = []
        start = at = 0
        for piece, end in zip(chunk.pieces, ends, strict=True):
            own = prints[at : at + FINGERPRINT_BYTES]
            if own in self._zeros:
                found.append(ZEROS)
            elif own == piece.former:
                found.append(SAME)
            else:
                found.append(blocks.block_ids(content[start:end], self._block))
            start = end
            at += FINGERPRINT_BYTES
        return Scanned(prints, found)


def _read(descriptor: int, offset: int, content: memoryview) -> None:
    try:
        done = os.preadv(descriptor, [content], offset)
        while done < len(content):
            more = os.preadv(descriptor, [content[done:]], offset + done)
            if not more:
                break
            done += more
    except OSError as error:
        raise errors.CheckpointFailed(
            f"a staged file cannot be read: {error.strerror}", hint="see what is wrong with the staging disk"
        ) from error
    # Only the last block of a file may be cut; the writer has checked the length.
    if len(content) - done >= BLOCK_BYTES:
        raise errors.CheckpointFailed("a staged file became shorter while it was stored", hint="let nothing else touch the staging folder")
    if done < len(content):
        content[done:] = bytes(len(content) - done)
