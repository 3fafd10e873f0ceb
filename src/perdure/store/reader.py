"""Reading a checkpoint's content out of packs: pack by pack, in several threads, each frame verified. Called by the repository.

A frame is read once however many files and places need it. Neighbouring frames are read together and what follows on in a file is written
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Protocol

import msgspec

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES, StoredFile
from perdure.store import codec, packs
from perdure.store.crypto import Damaged
from perdure.store.extents import HOLE
from perdure.store.hashing import Bytes
from perdure.store.keys import Keys
from perdure.store.manifests import Body
from perdure.store.objects import Objects
from perdure.store.packs import FRAME_SLOTS, PackRef, Table

_READ_BYTES = 4 * 1024 * 1024
"""What is read at once: large enough for an object store, small enough that the memory is used again."""

_GAP_BYTES = 64 * 1024
"""Frames that nobody needs are read along when they are no more than this: it costs less than another request."""

_WRITE_BYTES = 1024 * 1024


class Sink(Protocol):
    """Takes a checkpoint's content. Called by several threads."""

    def write(self, file: int, offset: int, parts: Sequence[memoryview]) -> None:
        """Write `parts`, one after the other, at `offset` of a file."""
        ...


class _Extent(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """Blocks that lie one after the other in a pack and in a file."""

    slot: int
    count: int
    file: int
    block: int


class _Need(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """Blocks of one frame that lie one after the other there and in a file."""

    frame: int
    slot: int
    """Within the frame."""
    count: int
    file: int
    block: int


class Reader:
    """Reads the files `wanted` (numbers into `files`) of one checkpoint into `sink`."""

    def __init__(self, objects: Objects, keys: Keys, body: Body, files: Sequence[StoredFile], sink: Sink) -> None:
        self._objects, self._keys, self._body, self._files, self._sink = objects, keys, body, files, sink
        self._cancelled = False

    def read(self, wanted: Sequence[int], threads: int, progress: Callable[[int], None]) -> None:
        """Read everything; `progress` is told, by this thread, how many bytes are done.

        Raises `errors.StoreCorrupt` also for a pack that is missing, and what `sink` and `progress` raise.
        """
        needs = self._needs(wanted)
        done_bytes = 0
        with ThreadPoolExecutor(threads, thread_name_prefix="restore") as pool:
            waiting = {pool.submit(self._read_pack, self._body.packs[pack - 1], own) for pack, own in needs.items()}
            try:
                while waiting:
                    finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                    done_bytes += sum(future.result() for future in finished)
                    progress(done_bytes)
            finally:
                self._cancelled = True
                for future in waiting:
                    future.cancel()

    def _needs(self, wanted: Sequence[int]) -> dict[int, list[_Extent]]:
        """Return what is needed of each pack, by its number."""
        needs: dict[int, list[_Extent]] = {}
        for file in wanted:
            block = 0
            for pack, first, count in self._body.files[file]:
                if pack != HOLE:
                    needs.setdefault(pack, []).append(_Extent(first, count, file, block))
                block += count
        return needs

    def _read_pack(self, ref: PackRef, extents: Sequence[_Extent]) -> int:
        """Read what is needed of one pack; return how many bytes were written."""
        table = packs.read_table(self._get, self._keys, ref, with_ids=True)
        needs: dict[int, list[_Need]] = {}
        for extent in extents:
            for need in _by_frame(extent):
                needs.setdefault(need.frame, []).append(need)
        writing = _Writing(self._sink)
        for frames in packs.together(sorted(needs), table, gap_bytes=_GAP_BYTES, most_bytes=_READ_BYTES):
            start, end = table.starts[frames[0]], table.starts[frames[-1] + 1]
            content = memoryview(self._get(ref.key, start, end - start))
            if len(content) != end - start:
                raise codec.corrupt(ref.key, f"it is not {ref.size_bytes} bytes long")
            for frame in frames:
                if self._cancelled:
                    return writing.done_bytes
                sealed = content[table.starts[frame] - start : table.starts[frame + 1] - start]
                self._write_frame(_open(table, frame, sealed, ref), sorted(needs[frame]), writing)
        writing.flush()
        return writing.done_bytes

    def _write_frame(self, frame: memoryview, needs: Sequence[_Need], writing: _Writing) -> None:
        for need in needs:
            offset = need.block * BLOCK_BYTES
            length = min(need.count * BLOCK_BYTES, self._files[need.file].size_bytes - offset)
            start = need.slot * BLOCK_BYTES
            writing.add(need.file, offset, frame[start : start + length])

    def _get(self, key: str, start: int, length: int) -> bytes:
        try:
            return self._objects.get(key, start=start, length=length)
        except errors.ObjectMissing as error:
            raise errors.StoreCorrupt(f"{key} is missing", hint="see what needs it: perdure store verify", object_key=key) from error


class _Writing:
    """Joins writes that follow each other in a file."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._file = self._start = self._end = 0
        self._parts: list[memoryview] = []
        self.done_bytes = 0

    def add(self, file: int, offset: int, part: memoryview) -> None:
        if self._parts and (file != self._file or offset != self._end or self._end - self._start >= _WRITE_BYTES):
            self.flush()
        if not self._parts:
            self._file, self._start, self._end = file, offset, offset
        self._parts.append(part)
        self._end += len(part)

    def flush(self) -> None:
        if self._parts:
            self._sink.write(self._file, self._start, self._parts)
            self.done_bytes += self._end - self._start
            self._parts = []


def _by_frame(extent: _Extent) -> Iterator[_Need]:
    slot, end, block = extent.slot, extent.slot + extent.count, extent.block
    while slot < end:
        frame = slot // FRAME_SLOTS
        count = min(end, (frame + 1) * FRAME_SLOTS) - slot
        yield _Need(frame, slot - frame * FRAME_SLOTS, count, extent.file, block)
        slot += count
        block += count


def _open(table: Table, frame: int, sealed: Bytes, ref: PackRef) -> memoryview:
    try:
        return memoryview(table.open_frame(frame, sealed))
    except Damaged:
        raise codec.corrupt(ref.key, f"frame {frame} is not what was written") from None
