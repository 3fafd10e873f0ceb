"""Who in a tree has CUDA, and who holds a device of NVIDIA's driver. Called by `session` and by preflight.

Only what is found here is ever given to the driver: a PID that is none of a thread group's leader, or a process without CUDA, can be
killed by being asked about.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator

from perdure import errors
from perdure.base.proc import descriptors, mappings, process, reading
from perdure.checkpoint.cuda.contract import CudaProcess, HeldDevice

_LIBRARY = "libcuda.so"
_DEVICE = re.compile(r"/dev/nvidia(?:\d+|ctl|-uvm|-uvm-tools|-modeset|-nvswitch[^/]*|-caps/[^/]+|-caps-imex-channels/[^/]+)")
"""Device files of NVIDIA's driver; with another root before them where the tree lives in a container that is seen from outside."""


def find(pids: Iterable[int]) -> tuple[CudaProcess, ...]:
    """Return those of the processes `pids` that have CUDA loaded; ones that end meanwhile are left out.

    Whether such a process uses it the driver tells: one that only loaded it, or was forked from one that uses it, has no state.
    Raises `errors.InputDenied`.
    """
    found = []
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            if has_cuda(pid):
                stat = process.stat(pid)
                if not stat.is_dead:
                    inner_pid = process.status(pid).inner_pid
                    found.append(CudaProcess(pid=pid, start_ticks=stat.start_ticks, inner_pid=inner_pid, command=stat.command))
    return tuple(found)


def has_cuda(pid: int) -> bool:
    """Tell whether `pid` leads a thread group and has the driver's library mapped. Raises `errors.ProcessGone`, `errors.InputDenied`."""
    if reading.fields(reading.content(pid, "status")).get("Tgid") != str(pid):
        return False
    return any(os.path.basename(found.path).startswith(_LIBRARY) for found in mappings.parse(reading.content(pid, "maps")))


def is_same(pid: int, start_ticks: int) -> bool:
    """Tell whether process `pid` is the one that started at `start_ticks`, lives, and has CUDA loaded.

    One that was killed lives no more, though it takes the kernel a while to end it: what the driver killed would be seen to run.
    """
    try:
        stat = process.stat(pid)
        is_ending = stat.is_dead or stat.is_exiting or process.status(pid).is_killed
        return stat.start_ticks == start_ticks and not is_ending and has_cuda(pid)
    except errors.ProcessGone:
        return False


def is_initialised(pid: int) -> bool:
    """Tell whether process `pid` can have CUDA of its own: initialised, it has a thread of the driver's that carries out what is asked.

    One that was forked, or only loaded the library, has none unless it started threads itself. Raises `errors.ProcessGone`.
    """
    return len(process.threads(pid)) > 1


def held(pids: Iterable[int]) -> tuple[HeldDevice, ...]:
    """Return the devices of NVIDIA's driver that the processes `pids` have open or mapped. Raises `errors.InputDenied`."""
    found: list[HeldDevice] = []
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            found += _held(pid)
    return tuple(found)


def is_device(path: str) -> bool:
    """Tell whether `path` ends in the name of a device of NVIDIA's driver."""
    at = path.rfind("/dev/nvidia")
    return at >= 0 and _DEVICE.fullmatch(path, at) is not None


def _held(pid: int) -> Iterator[HeldDevice]:
    command = process.stat(pid).command
    for number in descriptors.numbers(pid):
        opened = descriptors.one(pid, number)
        if opened is not None and is_device(opened.target):
            yield HeldDevice(pid=pid, command=command, path=opened.target, fd=number)
    seen: set[str] = set()
    for mapping in mappings.parse(reading.content(pid, "maps")):
        if is_device(mapping.path) and mapping.path not in seen:
            seen.add(mapping.path)
            yield HeldDevice(pid=pid, command=command, path=mapping.path, fd=None)
