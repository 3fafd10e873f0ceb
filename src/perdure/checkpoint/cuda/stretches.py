"""GPU memory that the driver has mapped here, copied through a few page-locked buffers. Runs in the helper; called by `direct` and `vault`.

A copy to or from page-locked memory goes at the speed of the bus and needs no help of a processor; from other memory the driver first
copies it into page-locked memory of its own. Page-locked memory is nobody else's any more, so that there is little of it: a few buffers for
each device that is being copied. Where the kernel or the driver refuses to lock pages, the buffers are ordinary ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from perdure import errors
from perdure.checkpoint.cuda.contract import Problem, Trouble

T = TypeVar("T")

PIECE_BYTES = 16 << 20
"""Copied at once: long enough for the bus, short enough that a few of them are no burden."""
_AHEAD = 3
"""Buffers of a device that is read: one is filled, one is full, one is worked on."""
_TURNS = 2
"""Buffers of a device that is written: one is filled while the other is copied."""
_AT_ONCE = 16
"""Devices of a process that are copied at the same time: as many as a machine has."""
_PORTABLE = 1
"""CU_MEMHOSTALLOC_PORTABLE: page-locked for every context, not for the current one alone."""


class Refused(Exception):
    """The driver, or what is beside it, said no. Never leaves the helper: `problem` goes out as an answer."""

    def __init__(self, trouble: Trouble, message: str, number: int | None = None, object_key: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(trouble=trouble, message=message, number=number, object_key=object_key)


class Api(Protocol):
    """What this module needs of the driver: `call` raises `Refused`."""

    api: Any

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the driver."""


class Stretch(NamedTuple):
    """GPU memory that the driver has mapped here."""

    device: int
    uuid: str
    address: int
    size_bytes: int
    stream: int

    @property
    def pieces(self) -> int:
        """How many pieces it has."""
        return -(-self.size_bytes // PIECE_BYTES)

    def size_of(self, piece: int) -> int:
        """Return how long a piece is."""
        return min(PIECE_BYTES, self.size_bytes - piece * PIECE_BYTES)


class Buffer:
    """A piece of host memory, page-locked where that is allowed."""

    def __init__(self, cuda: Api, size_bytes: int) -> None:
        self._cuda = cuda
        self._pages: mmap.mmap | None = None
        try:
            self.address = int(cuda.call("cuMemHostAlloc", size_bytes, _PORTABLE))
            memory = (ctypes.c_char * size_bytes).from_address(self.address)
        except Refused:
            self._pages = mmap.mmap(-1, size_bytes)
            memory = (ctypes.c_char * size_bytes).from_buffer(self._pages)
            self.address = ctypes.addressof(memory)
        self.view = memoryview(memory).cast("B")

    @property
    def is_locked(self) -> bool:
        """Tell whether its pages are locked."""
        return self._pages is None

    def close(self) -> None:
        """Give it back; nothing may be copied to or from it any more."""
        self.view.release()
        if self._pages is None:
            with contextlib.suppress(Refused):
                self._cuda.call("cuMemFreeHost", self.address)


@contextlib.contextmanager
def _buffers(cuda: Api, stretch: Stretch, count: int) -> Iterator[list[Buffer]]:
    """Hold up to `count` buffers for a stretch, with its device's context as the thread's own. Raises `Refused`."""
    make_current(cuda, stretch.device)
    made: list[Buffer] = []
    try:
        made.extend(Buffer(cuda, min(PIECE_BYTES, stretch.size_bytes)) for _ in range(min(count, stretch.pieces)))
        yield made
    finally:
        for buffer in made:
            buffer.close()


def make_current(cuda: Api, device: int) -> None:
    """Make the primary context of a device, which somebody holds, the one of this thread."""
    context = cuda.call("cuDevicePrimaryCtxRetain", device)
    try:
        cuda.call("cuCtxSetCurrent", context)
    finally:
        cuda.call("cuDevicePrimaryCtxRelease", device)


class _Moved:
    """How much was moved in this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.total_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Count `size_bytes` more."""
        with self._guard:
            self.total_bytes += size_bytes


MOVED = _Moved()
"""What tells a slow copy from one that hangs."""


class Reading:
    """A stretch that is read from front to back, some pieces ahead of whoever uses it. A context; its content is a `store.scan.Content`."""

    def __init__(self, cuda: Api, stretch: Stretch) -> None:
        self._cuda, self.stretch = cuda, stretch
        self._changed = threading.Condition()
        self._full: dict[int, Buffer] = {}
        self._left: dict[int, int] = {}
        self._free: deque[Buffer] = deque()
        self._problem: BaseException | None = None
        self._is_ended = False
        self.elapsed_s = 0.0
        """How long it took until all had been copied off the device, once it has been."""
        self._thread = threading.Thread(target=self._run, name=f"read-{stretch.device}", daemon=True)

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._thread.join()

    def read(self, offset: int, into: memoryview) -> None:
        """See `store.scan.Content.read`. Raises `errors.CheckpointFailed`."""
        at, end = 0, min(len(into), max(self.stretch.size_bytes - offset, 0))
        while at < end:
            piece, skip = divmod(offset + at, PIECE_BYTES)
            taken = min(end - at, self.stretch.size_of(piece) - skip)
            into[at : at + taken] = self._piece(piece)[skip : skip + taken]
            self._is_done_with(piece, taken)
            at += taken
        if end < len(into):
            into[end:] = bytes(len(into) - end)

    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        """Yield each piece and where it begins, to be used until the next one is asked for. Raises `errors.CheckpointFailed`."""
        for piece in range(self.stretch.pieces):
            size_bytes = self.stretch.size_of(piece)
            yield piece * PIECE_BYTES, self._piece(piece)[:size_bytes]
            self._is_done_with(piece, size_bytes)

    def _piece(self, piece: int) -> memoryview:
        with self._changed:
            while piece not in self._full:
                if self._problem is not None or self._is_ended:
                    raise errors.CheckpointFailed(f"GPU memory cannot be read: {self._problem or 'it was ended'}") from self._problem
                self._changed.wait()
            return self._full[piece].view

    def _is_done_with(self, piece: int, size_bytes: int) -> None:
        with self._changed:
            self._left[piece] -= size_bytes
            if not self._left[piece]:
                self._free.append(self._full.pop(piece))
                del self._left[piece]
                self._changed.notify_all()

    def _run(self) -> None:
        try:
            with _buffers(self._cuda, self.stretch, _AHEAD) as made:
                self._free.extend(made)
                try:
                    self._read_all()
                except BaseException as problem:  # noqa: BLE001 - it is raised again in whoever reads
                    self._fail(problem)
                self._wait_for_end()  # until then somebody may be at work in a buffer
        except BaseException as problem:  # noqa: BLE001 - as above
            self._fail(problem)

    def _read_all(self) -> None:
        began_s = time.monotonic()
        for piece in range(self.stretch.pieces):
            buffer = self._take()
            if buffer is None:
                return
            size_bytes = self.stretch.size_of(piece)
            address = self.stretch.address + piece * PIECE_BYTES
            self._cuda.call("cuMemcpyDtoHAsync", buffer.address, address, size_bytes, self.stretch.stream)
            self._cuda.call("cuStreamSynchronize", self.stretch.stream)
            MOVED.add(size_bytes)
            with self._changed:
                self._full[piece], self._left[piece] = buffer, size_bytes
                self.elapsed_s = time.monotonic() - began_s
                self._changed.notify_all()

    def _take(self) -> Buffer | None:
        with self._changed:
            while not self._free and not self._is_ended:
                self._changed.wait()
            return None if self._is_ended else self._free.popleft()

    def _fail(self, problem: BaseException) -> None:
        with self._changed:
            self._problem = problem
            self._changed.notify_all()

    def _wait_for_end(self) -> None:
        with self._changed:
            while not self._is_ended:
                self._changed.wait()


def write(cuda: Api, stretch: Stretch, parts: Iterable[memoryview]) -> None:
    """Fill a stretch with `parts`, which follow each other and are as long as it is.

    Raises `Refused`, also for parts that are shorter or longer; the driver has a part of them then.
    """
    at = 0
    with _buffers(cuda, stretch, _TURNS) as buffers:
        for number, (buffer, size_bytes) in enumerate(_filled(buffers, stretch, parts)):
            if number:
                # The one before has left its buffer, which is filled next.
                cuda.call("cuStreamSynchronize", stretch.stream)
            cuda.call("cuMemcpyHtoDAsync", stretch.address + at, buffer.address, size_bytes, stretch.stream)
            MOVED.add(size_bytes)
            at += size_bytes
        cuda.call("cuStreamSynchronize", stretch.stream)
    if at != stretch.size_bytes:
        raise Refused(Trouble.FILES, f"{at} of {stretch.size_bytes} bytes of GPU memory were saved")


def _filled(buffers: list[Buffer], stretch: Stretch, parts: Iterable[memoryview]) -> Iterator[tuple[Buffer, int]]:
    """Yield buffers in turn, filled with `parts`, and how far."""
    turn = filled = done = 0
    for part in parts:
        if done + filled + len(part) > stretch.size_bytes:
            raise Refused(Trouble.FILES, "more GPU memory was saved than the driver wants back")
        at = 0
        while at < len(part):
            buffer = buffers[turn % len(buffers)]
            taken = min(len(part) - at, PIECE_BYTES - filled)
            buffer.view[filled : filled + taken] = part[at : at + taken]
            filled += taken
            at += taken
            if filled == PIECE_BYTES:
                yield buffer, filled
                done, filled, turn = done + filled, 0, turn + 1
    if filled:
        yield buffers[turn % len(buffers)], filled


def each(stretches: tuple[Stretch, ...], copy: Callable[[Stretch], T]) -> list[T]:
    """Copy all devices at the same time, each has a bus of its own; returns what `copy` does, in their order."""
    with ThreadPoolExecutor(max(1, min(len(stretches), _AT_ONCE)), thread_name_prefix="copy") as pool:
        return list(pool.map(copy, stretches))
