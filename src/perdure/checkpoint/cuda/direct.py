"""GPU memory between devices and files, without the workload's own memory: the driver's custom storage. Runs in the helper (`driver`).

The driver maps all GPU memory of a process here, one stretch for each device; it is copied, and the operation completed. After the
completion the driver forgets it: so that room for the files is taken before anything is asked, and a copy that fails is never completed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from perdure.checkpoint.cuda.contract import Problem, Region, Request, Trouble
from perdure.checkpoint.host import gpu_nvml

_PIECE_BYTES = 64 << 20
"""Copied at once: long enough for the bus, short enough that several devices take turns."""
_UUID_BYTES = 16


class Refused(Exception):
    """The driver, or what is beside it, said no. Never leaves the helper: `problem` goes out as an answer."""

    def __init__(self, trouble: Trouble, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.problem = Problem(trouble=trouble, message=message, number=number)


class Api(Protocol):
    """What this module needs of the driver: `call` raises `Refused`."""

    api: Any

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the driver."""


class _Info(ctypes.Structure):
    """CUcheckpointCustomStorageInfo."""

    _fields_ = (("handle", ctypes.c_void_p), ("devices", ctypes.c_void_p), ("count", ctypes.c_uint))


class _Device(ctypes.Structure):
    """CUcheckpointCustomStoragePerDeviceData."""

    _fields_ = (("address", ctypes.c_uint64), ("size_bytes", ctypes.c_size_t), ("stream", ctypes.c_void_p))


class _Stretch(NamedTuple):
    """GPU memory that the driver has mapped here."""

    device: int
    uuid: str
    address: int
    size_bytes: int
    stream: int


def checkpoint(cuda: Api, request: Request) -> tuple[Region, ...]:
    """Write the GPU memory of the process into files in `request.folder`, and complete. Raises `Refused`."""
    sizes = _sizes_on_devices(request.pid)
    with _contexts(cuda, frozenset(sizes)), _Rooms(str(request.folder), request.pid) as rooms:
        for uuid, size_bytes in sizes.items():
            rooms.take(uuid, size_bytes)
        slot = ctypes.c_void_p()
        arguments = cuda.api.CUcheckpointCheckpointArgs()
        arguments.customStorageInfo_out = ctypes.addressof(slot)
        cuda.call("cuCheckpointProcessCheckpoint", request.pid, arguments)
        stretches, handle = _mapped(cuda, slot)
        for stretch in stretches:
            rooms.take(stretch.uuid, stretch.size_bytes)
        _each(stretches, lambda stretch: _read(cuda, stretch, rooms.descriptors[stretch.uuid]))
        # From here on the files may be the only copy, whatever the driver says.
        kept = rooms.keep({stretch.uuid: stretch.size_bytes for stretch in stretches})
        _complete(cuda, handle)
        return kept


def written(folder: str, pid: int) -> tuple[Region, ...]:
    """Return the files that were written of process `pid`, for when nobody could tell any more: whole, if it is checkpointed now."""
    found = []
    for entry in os.scandir(folder):
        of, _, uuid = entry.name.partition("-")
        if of == str(pid) and uuid:
            found.append(Region(uuid=uuid, path=entry.path, size_bytes=entry.stat(follow_symlinks=False).st_size))
    return tuple(found)


def _complete(cuda: Api, handle: int) -> None:
    """Complete an operation; a driver that stumbles is asked once more, since only this handle leads out of the state."""
    try:
        cuda.call("cuCheckpointOperationComplete", handle)
    except Refused:
        cuda.call("cuCheckpointOperationComplete", handle)


class _Rooms:
    """The files of one process's GPU memory, one a device. They are removed again unless they are kept."""

    def __init__(self, folder: str, pid: int) -> None:
        self._folder = folder
        self._pid = pid
        self._kept: dict[str, int] = {}
        self.descriptors: dict[str, int] = {}

    def __enter__(self) -> _Rooms:
        return self

    def __exit__(self, *_: object) -> None:
        for uuid, descriptor in self.descriptors.items():
            os.close(descriptor)
            if uuid not in self._kept:
                os.unlink(self._path(uuid))

    def _path(self, uuid: str) -> str:
        return os.path.join(self._folder, f"{self._pid}-{uuid}")

    def take(self, uuid: str, size_bytes: int) -> None:
        """See that the file of a device has `size_bytes`, all of them taken on the disk. Raises `Refused`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            if uuid not in self.descriptors:
                self.descriptors[uuid] = os.open(self._path(uuid), flags, 0o600)
            if size_bytes:
                os.posix_fallocate(self.descriptors[uuid], 0, size_bytes)
        except OSError as error:
            raise Refused(Trouble.FILES, f"no room for {size_bytes} bytes of GPU memory in {self._folder}: {error.strerror}") from error

    def keep(self, sizes: dict[str, int]) -> tuple[Region, ...]:
        """Cut the files to `sizes`, by device, and leave them; the others are removed."""
        for uuid, size_bytes in sizes.items():
            os.ftruncate(self.descriptors[uuid], size_bytes)
        self._kept = sizes
        return tuple(Region(uuid=uuid, path=self._path(uuid), size_bytes=size_bytes) for uuid, size_bytes in sizes.items())


def restore(cuda: Api, request: Request) -> None:
    """Restore the process, onto other GPUs as `request.mapping` says, from its own memory or from `request.regions`. Raises `Refused`."""
    arguments = cuda.api.CUcheckpointRestoreArgs()
    pairs = [_pair(cuda, old, new) for old, new in request.mapping]
    if pairs:
        arguments.gpuPairs = pairs
        arguments.gpuPairsCount = len(pairs)
    if not request.regions:
        cuda.call("cuCheckpointProcessRestore", request.pid, arguments)
        return
    onto = dict(request.mapping)
    targets = {onto.get(region.uuid, region.uuid): region for region in request.regions}
    with _contexts(cuda, frozenset(targets)):
        slot = ctypes.c_void_p()
        arguments.customStorageInfo_out = ctypes.addressof(slot)
        cuda.call("cuCheckpointProcessRestore", request.pid, arguments)
        stretches, handle = _mapped(cuda, slot)
        wanted = {uuid: region.size_bytes for uuid, region in targets.items()}
        if {stretch.uuid: stretch.size_bytes for stretch in stretches} != wanted:
            raise Refused(Trouble.FILES, "what the driver wants back is not what was saved")
        try:
            _each(stretches, lambda stretch: _write(cuda, stretch, targets[stretch.uuid]))
        except OSError as error:
            raise Refused(Trouble.FILES, f"saved GPU memory cannot be read: {error}") from error
        _complete(cuda, handle)


def _sizes_on_devices(pid: int) -> dict[str, int]:
    """Return how much the process has on each device: with the driver's own share, so never less than what has to be copied."""
    return {use.uuid: use.memory_bytes or 0 for use in gpu_nvml.ask().uses if use.pid == pid}


@contextmanager
def _contexts(cuda: Api, uuids: frozenset[str]) -> Iterator[None]:
    """Hold the primary contexts of the devices `uuids`, as custom storage asks for; of all devices, where nobody told which."""
    held = []
    try:
        for device in range(int(cuda.call("cuDeviceGetCount"))):
            if not uuids or _uuid_of(cuda, device) in uuids:
                cuda.call("cuDevicePrimaryCtxRetain", device)
                held.append(device)
        yield
    finally:
        for device in held:
            cuda.call("cuDevicePrimaryCtxRelease", device)


def _mapped(cuda: Api, slot: ctypes.c_void_p) -> tuple[tuple[_Stretch, ...], int]:
    info = _Info.from_address(slot.value or 0)
    found = []
    for one in (_Device * info.count).from_address(info.devices or 0):
        device = int(cuda.call("cuStreamGetDevice", one.stream or 0))
        found.append(_Stretch(device, _uuid_of(cuda, device), one.address, one.size_bytes, one.stream or 0))
    return tuple(found), info.handle or 0


def _uuid_of(cuda: Api, device: int) -> str:
    raw = bytes(cuda.call("cuDeviceGetUuid", device).bytes).hex()
    return f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"


def _pair(cuda: Api, old: str, new: str) -> Any:
    pair = cuda.api.CUcheckpointGpuPair()
    # Two CUuuid of 16 bytes each, one after the other; the bindings let nobody write into one.
    ctypes.memmove(int(pair.getPtr()), _uuid_bytes(old) + _uuid_bytes(new), 2 * _UUID_BYTES)
    return pair


def _uuid_bytes(uuid: str) -> bytes:
    return bytes.fromhex(uuid.removeprefix("GPU-").replace("-", ""))


def _each(stretches: tuple[_Stretch, ...], copy: Callable[[_Stretch], None]) -> None:
    """Copy all devices at the same time: each has a bus of its own."""
    with ThreadPoolExecutor(max(1, len(stretches)), thread_name_prefix="copy") as pool:
        for _ in pool.map(copy, stretches):
            pass


def _read(cuda: Api, stretch: _Stretch, descriptor: int) -> None:
    _copy(cuda, stretch, descriptor, "cuMemcpyDtoHAsync", lambda device, host, size, stream: (host, device, size, stream))


def _write(cuda: Api, stretch: _Stretch, region: Region) -> None:
    descriptor = os.open(region.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size != stretch.size_bytes:
            raise Refused(Trouble.FILES, f"{region.path} has not the size that was saved")
        _copy(cuda, stretch, descriptor, "cuMemcpyHtoDAsync", lambda device, host, size, stream: (device, host, size, stream))
    finally:
        os.close(descriptor)


def _copy(
    cuda: Api, stretch: _Stretch, descriptor: int, function: str, order: Callable[[int, int, int, int], tuple[int, int, int, int]]
) -> None:
    """Copy between the device and the file's own pages, which are mapped: no copy lies between them."""
    _make_current(cuda, stretch.device)
    with mmap.mmap(descriptor, stretch.size_bytes) as pages:
        at = ctypes.c_char.from_buffer(pages)
        base = ctypes.addressof(at)
        try:
            for start in range(0, stretch.size_bytes, _PIECE_BYTES):
                size = min(_PIECE_BYTES, stretch.size_bytes - start)
                cuda.call(function, *order(stretch.address + start, base + start, size, stretch.stream))
                cuda.call("cuStreamSynchronize", stretch.stream)
        finally:
            del at


def _make_current(cuda: Api, device: int) -> None:
    context = cuda.call("cuDevicePrimaryCtxRetain", device)
    try:
        cuda.call("cuCtxSetCurrent", context)
    finally:
        cuda.call("cuDevicePrimaryCtxRelease", device)
