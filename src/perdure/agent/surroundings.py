"""What a process stands in: control groups, limits, priority, processors. Taken from a caller, and put on by the seat that acts for it.

A seat that an agent starts is no child of the caller: without this it would run outside the caller's job, and with root's limits. Called
by the agent's worker, before anything of the user's is read.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec

from perdure import errors
from perdure.agent import caller as callers
from perdure.agent.caller import Caller
from perdure.base.proc import mounts, process

_NAMESPACES = {"mnt": "sees other mounts", "pid": "sees other processes", "net": "is in another network", "user": "is in a user namespace"}
_POLICIES = frozenset({os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE})
_WORSE_FIRST = (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE)

_LIMITS = {
    "Max address space": resource.RLIMIT_AS,
    "Max core file size": resource.RLIMIT_CORE,
    "Max cpu time": resource.RLIMIT_CPU,
    "Max data size": resource.RLIMIT_DATA,
    "Max file size": resource.RLIMIT_FSIZE,
    "Max locked memory": resource.RLIMIT_MEMLOCK,
    "Max msgqueue size": resource.RLIMIT_MSGQUEUE,
    "Max nice priority": resource.RLIMIT_NICE,
    "Max open files": resource.RLIMIT_NOFILE,
    "Max processes": resource.RLIMIT_NPROC,
    "Max pending signals": resource.RLIMIT_SIGPENDING,
    "Max realtime priority": resource.RLIMIT_RTPRIO,
    "Max realtime timeout": resource.RLIMIT_RTTIME,
    "Max stack size": resource.RLIMIT_STACK,
}
"""By the kernel's name in /proc/PID/limits: prlimit(2) asks even root for CAP_SYS_RESOURCE."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Those of one process at one moment."""

    cgroups: dict[str, str]
    """Path by hierarchy, as /proc/PID/cgroup shows it."""
    limits: tuple[tuple[int, int, int], ...]
    """Resource, soft and hard limit."""
    nice: int
    policy: int
    processors: frozenset[int]
    oom_score: int


def of(caller: Caller) -> Surroundings:
    """Return the surroundings of the process of `caller`.

    Raises `errors.AgentUnavailable` when it is gone, and `errors.Unsupported` when it is confined in a way that a seat could not share.
    """
    if caller.pidfd is None:
        raise _gone()
    pid = caller.pid
    try:
        _require_own(caller)
        _require_shareable(pid)
        found = Surroundings(
            cgroups=process.cgroups(pid),
            limits=tuple(_limits(process.limits(pid))),
            nice=os.getpriority(os.PRIO_PROCESS, pid),
            policy=os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK,
            processors=frozenset(os.sched_getaffinity(pid)),
            oom_score=int(Path(f"/proc/{pid}/oom_score_adj").read_text("ascii")),
        )
        _require_own(caller)
    except (errors.ProcessGone, OSError) as error:
        raise _gone() from error
    # What was read under this PID was the caller's, since the caller still has it.
    if not callers.is_alive(caller.pidfd):
        raise _gone()
    return found


def _limits(shown: dict[str, tuple[int | None, int | None]]) -> Iterator[tuple[int, int, int]]:
    for name, number in _LIMITS.items():
        if name in shown:
            soft, hard = (resource.RLIM_INFINITY if one is None else one for one in shown[name])
            yield number, soft, hard


def _gone() -> errors.AgentUnavailable:
    return errors.AgentUnavailable("the process that asks cannot be seen", hint="ask from a process that waits for the answer")


def _require_own(caller: Caller) -> None:
    """Refuse a process that has become another's program since it connected: sudo, say, which has limits that its user has not."""
    if caller.uid == 0:
        return
    status = process.status(caller.pid)
    if set(status.uids) != {caller.uid} or status.capabilities:
        raise errors.Unsupported(
            "the process that asks has other rights than its user: its workload would get what that may do",
            hint="ask from a process that stays what it is until it is answered",
        )


def _require_shareable(pid: int) -> None:
    """Refuse a caller whose confinement its workload would get rid of."""
    theirs, ours = process.namespaces(pid), process.namespaces(os.getpid())
    for kind, words in _NAMESPACES.items():
        if theirs.get(kind) != ours.get(kind):
            raise errors.Unsupported(
                f"the process that asks {words}: its workload would run outside that", hint="ask from outside the container"
            )
    if os.stat(f"/proc/{pid}/root").st_ino != os.stat("/").st_ino or os.stat(f"/proc/{pid}/root").st_dev != os.stat("/").st_dev:
        raise errors.Unsupported("the process that asks is in a chroot: its workload would run outside that", hint="ask from outside it")
    confined, free = _confinement(pid), _confinement(os.getpid())
    if confined[0] > free[0] or confined[1] > free[1]:
        raise errors.Unsupported(
            "the process that asks is confined by seccomp or no_new_privs: its workload would not be", hint="ask from outside the sandbox"
        )
    if free[2] & ~confined[2]:
        raise errors.Unsupported(
            "the process that asks has a smaller capability bounding set: its workload would not have it",
            hint="ask from outside the sandbox",
        )
    theirs_label, our_label = _label(pid), _label(os.getpid())
    if theirs_label != our_label and not _is_free(theirs_label):
        raise errors.Unsupported(
            f"the process that asks is confined as {theirs_label}: its workload would not be", hint="ask from outside that confinement"
        )


def _label(pid: int) -> str:
    """Return what the kernel's security module calls the process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/attr/current").read_text("utf-8", "replace").strip("\0\n ")
    except OSError:  # there is no module that has such names
        return ""


_FREE_TYPES = frozenset({"unconfined_t", "unconfined_service_t", "initrc_t", "spc_t"})
"""Types of SELinux that are allowed everything."""


def _is_free(label: str) -> bool:
    """Tell whether `label` confines nothing: by AppArmor (``unconfined``, ``NAME (complain)``) or SELinux (``user:role:type:level``)."""
    parts = label.split(":")
    if len(parts) >= 3:
        return parts[2] in _FREE_TYPES
    return label in {"", "unconfined"} or label.endswith((" (unconfined)", " (complain)"))


def _confinement(pid: int) -> tuple[int, int, int]:
    """Return whether no_new_privs is set, how many seccomp filters there are (1 where the kernel does not count them), and CapBnd."""
    found = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines() if ":" in line)
    filters = found.get("Seccomp_filters", found.get("Seccomp", "0"))
    return int(found.get("NoNewPrivs", "0")), int(filters), int(found.get("CapBnd", "0"), 16)


def put_on(wanted: Surroundings) -> None:
    """Put this process into `wanted`: what it starts then is there too. Its own limits stay, since it has root's work to do.

    Raises `errors.EnvironmentUnfit` when a control group cannot be entered.
    """
    _enter(wanted.cgroups)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(wanted.nice, os.getpriority(os.PRIO_PROCESS, 0)))
    if wanted.policy in _POLICIES and _WORSE_FIRST.index(wanted.policy) > 0:
        os.sched_setscheduler(0, wanted.policy, os.sched_param(0))
    with contextlib.suppress(OSError):  # processors that a cpuset took away since
        os.sched_setaffinity(0, wanted.processors)
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        score.write_text(str(max(wanted.oom_score, int(score.read_text("ascii")))), "ascii")


def _enter(wanted: dict[str, str]) -> None:
    own = process.cgroups(os.getpid())
    points = {_hierarchy(mount): mount for mount in reversed(mounts.of(os.getpid())) if mount.kind in {"cgroup", "cgroup2"}}
    for hierarchy, path in wanted.items():
        if own.get(hierarchy) == path:
            continue
        mount = points.get(_key(hierarchy))
        if mount is None or ".." in path.split("/") or not _is_below(path, mount.root):
            raise _no_entry(path, "it is not to be seen from here")
        inside = path if mount.root == "/" else path[len(mount.root) :]
        try:
            with open(f"{mount.point}{inside}/cgroup.procs", "w", encoding="ascii") as handle:
                handle.write("0")
        except OSError as error:
            raise _no_entry(path, error.strerror or "it refuses") from error


def _is_below(path: str, root: str) -> bool:
    return root in {"/", path} or path.startswith(f"{root}/")


def _key(hierarchy: str) -> frozenset[str]:
    """Return the controllers of a hierarchy as /proc/PID/cgroup names it; none for the unified one."""
    return frozenset(hierarchy.split(",")) if hierarchy else frozenset()


def _hierarchy(mount: mounts.Mount) -> frozenset[str]:
    """Return the same from a mount: controllers stand among its options, beside those that every file system has."""
    if mount.kind == "cgroup2":
        return frozenset()
    return frozenset(
        option
        for option in mount.super_options
        if option not in {"rw", "ro", "xattr", "noprefix", "clone_children"} and not _is_agent(option)
    )


def _is_agent(option: str) -> bool:
    return option.startswith("release_agent=")


def _no_entry(path: str, why: str) -> errors.EnvironmentUnfit:
    return errors.EnvironmentUnfit(
        f"cannot enter the control group {path} of the process that asks: {why}", hint="the workload would run outside of its limits"
    )
