"""Which devices a process may keep open while it is saved: the ones that CRIU opens again by their path. Pure.

CRIU decides by the device number: memory-like devices, terminals, and the control device of autofs; anything else has a state that it
does not know.
"""

from __future__ import annotations

import os

PTMX = os.makedev(5, 2)
_MEMORY_MAJOR = 1
_TERMINAL_MAJORS = frozenset({4, 5, 128, *range(136, 144), 188, 204})
"""Virtual and serial terminals, /dev/tty and the console, pseudo terminals, USB and low-density serial lines (linux: devices.txt)."""

_PSEUDO_TERMINAL_MAJORS = range(136, 144)
_AUTOFS = os.makedev(10, 235)
_TUN = os.makedev(10, 200)
_RDMA_MAJOR = 231

_GPU_PATHS = ("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/dxg", "/dev/accel/", "/dev/habana")
_RDMA_PATHS = ("/dev/infiniband/", "/dev/hfi1", "/dev/efa", "/dev/cxi")


def terminal_index(number: int) -> int | None:
    """Return N of the device number of /dev/pts/N; None for any other device."""
    major = os.major(number)
    return (major - _PSEUDO_TERMINAL_MAJORS.start) * 256 + os.minor(number) if major in _PSEUDO_TERMINAL_MAJORS else None


def external_name(number: int, file_system: int) -> str:
    """Return CRIU's name of a terminal with device number `number` on the file system (devpts) with number `file_system`."""
    return f"tty[{number:x}:{file_system:x}]"


def code_of_path(path: str) -> str:
    """Return the code of the finding for the device at `path` that cannot be saved."""
    if path.startswith(_GPU_PATHS):
        return "file-gpu-device"
    return "file-rdma-device" if path.startswith(_RDMA_PATHS) else "file-device"


def code_of(number: int, path: str, *, is_block: bool) -> str | None:
    """Return the code of the finding for an open device, or None for one that is saved by its path."""
    major = os.major(number)
    if is_block:
        return "file-device"
    if major in _TERMINAL_MAJORS or major == _MEMORY_MAJOR or number == _AUTOFS:
        return None
    if number == _TUN:
        return "file-tun-device"
    return "file-rdma-device" if major == _RDMA_MAJOR else code_of_path(path)
