"""Our own stdout and stderr, where they are files: brought back to the checkpoint as the workload's own files are. Called by `start`.

``perdure run … > out`` again finds a file that the shell emptied: what was written until the checkpoint is put back. ``>> out`` finds one
that also holds what was written after the checkpoint: it is cut. Everything comes from, and is still in, the console's log.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from perdure.base import units
from perdure.supervisor import log
from perdure.supervisor.record import Target
from perdure.supervisor.wiring import Plan

_COMPARED_BYTES = 1 << 16


def streams(plan: Plan) -> dict[int, frozenset[int]]:
    """Return which streams of the log each of our descriptors is given."""
    if not plan.passed_on or plan.terminal:
        return {}
    return {1: frozenset({1, 2})} if plan.one_output else {1: frozenset({1}), 2: frozenset({2})}


def targets(plan: Plan) -> tuple[Target, ...]:
    """Return what our descriptors lead to at the start of a workload, as far as those are regular files."""
    found = (_target(descriptor) for descriptor in streams(plan))
    return tuple(target for target in found if target is not None)


def give_back(path: Path, size_bytes: int, descriptor: int, wanted: frozenset[int], known: Target | None) -> tuple[Target | None, str]:
    """Bring the file at `descriptor` to what the streams `wanted` wrote in the first `size_bytes` of the log at `path`.

    `known` is what it led to before. Returns what it leads to now, None for no file or one whose content is somebody else's, and what was
    done in words; empty: nothing. A file that holds something else is left alone.
    """
    here = _target(descriptor)
    if here is None:
        return None, ""
    expected = log.stream_bytes(path, size_bytes, wanted)
    there = os.fstat(descriptor).st_size
    if there == 0:
        if expected:
            log.copy_stream(path, size_bytes, wanted, descriptor)
        return _from(here, 0), f"{units.format_size(expected)} of earlier output put back" if expected else ""
    if known is None or (known.device, known.inode) != (here.device, here.inode) or there < known.start_bytes + expected:
        return None, ""
    end = known.start_bytes + expected
    if not _ends_with(descriptor, end, path, size_bytes, wanted):
        return None, ""
    if there > end:
        os.ftruncate(descriptor, end)
    os.lseek(descriptor, end, os.SEEK_SET)
    return _from(here, known.start_bytes), f"{units.format_size(there - end)} written after the checkpoint cut off" if there > end else ""


def _ends_with(descriptor: int, end: int, path: Path, size_bytes: int, wanted: frozenset[int]) -> bool:
    """Tell whether the file holds, before `end`, what the log says last of the streams `wanted`."""
    expected = log.last_of_streams(path, size_bytes, wanted, _COMPARED_BYTES)
    # It may have been opened for writing alone.
    with open(f"/proc/self/fd/{descriptor}", "rb", buffering=0) as handle:
        return os.pread(handle.fileno(), len(expected), end - len(expected)) == expected


def _target(descriptor: int) -> Target | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Target(descriptor=descriptor, device=found.st_dev, inode=found.st_ino, start_bytes=found.st_size)


def _from(target: Target, start_bytes: int) -> Target:
    return Target(descriptor=target.descriptor, device=target.device, inode=target.inode, start_bytes=start_bytes)
