"""Fingerprints of the checkpoint before, by address: what tells without kernel help which pages changed. Called by the writer.

A file beside the store, never part of it, one for each workload: the runs of the last checkpoint and a keyed BLAKE3 of each of their
pieces (`blocks`). It names the manifest that it belongs to by that manifest's salt, and is authenticated: a piece whose fingerprint is the
same lies where that manifest says. Without it all blocks are hashed, and nothing else is lost.
"""

from __future__ import annotations

import os
import stat
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import msgspec

from perdure.base import files
from perdure.model.checkpoint import BLOCK_BYTES, Run
from perdure.store import blocks, hashing
from perdure.store.blocks import FINGERPRINT_BYTES, PIECE_BYTES
from perdure.store.keys import Keys

_MAGIC = b"PDRfing\x01"
_MAC_BYTES = 32
MAX_BYTES = 1024 * 1024 * 1024
"""A larger file is not read: it would belong to a workload of 4 TiB."""


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    manifest_salt: bytes
    spaces: list[bytes]
    """UTF-8, with surrogates for what is none: they may hold names of files."""
    space_of: bytes
    """u32 for each run: which of `spaces`."""
    addresses: bytes
    """u64 for each run."""
    lengths: bytes
    """u64 for each run, in blocks."""
    files: list[int]
    """How many runs each file has."""
    prints: bytes
    """Of all pieces of all runs, in order."""


class Known(msgspec.Struct, frozen=True, gc=False):
    """A run of the checkpoint before: where it lay in its file, and the number of its first piece."""

    address: int
    end: int
    file: int
    block: int
    first_piece: int


class Former:
    """What is known of the checkpoint before. Empty when nothing is."""

    def __init__(self, spaces: dict[str, list[Known]], prints: bytes) -> None:
        self._spaces = {space: sorted(runs, key=lambda run: run.address) for space, runs in spaces.items()}
        self._addresses = {space: [run.address for run in runs] for space, runs in self._spaces.items()}
        self._prints = prints

    def find(self, space: str, address: int) -> Known | None:
        """Return the run that held the block at `address` of `space`."""
        addresses = self._addresses.get(space)
        if not addresses:
            return None
        at = bisect_right(addresses, address) - 1
        if at < 0 or address >= self._spaces[space][at].end:
            return None
        return self._spaces[space][at]

    def fingerprint(self, run: Known, address: int) -> bytes | None:
        """Return the fingerprint of the piece of `run` that begins at `address`; None if none does.

        A piece of another length than then has another fingerprint, whatever it holds.
        """
        if address % PIECE_BYTES and address != run.address:
            return None
        piece = run.first_piece + address // PIECE_BYTES - run.address // PIECE_BYTES
        return self._prints[piece * FINGERPRINT_BYTES : (piece + 1) * FINGERPRINT_BYTES]


class Taken:
    """Fingerprints of the checkpoint that is being made, in the order of its files."""

    def __init__(self) -> None:
        self._spaces: dict[str, int] = {}
        self._space_of, self._addresses, self._lengths = array("I"), array("Q"), array("Q")
        self._files: list[int] = []
        self._prints = bytearray()

    def begin_file(self, runs: Sequence[Run]) -> None:
        """Say which runs the next file consists of; the fingerprints of all their pieces follow by `extend`."""
        for run in runs:
            self._space_of.append(self._spaces.setdefault(run.space, len(self._spaces)))
            self._addresses.append(run.address)
            self._lengths.append(run.blocks)
        self._files.append(len(runs))

    def extend(self, prints: bytes) -> None:
        """Add fingerprints."""
        self._prints += prints

    def save(self, path: Path, keys: Keys, manifest_salt: bytes) -> None:
        """Write them to `path` for the checkpoint whose manifest has `manifest_salt`. Raises `errors.OutputError`."""
        stored = _Stored(
            manifest_salt,
            [space.encode("utf-8", "surrogatepass") for space in self._spaces],
            self._space_of.tobytes(),
            self._addresses.tobytes(),
            self._lengths.tobytes(),
            self._files,
            bytes(self._prints),
        )
        content = msgspec.msgpack.encode(stored)
        files.write_bytes(path, b"".join((_MAGIC, _mac(keys, content), content)))


def load(path: Path, keys: Keys, manifest_salt: bytes, file_blocks: Sequence[int]) -> Former:
    """Return what `path` says of the checkpoint whose manifest has `manifest_salt` and files of `file_blocks` blocks.

    Nothing when it is damaged, missing or another's.
    """
    content = _read(path)
    start = len(_MAGIC) + _MAC_BYTES
    body = memoryview(content)[start:]
    if content[: len(_MAGIC)] != _MAGIC or _mac(keys, body) != content[len(_MAGIC) : start]:
        return Former({}, b"")
    try:
        stored = msgspec.msgpack.decode(body, type=_Stored)
        if stored.manifest_salt == manifest_salt:
            return Former(*_runs(stored, file_blocks))
    except (msgspec.DecodeError, ValueError, IndexError):
        # Ours, since it is authentic, but of another version of this module or another kind of machine.
        pass
    return Former({}, b"")


def _mac(keys: Keys, content: bytes | memoryview) -> bytes:
    return hashing.keyed(keys.cache, _MAC_BYTES, content)


def _read(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(descriptor, "rb") as handle:
        status = os.fstat(descriptor)
        return handle.read() if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES else b""


def _runs(stored: _Stored, file_blocks: Sequence[int]) -> tuple[dict[str, list[Known]], bytes]:
    space_of, addresses, lengths = array("I", stored.space_of), array("Q", stored.addresses), array("Q", stored.lengths)
    if not len(space_of) == len(addresses) == len(lengths) == sum(stored.files):
        raise ValueError("columns of unequal length")
    names = [space.decode("utf-8", "surrogatepass") for space in stored.spaces]
    spaces: dict[str, list[Known]] = {name: [] for name in names}
    at = piece = 0
    for number, count in enumerate(stored.files):
        block = 0
        for index in range(at, at + count):
            run = Run(names[space_of[index]], addresses[index], lengths[index])
            spaces[run.space].append(Known(run.address, run.address + run.blocks * BLOCK_BYTES, number, block, piece))
            block += run.blocks
            piece += blocks.count_pieces(run)
        if block != file_blocks[number]:
            raise ValueError("a file of another length")
        at += count
    if len(stored.files) != len(file_blocks) or piece * FINGERPRINT_BYTES != len(stored.prints):
        raise ValueError("files or fingerprints are missing")
    return spaces, stored.prints
