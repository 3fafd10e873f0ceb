"""Ask NVML about driver and GPUs: run as ``python -m perdure.checkpoint.host.gpu_nvml``, says one JSON document. Called by `gpu`.

With ``--beyond`` it leaves the control group that keeps it from GPUs first.

NVML is NVIDIA's C library of the driver itself, with a stable interface; it is called directly, so that a machine without the extra
`gpu` can be told what it has, and no node needs NumPy for it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from perdure.checkpoint.cuda import restriction
from perdure.checkpoint.cuda.contract import Device, Use
from perdure.checkpoint.host.gpu import NO_LIBRARY, Told, Unread

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_NOT_SUPPORTED = 3
_INSUFFICIENT_SIZE = 7
_TEXT_BYTES = 96
_MOST_PROCESSES = 4096
_VIRTUAL = 2
"""NVML_GPU_VIRTUALIZATION_MODE_VGPU: we are inside a virtual machine that has a part of a GPU."""
_NOT_AVAILABLE = (1 << 64) - 1


class _Memory(ctypes.Structure):
    """nvmlMemory_v2_t: its first field is its own version, made of its size and of 2."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t, as the functions of version 3 fill it."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class RefusedError(Exception):
    """NVML answered with an error; `number` is its own."""

    def __init__(self, function: str, number: int, words: str) -> None:
        super().__init__(f"{function}: {words} ({number})")
        self.number = number


class Nvml:
    """The library, loaded. Raises OSError without it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_LIBRARY)

    def call(self, function: str, *arguments: Any) -> None:
        """Call `function`. Raises `RefusedError` for anything but success; number 13 (not found) for one that this driver lacks."""
        number = self.number(function, *arguments)
        if number != _SUCCESS:
            raise RefusedError(function, number, self.words(number))

    def number(self, function: str, *arguments: Any) -> int:
        """Return what `function` returns."""
        try:
            entry = getattr(self._library, function)
        except AttributeError:
            return 13
        return int(entry(*arguments))

    def words(self, number: int) -> str:
        """Return NVML's words for its error `number`."""
        try:
            entry = self._library.nvmlErrorString
        except AttributeError:
            return "error"
        entry.restype = ctypes.c_char_p
        return bytes(entry(number) or b"error").decode("utf-8", "replace")


def main(arguments: list[str]) -> int:
    """Say what NVML tells. Returns the exit status."""
    if "--beyond" in arguments:
        restriction.leave()
    sys.stdout.buffer.write(msgspec.json.encode(ask()))
    return 0


def ask() -> Told:
    """Load NVML into this process and return what it tells; `Told.refusal` says why it told nothing."""
    try:
        nvml = Nvml()
    except OSError as error:
        return Told(refusal=str(error), refusal_number=NO_LIBRARY if "cannot open shared object file" in str(error) else None)
    try:
        nvml.call("nvmlInit_v2")
        return _told(nvml)
    except RefusedError as error:
        return Told(refusal=str(error), refusal_number=error.number)


def _told(nvml: Nvml) -> Told:
    version = _text(nvml, "nvmlSystemGetDriverVersion")
    cuda = ctypes.c_int()
    nvml.call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
    count = ctypes.c_uint()
    nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    pairs: list[tuple[Device, ctypes.c_void_p]] = []
    unread: list[Unread] = []
    for index in range(count.value):  # also those that are not for this process, or lost: they must not hide the others
        try:
            handle = ctypes.c_void_p()
            nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            pairs.append((_device(nvml, index, handle), handle))
        except RefusedError as error:
            unread.append(Unread(index=index, number=error.number, words=str(error)))
    return Told(
        driver=version,
        cuda=(cuda.value // 1000, cuda.value % 1000 // 10),
        devices=tuple(device for device, _ in pairs),
        unread=tuple(unread),
        uses=tuple(use for device, handle in pairs for use in _uses(nvml, handle, device.uuid)),
        virtual=tuple(device.uuid for device, handle in pairs if _is_virtual(nvml, handle)),
    )


def _text(nvml: Nvml, function: str, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT_BYTES)
    nvml.call(function, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
    return buffer.value.decode("utf-8", "replace")


def _device(nvml: Nvml, index: int, handle: ctypes.c_void_p) -> Device:
    memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
    try:
        nvml.call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory))
    except RefusedError as error:
        if error.number != _NOT_SUPPORTED:
            raise
        # One that has no memory of its own, such as GB10's, is there all the same.
    # What follows is not supported on every GPU: then it is not there.
    major, minor = ctypes.c_int(), ctypes.c_int()
    has_capability = nvml.number("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)) == _SUCCESS
    now, pending = ctypes.c_uint(), ctypes.c_uint()
    is_split = nvml.number("nvmlDeviceGetMigMode", handle, ctypes.byref(now), ctypes.byref(pending)) == _SUCCESS and now.value == 1
    node = ctypes.c_uint()
    is_numbered = nvml.number("nvmlDeviceGetMinorNumber", handle, ctypes.byref(node)) == _SUCCESS
    return Device(
        uuid=_text(nvml, "nvmlDeviceGetUUID", handle),
        index=index,
        model=_text(nvml, "nvmlDeviceGetName", handle),
        memory_bytes=memory.total,
        free_bytes=memory.free,
        capability=f"{major.value}.{minor.value}" if has_capability else "",
        mig=is_split,
        minor=node.value if is_numbered else None,
    )


def _is_virtual(nvml: Nvml, handle: ctypes.c_void_p) -> bool:
    mode = ctypes.c_uint()
    return nvml.number("nvmlDeviceGetVirtualizationMode", handle, ctypes.byref(mode)) == _SUCCESS and mode.value == _VIRTUAL


def _uses(nvml: Nvml, handle: ctypes.c_void_p, uuid: str) -> Iterator[Use]:
    """Yield who has a context on a GPU, as far as this driver tells."""
    for function, by_mps in (("nvmlDeviceGetComputeRunningProcesses_v3", False), ("nvmlDeviceGetMPSComputeRunningProcesses_v3", True)):
        for each in _listed(nvml, handle, function):
            yield Use(uuid=uuid, pid=each.pid, memory_bytes=None if each.used == _NOT_AVAILABLE else each.used, mps=by_mps)


def _listed(nvml: Nvml, handle: ctypes.c_void_p, function: str) -> list[_Process]:
    room = 64
    while room <= _MOST_PROCESSES:
        count = ctypes.c_uint(room)
        found = (_Process * room)()
        number = nvml.number(function, handle, ctypes.byref(count), found)
        if number == _SUCCESS:
            return list(found[: count.value])
        if number != _INSUFFICIENT_SIZE:
            break
        room *= 4  # more began in between
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
