"""Real faults: each is done to a running life, the same way in both arms. Called by `conduct` and by `perdure eval inject`.

What was done is returned as data, the way included where there are several. `lacks` says beforehand what this machine cannot do.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from perdure import errors
from perdure.base.proc import mappings, process
from perdure.evaluation import local, memory_group
from perdure.evaluation.disk import Disk
from perdure.evaluation.local import Processes
from perdure.model.evaluation import FaultKind

AT_ONCE = frozenset({FaultKind.KILL, FaultKind.KILL_TREE, FaultKind.NODE_LOST, FaultKind.HANG, FaultKind.AGENT_KILLED})
"""After these nothing works on: what is read later of its progress was said before."""
SURVIVABLE = frozenset({FaultKind.OUT_OF_MEMORY, FaultKind.DISK_FULL})
"""A workload may get over these."""
ASKED_FIRST = frozenset({FaultKind.PREEMPTION, FaultKind.TIME_LIMIT})
"""These ask with SIGTERM, and SIGKILL follows after the grace time."""

_STOPPED_S = 5.0
_STILL_S = 60.0
"""A large workload stands still for long while it is being saved; only then can it be stopped."""
_AGAIN_S = 0.01


def lacks(kinds: Iterable[FaultKind]) -> Iterator[str]:
    """Yield what forbids one of `kinds` on this machine, one line each."""
    if os.geteuid() == 0:
        return
    for kind in kinds:
        if kind in (FaultKind.NODE_LOST, FaultKind.DISK_FULL):
            yield f"{kind.value} needs root: it takes namespaces or a disk of its own"


def inject(kind: FaultKind, found: Processes, *, node: Callable[[], int], disk: Disk | None) -> dict[str, Any]:
    """Do a fault to the life whose processes are `found`; returns what was done, as data of an event.

    `node` gives the first process of the node and may raise. Raises `errors.ProcessGone` when the workload ended meanwhile, and
    `errors.Unsupported` for what cannot be done to this life.
    """
    if _has_ended(found.main):
        raise errors.ProcessGone(f"the workload ended before {kind.value} reached it")
    match kind:
        case FaultKind.KILL:
            done = _killed((found.main,), f"SIGKILL to process {found.main}")
        case FaultKind.KILL_TREE:
            done = _killed(found.tree, f"SIGKILL to all {len(found.tree)} processes")
        case FaultKind.NODE_LOST:
            done = _killed((node(),), "all processes and the network of a namespace at once")
        case FaultKind.HANG:
            done = _hang(found)
        case FaultKind.AGENT_KILLED:
            done = _kill_agent(found)
        case FaultKind.PREEMPTION | FaultKind.TIME_LIMIT:
            done = _killed((found.top,), f"SIGTERM to process {found.top}", signal.SIGTERM)
        case FaultKind.OUT_OF_MEMORY:
            done = _exhaust_memory(found)
        case FaultKind.DISK_FULL:
            if disk is None:
                raise errors.Unsupported("this life has no disk of its own to fill", hint="name disk-full in faults.kinds before the lock")
            done = f"{disk.fill()} bytes fill the disk at {disk.place}"
    return {"way": done} | ({"comparable": False} if kind is FaultKind.AGENT_KILLED else {})


def _has_ended(pid: int) -> bool:
    """Tell whether a process is over, reaped or not: the kernel takes a signal to a zombie as well."""
    try:
        stat = process.stat(pid)
    except errors.ProcessGone:
        return True
    return stat.is_dead and stat.threads <= 1  # with more, it is the first thread alone that has ended


def _kill_agent(found: Processes) -> str:
    """Kill what keeps the workload; where nobody does, the workload, and the two sides do not compare."""
    if found.supervisor is not None:
        return _killed((found.supervisor,), f"SIGKILL to perdure run, process {found.supervisor}")
    return _killed((found.main,), f"no agent here: SIGKILL to process {found.main}")


def _killed(pids: tuple[int, ...], way: str, number: signal.Signals = signal.SIGKILL) -> str:
    if not local.kill(pids, number):
        raise errors.ProcessGone(f"the workload ended before {number.name} reached it")
    return way


def _hang(found: Processes) -> str:
    """Stop every process, those that are started meanwhile too; nobody is told.

    A signal to stop is lost on a process that is being saved at that moment: whoever traces it takes the signal and lets it go on. So each
    is told again until it is seen to stand still.
    """
    end_s = time.monotonic() + _STILL_S
    while True:
        tree = (found.tree[0], *process.descendants(found.tree[0]))
        going = tuple(pid for pid in tree if not _stands_still(pid))
        if not going:
            return f"SIGSTOP to all {len(tree)} processes"
        if time.monotonic() >= end_s:
            local.kill(tree, signal.SIGCONT)
            raise errors.Unsupported(f"process {going[0]} did not stop within {_STILL_S:g} s: something holds it")
        local.kill(going, signal.SIGSTOP)
        time.sleep(_AGAIN_S)


def _stands_still(pid: int) -> bool:
    """Tell whether a process is stopped, or gone. One that is traced stands still only for as long as its tracer wants."""
    try:
        stat = process.stat(pid)
    except errors.ProcessGone:
        return True
    return stat.is_dead or stat.state == "T"


def _exhaust_memory(found: Processes) -> str:
    """Let the kernel end the workload for want of memory: in a memory cgroup where there is one, else by a limit of address space."""
    try:
        return memory_group.exhaust(found.tree)
    except errors.Unsupported as error:
        reason = str(error)
    return f"{limit_memory(found)} ({reason})"


def limit_memory(found: Processes) -> str:
    """Forbid the workload to grow, so that its own allocations fail; one that needs none gets the signal that the kernel would send.

    What is done where no memory cgroup can be had; returns in words what it was.
    """
    for pid in found.tree:
        with contextlib.suppress(ProcessLookupError, errors.ProcessGone):
            used = process.stat(pid).virtual_bytes
            resource.prlimit(pid, resource.RLIMIT_AS, (used, used))
    end_s = time.monotonic() + _STOPPED_S
    main = os.pidfd_open(found.main)
    try:
        waiting = select.poll()
        waiting.register(main, select.POLLIN)
        if waiting.poll(max(0.0, end_s - time.monotonic()) * 1000):
            return "RLIMIT_AS at what it has: an allocation failed, and it ended"
        largest = max(found.tree, key=_resident_bytes)
        local.kill((largest,))
        return f"RLIMIT_AS at what it has, which it survived; then SIGKILL to the largest process, {largest}"
    finally:
        os.close(main)


def _resident_bytes(pid: int) -> int:
    try:
        return mappings.usage(pid).resident_bytes
    except (errors.ProcessGone, errors.InputDenied):
        return -1


def disk_place(disk_path: str | None, working_directory: str, raw: Path) -> Path:
    """Return where the disk of a run is mounted: where the plan says, else a folder of the run's own, which becomes its TMPDIR."""
    return Path(os.path.join(working_directory, disk_path)) if disk_path else raw / "disk"
