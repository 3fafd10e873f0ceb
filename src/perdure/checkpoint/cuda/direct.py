"""GPU memory between devices and a store, or files, without the workload's own memory: the driver's custom storage. Runs in the helper.

The driver maps all GPU memory of a process here, one stretch for each device; it is copied, and the operation completed. After the
completion the driver forgets it, and before it there is no way back: so that room is looked for before anything is asked, what cannot be
stored goes into files in the same operation, and a copy that fails is never completed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from perdure import errors
from perdure.checkpoint.cuda import amounts, processes, stretches, vault
from perdure.checkpoint.cuda.contract import Kept, Region, Request, Trouble
from perdure.checkpoint.cuda.stretches import Api, Reading, Refused, Stretch
from perdure.checkpoint.cuda.vault import Vault
from perdure.checkpoint.host import gpu_nvml

T = TypeVar("T")

_UUID_BYTES = 16
_PART_BYTES = 1 << 20


class _Info(ctypes.Structure):
    """CUcheckpointCustomStorageInfo."""

    _fields_ = (("handle", ctypes.c_void_p), ("devices", ctypes.c_void_p), ("count", ctypes.c_uint))


class _Device(ctypes.Structure):
    """CUcheckpointCustomStoragePerDeviceData."""

    _fields_ = (("address", ctypes.c_uint64), ("size_bytes", ctypes.c_size_t), ("stream", ctypes.c_void_p))


def checkpoint(cuda: Api, request: Request, store: Vault) -> tuple[Region, ...]:
    """Move the GPU memory of the process into `store`, which was prepared, or into files in `request.folder`, and complete.

    Raises `Refused`.
    """
    sizes = _sizes_on_devices(request.pid)
    is_stored = bool(request.name)
    with _contexts(cuda, frozenset(sizes)), _Rooms(str(request.folder), request.pid) as rooms:
        if is_stored:
            # Files are the way out when the store fails in the middle.
            rooms.require(sum(sizes.values()))
        else:
            for uuid, size_bytes in sizes.items():
                rooms.take(uuid, size_bytes)
        slot = ctypes.c_void_p()
        arguments = cuda.api.CUcheckpointCheckpointArgs()
        arguments.customStorageInfo_out = ctypes.addressof(slot)
        cuda.call("cuCheckpointProcessCheckpoint", request.pid, arguments)
        found, handle = _mapped(cuda, slot)
        kept: tuple[Region, ...] | None = None
        if is_stored:
            with suppress(Refused):
                kept = store.put(cuda, request, found)
        if kept is None:
            for stretch in found:
                rooms.take(stretch.uuid, stretch.size_bytes)
            took_s = _twice(lambda: stretches.each(found, lambda stretch: _into_file(cuda, stretch, rooms.descriptors[stretch.uuid])))
            sizes = {stretch.uuid: stretch.size_bytes for stretch in found}
            kept = rooms.keep(sizes, dict(zip(sizes, took_s, strict=True)))
        # From here on what was copied may be the only copy, whatever the driver says.
        _complete(cuda, handle)
        return kept


def written(folder: str, pid: int) -> tuple[Region, ...]:
    """Return what was written of process `pid`, for when nobody could tell any more: whole, if it is checkpointed now."""
    found = []
    for entry in os.scandir(folder):
        of, _, uuid = entry.name.partition("-")
        if of == str(pid) and uuid:
            is_record = uuid.endswith(vault.ENDING)
            found.append(
                Region(
                    uuid=uuid.removesuffix(vault.ENDING),
                    path=entry.path,
                    size_bytes=0 if is_record else entry.stat(follow_symlinks=False).st_size,
                    kept=Kept.PLACED if is_record else Kept.FILE,
                )
            )
    return tuple(found)


def _complete(cuda: Api, handle: int) -> None:
    """Complete an operation: only this handle leads out of the state."""
    _twice(lambda: cuda.call("cuCheckpointOperationComplete", handle))


def _twice(do: Callable[[], T]) -> T:
    """Do it, and once more when it is refused: there is no way back, so that a trouble that may pass must not be the end."""
    try:
        return do()
    except Refused:
        return do()


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

    def require(self, size_bytes: int) -> None:
        """See that `size_bytes` have room, and take none of it. Raises `Refused`."""
        there = os.statvfs(self._folder)
        if there.f_bavail * there.f_frsize < size_bytes:
            raise Refused(Trouble.FILES, f"no room for {size_bytes} bytes of GPU memory in {self._folder}")

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

    def keep(self, sizes: dict[str, int], took_s: dict[str, float]) -> tuple[Region, ...]:
        """Cut the files to `sizes`, by device, and leave them; the others are removed. Copying each `took_s` seconds."""
        for uuid, size_bytes in sizes.items():
            os.ftruncate(self.descriptors[uuid], size_bytes)
        self._kept = sizes
        return tuple(
            Region(uuid=uuid, path=self._path(uuid), size_bytes=size_bytes, elapsed_s=took_s[uuid]) for uuid, size_bytes in sizes.items()
        )


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
        is_stored = _is_stored(request)
        slot = ctypes.c_void_p()
        arguments.customStorageInfo_out = ctypes.addressof(slot)
        cuda.call("cuCheckpointProcessRestore", request.pid, arguments)
        found, handle = _mapped(cuda, slot)
        wanted = {uuid: region.size_bytes for uuid, region in targets.items()}
        if {stretch.uuid: stretch.size_bytes for stretch in found} != {
            uuid: size_bytes or _size_of(found, uuid) for uuid, size_bytes in wanted.items()
        }:
            raise Refused(Trouble.FILES, "what the driver wants back is not what was saved")
        if is_stored:
            _twice(lambda: vault.restore(cuda, request, found, targets))
        else:
            _twice(lambda: stretches.each(found, lambda stretch: _out_of_file(cuda, stretch, targets[stretch.uuid])))
        _complete(cuda, handle)


def _is_stored(request: Request) -> bool:
    """Tell whether regions come out of a store, which is looked at before the driver is asked. Raises `Refused`."""
    is_stored = any(region.kept is not Kept.FILE for region in request.regions)
    if is_stored:
        with vault.as_refusal(), vault.reading(request):
            pass
    return is_stored


def _size_of(found: tuple[Stretch, ...], uuid: str) -> int:
    return next((stretch.size_bytes for stretch in found if stretch.uuid == uuid), 0)


def _sizes_on_devices(pid: int) -> dict[str, int]:
    """Return how much the process has on each device, never less than what has to be copied: NVML counts the driver's own share too."""
    told = gpu_nvml.ask()
    sizes = amounts.of([pid], told.uses, processes.held([pid]), told.devices)
    return {device.uuid: amounts.at_most(device, sizes) for device in told.devices if device.uuid in sizes.get(pid, {})}


@contextmanager
def _contexts(cuda: Api, uuids: frozenset[str]) -> Iterator[None]:
    """Hold the primary contexts of the devices `uuids`, as custom storage asks for; of all devices, where nobody told which.

    One of them is this thread's meanwhile: without any the driver does not even tell which device a stream belongs to.
    """
    held: list[int] = []
    try:
        for device in range(int(cuda.call("cuDeviceGetCount"))):
            if not uuids or _uuid_of(cuda, device) in uuids:
                cuda.call("cuDevicePrimaryCtxRetain", device)
                held.append(device)
        if held:
            stretches.make_current(cuda, held[0])
        yield
    finally:
        with suppress(Refused):
            cuda.call("cuCtxSetCurrent", None)  # the thread lives on, and the context may not
        for device in held:
            cuda.call("cuDevicePrimaryCtxRelease", device)


def _mapped(cuda: Api, slot: ctypes.c_void_p) -> tuple[tuple[Stretch, ...], int]:
    info = _Info.from_address(slot.value or 0)
    found = []
    for one in (_Device * info.count).from_address(info.devices or 0):
        device = int(cuda.call("cuStreamGetDevice", one.stream or 0))
        found.append(Stretch(device, _uuid_of(cuda, device), one.address, one.size_bytes, one.stream or 0))
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


def _into_file(cuda: Api, stretch: Stretch, descriptor: int) -> float:
    """Write a stretch into a file; returns how many seconds it took until all was off the device. Raises `Refused`."""
    try:
        with Reading(cuda, stretch) as reading:
            for offset, piece in reading.pieces():
                _write_all(descriptor, offset, piece)
            return reading.elapsed_s
    except (OSError, errors.CheckpointFailed) as error:
        raise Refused(Trouble.FILES, f"GPU memory cannot be written: {error}") from error


def _write_all(descriptor: int, offset: int, content: memoryview) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], offset + done)


def _out_of_file(cuda: Api, stretch: Stretch, region: Region) -> None:
    try:
        descriptor = os.open(region.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_size != stretch.size_bytes:
                raise Refused(Trouble.FILES, f"{region.path} has not the size that was saved")
            stretches.write(cuda, stretch, _parts(descriptor))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Refused(Trouble.FILES, f"saved GPU memory cannot be read: {error}") from error


def _parts(descriptor: int) -> Iterator[memoryview]:
    while content := os.read(descriptor, _PART_BYTES):
        yield memoryview(content)
