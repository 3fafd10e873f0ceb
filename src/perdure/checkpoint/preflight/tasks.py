"""What a thread or a process has apart from its likes, and where it stands: asked of the kernel, one by one. Called by `reading`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterable

import msgspec

from perdure.base.proc import process
from perdure.checkpoint.preflight.scene import Member, Thread

_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_VM, _KCMP_FILES, _KCMP_FS = 1, 2, 3

_NAMESPACES = ("mnt", "net", "user", "uts", "ipc", "cgroup", "time")


def threads(pid: int) -> Iterable[Thread]:
    for tid in process.threads(pid):
        if tid == pid:
            yield Thread(tid, _policy(tid), own_files=False, own_directory=False, own_namespaces=())
            continue
        own = []
        for kind in _NAMESPACES:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/task/{tid}/ns/{kind}") != os.readlink(f"/proc/{pid}/ns/{kind}"):
                    own.append(kind)
        yield Thread(
            tid,
            _policy(tid),
            own_files=_differ(pid, tid, _KCMP_FILES),
            own_directory=_differ(pid, tid, _KCMP_FS),
            own_namespaces=tuple(own),
        )


def _policy(tid: int) -> int:
    try:
        return os.sched_getscheduler(tid) & ~os.SCHED_RESET_ON_FORK
    except OSError:
        return os.SCHED_OTHER


def _kcmp(first: int, second: int, kind: int) -> int | None:
    """Compare what two tasks have of one kind: 0 is the same thing, None: the kernel does not tell."""
    number = _KCMP.get(platform.machine())
    if number is None:
        return None
    answer = ctypes.CDLL(None).syscall(number, first, second, kind, 0, 0)
    return int(answer) if answer >= 0 else None


def _differ(first: int, second: int, kind: int) -> bool:
    answer = _kcmp(first, second, kind)
    return answer is not None and answer != 0


def tell_shared_memory(members: list[Member]) -> None:
    """Mark those who share their memory with their parent."""
    known = {member.pid for member in members}
    for number, member in enumerate(members):
        parent = member.stat.parent
        if parent in known and not member.is_dead and _kcmp(member.pid, parent, _KCMP_VM) == 0:
            members[number] = msgspec.structs.replace(member, shares_memory_with=parent)


def can_make_folder(pid: int) -> bool:
    """Tell whether root can make a folder in the working directory of `pid`: not where it is read-only or of /proc, nor where an NFS
    server takes root for nobody.
    """
    try:
        there = os.statvfs(f"/proc/{pid}/cwd")
    except OSError:
        return True
    return bool(there.f_blocks or there.f_files) and os.access(f"/proc/{pid}/cwd", os.W_OK | os.X_OK)


def is_frozen(pid: int) -> bool:
    """Tell whether a cgroup of `pid`, of either version, is frozen."""
    for hierarchy, path in process.cgroups(pid).items():
        controllers = hierarchy.split(",")
        places = (
            [f"/sys/fs/cgroup/freezer{path}/freezer.state"]
            if "freezer" in controllers
            else [f"/sys/fs/cgroup{path}/cgroup.events", f"/sys/fs/cgroup/unified{path}/cgroup.events"]
            if not hierarchy
            else []
        )
        for place in places:
            try:
                with open(place, "rb") as handle:
                    said = handle.read(4096)
            except OSError:
                continue
            if said.startswith((b"FROZEN", b"FREEZING")) or b"frozen 1" in said:
                return True
    return False
