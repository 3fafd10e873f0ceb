"""A checkpoint's files read from front to back, without a folder in between. Called by the repository.

Whoever needs a file in its order and only once need not wait until all of it lies somewhere, nor have room for it. What is handed out is
verified, as it is by `reader`: frames are read ahead by a few threads, a bounded part of the file at a time, and those that lie close
together are needed again soon and kept.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from threading import Lock

import msgspec

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES, StoredFile
from perdure.store import codec, packs
from perdure.store.crypto import Damaged
from perdure.store.extents import HOLE
from perdure.store.keys import Keys
from perdure.store.manifests import Body
from perdure.store.objects import Objects
from perdure.store.packs import FRAME_SLOTS, Table

_WINDOW_BYTES = 8 * 1024 * 1024
"""So much of a file is read by one task: handing one over costs as much as reading 200 KiB."""
_GAP_BYTES = 64 * 1024
_READ_BYTES = 8 * 1024 * 1024
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

    def __init__(self, windows: Iterator[list[_Piece]], submit: Callable[[list[_Piece]], Future[list[memoryview]]]) -> None:
        self._windows, self._submit = windows, submit
        self.waiting: deque[Future[list[memoryview]]] = deque()

    def fill(self, wanted: int) -> int:
        """Begin as many windows as there have to be for `wanted` to be waiting, or to the file's end. Returns how many."""
        windows = list(islice(self._windows, max(wanted - len(self.waiting), 0)))
        self.waiting.extend(map(self._submit, windows))
        return len(windows)


class Streams:
    """Reads files of one checkpoint. Its files may be read at the same time; a context, which waits for what is being read."""

    def __init__(self, objects: Objects, keys: Keys, body: Body, files: Sequence[StoredFile], threads: int) -> None:
        self._objects, self._keys, self._body = objects, keys, body
        self._numbers = {file.name: number for number, file in enumerate(files)}
        self._files = files
        self._ahead = threads + 1
        self._begun: dict[str, _Reading] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stream")
        self._lock = Lock()
        self._tables: OrderedDict[int, Table] = OrderedDict()
        self._frames: OrderedDict[tuple[int, int], memoryview] = OrderedDict()

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def read(self, name: str) -> Iterator[list[memoryview]]:
        """Yield the content of the file `name`, in parts that follow each other.

        Raises `errors.WorkloadMissing` for a name that the checkpoint has not, `errors.StoreCorrupt` naming the damaged or missing
        object, and the other errors of a store; what was yielded before is right all the same.
        """
        reading = self._begun.pop(name, None) or self._reading(name)
        try:
            while True:
                reading.fill(self._ahead + 1)
                if not reading.waiting:
                    return
                yield reading.waiting.popleft().result()
        finally:
            for one in reading.waiting:
                one.cancel()

    def begin(self, names: Iterable[str]) -> None:
        """Begin to read the files `names`, the first one first, before anybody asks for them: as much as is read ahead of one that is read.

        No more: memory that is new to the process costs as much as unpacking into it. Called once, before anything is read. Raises
        `errors.WorkloadMissing`.
        """
        left = self._ahead + 1
        for name in names:
            reading = self._begun[name] = self._reading(name)
            left -= reading.fill(left)

    def _reading(self, name: str) -> _Reading:
        if name not in self._numbers:
            raise errors.WorkloadMissing(f"the checkpoint holds no file {name!r}", hint="perdure store show lists what it holds")
        return _Reading(self._windows(self._numbers[name]), lambda window: self._pool.submit(self._fetch, window))

    def _windows(self, number: int) -> Iterator[list[_Piece]]:
        window: list[_Piece] = []
        held_bytes = 0
        for piece in self._pieces(number):
            window.append(piece)
            held_bytes += piece.size_bytes
            if held_bytes >= _WINDOW_BYTES:
                yield window
                window, held_bytes = [], 0
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

    def _fetch(self, window: list[_Piece]) -> list[memoryview]:
        found: dict[tuple[int, int], memoryview] = {}
        wanted: dict[int, list[int]] = {}
        with self._lock:
            for pack, frame in dict.fromkeys((piece.pack, piece.frame) for piece in window if piece.pack != HOLE):
                kept = self._frames.get((pack, frame))
                if kept is None:
                    wanted.setdefault(pack, []).append(frame)
                else:
                    found[pack, frame] = kept
        for pack, frames in wanted.items():
            found |= self._read(pack, sorted(frames))
        self._keep(found)
        return [
            _ZEROS[: piece.size_bytes]
            if piece.pack == HOLE
            else found[piece.pack, piece.frame][piece.slot * BLOCK_BYTES : piece.slot * BLOCK_BYTES + piece.size_bytes]
            for piece in window
        ]

    def _read(self, pack: int, frames: Sequence[int]) -> dict[tuple[int, int], memoryview]:
        ref = self._body.packs[pack - 1]
        table = self._table(pack)
        found = {}
        for group in packs.together(frames, table, gap_bytes=_GAP_BYTES, most_bytes=_READ_BYTES):
            start, end = table.starts[group[0]], table.starts[group[-1] + 1]
            content = memoryview(self._get(ref.key, start, end - start))
            if len(content) != end - start:
                raise codec.corrupt(ref.key, f"it is not {ref.size_bytes} bytes long")
            for frame in group:
                sealed = content[table.starts[frame] - start : table.starts[frame + 1] - start]
                try:
                    found[pack, frame] = memoryview(table.open_frame(frame, sealed))
                except Damaged:
                    raise codec.corrupt(ref.key, f"frame {frame} is not what was written") from None
        return found

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

    def _keep(self, found: dict[tuple[int, int], memoryview]) -> None:
        with self._lock:
            for place, frame in found.items():
                self._frames[place] = frame
                self._frames.move_to_end(place)
            while len(self._frames) > _KEPT_FRAMES:
                self._frames.popitem(last=False)

    def _get(self, key: str, start: int, length: int) -> bytes:
        try:
            return self._objects.get(key, start=start, length=length)
        except errors.ObjectMissing as error:
            raise errors.StoreCorrupt(f"{key} is missing", hint="see what needs it: perdure store verify", object_key=key) from error
