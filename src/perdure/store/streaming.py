"""A checkpoint's files read from front to back, without a folder in between. Called by the repository.

Whoever needs a file in its order and only once need not wait until all of it lies somewhere, nor have room for it. What is handed out is
verified, as it is by `reader`: frames are read ahead by a few threads, a bounded part of the file at a time, into memory that is used again
and again; frames of which a part is still to come are kept.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

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
from perdure.store.packs import FRAME_SLOTS, Table

_WINDOW_BYTES = 4 * 1024 * 1024
"""So much of a file is read by one task: handing one over costs as much as reading 200 KiB."""
_MOST_WINDOWS = 16
"""So many are read ahead in all, 64 MiB; of each file that is being read two more than there are threads, in any case."""
_GAP_BYTES = 64 * 1024
_READ_BYTES = 4 * 1024 * 1024
_KEPT_FRAMES = 256
"""32 MiB: pages that changed lie in one pack, those between them in another, and both are gone through from front to back."""
_KEPT_TABLES = 64
_ZEROS = memoryview(bytes(_WINDOW_BYTES))


class _Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Blocks of one frame that follow each other in the file."""

    pack: int
    frame: int
    slot: int
    """Within the frame."""
    size_bytes: int


class _Reading:
    """One file that is being read: `waiting` holds what comes next of it, as far as it was begun."""

    def __init__(self, windows: Iterator[list[_Piece]]) -> None:
        self._windows = windows
        self.waiting: deque[Future[memoryview]] = deque()

    def begin(self, submit: Callable[[list[_Piece]], Future[memoryview]]) -> bool:
        """Begin one window more. Returns false at the file's end."""
        for window in self._windows:
            self.waiting.append(submit(window))
            return True
        return False


class Streams:
    """Reads files of one checkpoint. Its files may be read at the same time; a context, which waits for what is being read."""

    def __init__(self, objects: Objects, keys: Keys, body: Body, files: Sequence[StoredFile], threads: int) -> None:
        self._objects, self._keys, self._body = objects, keys, body
        self._numbers = {file.name: number for number, file in enumerate(files)}
        self._files = files
        self._ahead = threads + 2
        self._begun: dict[str, _Reading] = {}
        self._in_flight = 0
        self._buffers: list[memoryview] = []
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stream")
        self._lock = Lock()
        self._tables: OrderedDict[int, Table] = OrderedDict()
        self._frames: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def read(self, name: str) -> Iterator[list[memoryview]]:
        """Yield the content of the file `name`, in parts that follow each other. Each may be used until the next one is asked for.

        Raises `errors.WorkloadMissing` for a name that the checkpoint has not, `errors.StoreCorrupt` naming the damaged or missing
        object, and the other errors of a store; what was yielded before is right all the same.
        """
        reading = self._begun.pop(name, None) or self._reading(name)
        try:
            while True:
                while (len(reading.waiting) < self._ahead or self._in_flight < _MOST_WINDOWS) and reading.begin(self._submit):
                    pass
                if not reading.waiting:
                    return
                self._landed(1)
                part = reading.waiting.popleft().result()
                yield [part]
                self._use_again(part)
        finally:
            self._landed(len(reading.waiting))
            for one in reading.waiting:
                one.cancel()

    def begin(self, names: Iterable[str]) -> None:
        """Read of the files `names`, the first one first, before anybody does `read` them, as much as memory is set aside for.

        Called once, before anything is read. Raises `errors.WorkloadMissing`.
        """
        for name in names:
            reading = self._begun[name] = self._reading(name)
            while self._in_flight < _MOST_WINDOWS and reading.begin(self._submit):
                pass

    def _reading(self, name: str) -> _Reading:
        if name not in self._numbers:
            raise errors.WorkloadMissing(f"the checkpoint holds no file {name!r}", hint="perdure store show lists what it holds")
        return _Reading(self._windows(self._numbers[name]))

    def _submit(self, window: list[_Piece]) -> Future[memoryview]:
        with self._lock:
            self._in_flight += 1
        return self._pool.submit(self._fetch, window)

    def _landed(self, windows: int) -> None:
        with self._lock:
            self._in_flight -= windows

    def _use_again(self, part: memoryview) -> None:
        """Use the memory of `part` again: memory that is new to the process costs as much as what is unpacked into it."""
        with self._lock:
            if len(self._buffers) < _MOST_WINDOWS:
                self._buffers.append(memoryview(part.obj))

    def _buffer(self) -> memoryview:
        with self._lock:
            if self._buffers:
                return self._buffers.pop()
        return memoryview(mmap.mmap(-1, _WINDOW_BYTES))

    def _windows(self, number: int) -> Iterator[list[_Piece]]:
        window: list[_Piece] = []
        held_bytes = 0
        for piece in self._pieces(number):
            if held_bytes + piece.size_bytes > _WINDOW_BYTES:
                yield window
                window, held_bytes = [], 0
            window.append(piece)
            held_bytes += piece.size_bytes
        if window:
            yield window

    def _pieces(self, number: int) -> Iterator[_Piece]:
        left_bytes = self._files[number].size_bytes
        for pack, first, count in self._body.files[number]:
            slot, end = first, first + count
            most = _WINDOW_BYTES // BLOCK_BYTES if pack == HOLE else FRAME_SLOTS
            while slot < end:
                frame, within = (0, 0) if pack == HOLE else divmod(slot, FRAME_SLOTS)
                taken = min(end - slot, most - within)
                size_bytes = min(taken * BLOCK_BYTES, left_bytes)
                yield _Piece(pack, frame, within, size_bytes)
                slot += taken
                left_bytes -= size_bytes

    def _fetch(self, window: list[_Piece]) -> memoryview:
        buffer, at = self._buffer(), 0
        places: dict[tuple[int, int], list[tuple[memoryview, _Piece]]] = {}
        for piece in window:
            place = buffer[at : at + piece.size_bytes]
            at += piece.size_bytes
            if piece.pack == HOLE:
                place[:] = _ZEROS[: piece.size_bytes]
            else:
                places.setdefault((piece.pack, piece.frame), []).append((place, piece))
        wanted: dict[int, list[int]] = {}
        for (pack, frame), needs in places.items():
            with self._lock:
                kept = self._frames.get((pack, frame))
            if kept is None:
                wanted.setdefault(pack, []).append(frame)
            else:
                _put(kept, needs)
        for pack, frames in wanted.items():
            for frame, content in self._read(pack, sorted(frames)):
                needs = places[pack, frame]
                _put(content, needs)
                if sum(piece.size_bytes for _, piece in needs) < len(content):
                    self._keep((pack, frame), bytes(content))
        return buffer[:at]

    def _read(self, pack: int, frames: Sequence[int]) -> Iterator[tuple[int, Bytes]]:
        """Yield `frames` of a pack, each verified and unpacked only when it is asked for, into memory that the one before has left."""
        ref = self._body.packs[pack - 1]
        table = self._table(pack)
        for group in packs.together(frames, table, gap_bytes=_GAP_BYTES, most_bytes=_READ_BYTES):
            start, end = table.starts[group[0]], table.starts[group[-1] + 1]
            content = memoryview(self._get(ref.key, start, end - start))
            if len(content) != end - start:
                raise codec.corrupt(ref.key, f"it is not {ref.size_bytes} bytes long")
            for frame in group:
                sealed = content[table.starts[frame] - start : table.starts[frame + 1] - start]
                try:
                    yield frame, table.open_frame(frame, sealed)
                except Damaged:
                    raise codec.corrupt(ref.key, f"frame {frame} is not what was written") from None

    def _table(self, pack: int) -> Table:
        with self._lock:
            kept = self._tables.get(pack)
        if kept is None:
            kept = packs.read_table(self._get, self._keys, self._body.packs[pack - 1], with_ids=False)
            with self._lock:
                self._tables[pack] = kept
                while len(self._tables) > _KEPT_TABLES:
                    self._tables.popitem(last=False)
        return kept

    def _keep(self, place: tuple[int, int], frame: bytes) -> None:
        with self._lock:
            self._frames[place] = frame
            self._frames.move_to_end(place)
            while len(self._frames) > _KEPT_FRAMES:
                self._frames.popitem(last=False)

    def _get(self, key: str, start: int, length: int) -> bytes:
        try:
            return self._objects.get(key, start=start, length=length)
        except errors.ObjectMissing as error:
            raise errors.StoreCorrupt(f"{key} is missing", hint="see what needs it: perdure store verify", object_key=key) from error


def _put(frame: Bytes, needs: Sequence[tuple[memoryview, _Piece]]) -> None:
    view = memoryview(frame)
    for place, piece in needs:
        start = piece.slot * BLOCK_BYTES
        place[:] = view[start : start + piece.size_bytes]
