"""Facts about this machine and this process. Gathering them changes nothing but the marks of this process's own memory."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import shutil
import subprocess
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import privileges
from perdure.checkpoint import views
from perdure.checkpoint.criu import netlock


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about this machine and this process. Sizes in bytes; None means *not known*."""

    root: bool
    missing_capabilities: tuple[str, ...]
    kernel: str
    architecture: str
    checkpoint_restore: bool
    """The kernel has CONFIG_CHECKPOINT_RESTORE: ns_last_pid and map_files are there."""
    namespaces: tuple[str, ...]
    """Kinds of namespaces that the kernel has."""
    isolates: bool | None
    """A PID and an IPC namespace can be made; None: not tried, for lack of root."""
    isolates_network: bool | None
    own_proc: str
    """Whether workloads have a /proc of their own here: ``yes``, ``forbidden`` (nothing may be mounted), ``failed``; empty: not tried."""
    missing_programs: tuple[str, ...]
    soft_dirty: bool
    userfaultfd: bool
    io_uring: str
    """``yes``, ``no``, or ``restricted`` to a group."""
    ptrace_scope: int
    seccomp: int
    """0 none, 1 strict, 2 filter."""
    apparmor: str
    """Confining profile, or an empty text."""
    container: str
    """Kind of container this seems to be in, or an empty text."""
    memory_available: int | None
    memory_limit: int | None
    shm_free: int | None
    state: str
    state_writable: bool
    state_free: int | None
    locks: tuple[str, ...]
    """Tables of nftables with which a CRIU holds connections still."""


def look(state: Path) -> Machine:
    """Gather the facts; `state` is the state folder, which need not exist yet."""
    root = privileges.is_root()
    place = next(folder for folder in (state, *state.parents) if folder.exists())
    return Machine(
        root=root,
        missing_capabilities=privileges.missing(("CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_SYS_RESOURCE")),
        kernel=platform.release(),
        architecture=platform.machine(),
        checkpoint_restore=Path("/proc/sys/kernel/ns_last_pid").exists() and Path("/proc/self/map_files").exists(),
        namespaces=tuple(sorted(path.name for path in Path("/proc/self/ns").iterdir())),
        isolates=_can_unshare("--pid", "--ipc", "--fork") if root else None,
        isolates_network=_can_unshare("--pid", "--ipc", "--fork", "--net", "--mount") if root else None,
        own_proc=_own_proc() if root else "",
        missing_programs=tuple(name for name in ("unshare", "setsid") if shutil.which(name) is None),
        soft_dirty=_has_soft_dirty(),
        userfaultfd=Path("/proc/sys/vm/unprivileged_userfaultfd").exists(),
        io_uring=_io_uring(),
        ptrace_scope=int(_text("/proc/sys/kernel/yama/ptrace_scope") or 0),
        seccomp=int(_status().get("Seccomp", "0")),
        apparmor=_apparmor(),
        container=_container(),
        memory_available=_memory_available(),
        memory_limit=_memory_limit(),
        shm_free=_free("/dev/shm"),  # noqa: S108 - a file system is asked for its room
        state=str(state),
        state_writable=os.access(place, os.W_OK | os.X_OK),
        state_free=_free(str(place)),
        locks=netlock.tables() if root else (),
    )


def _can_unshare(*options: str) -> bool:
    try:
        return subprocess.run(["unshare", *options, "true"], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _own_proc() -> str:
    """Make the mounts of a workload, as at each start of one."""
    try:
        with views.View() as view:
            return "forbidden" if view.namespace is None else "yes"
    except (errors.EnvironmentUnfit, OSError):
        return "failed"


def _has_soft_dirty() -> bool:
    """Write to a page of our own after clearing the marks, and look whether it is marked."""
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as page, open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            page[0] = 1
            with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
                clear.write("4")
            page[0] = 2
            address = _address(page)
            pagemap.seek(address // mmap.PAGESIZE * 8)
            return bool(int.from_bytes(pagemap.read(8), "little") >> 55 & 1)
    except OSError:
        return False


def _address(page: mmap.mmap) -> int:
    cell = ctypes.c_char.from_buffer(page)
    try:
        return ctypes.addressof(cell)
    finally:
        del cell  # the mapping cannot be closed while it is referred to


def _io_uring() -> str:
    setting = _text("/proc/sys/kernel/io_uring_disabled")
    if setting is None:
        # Kernels before 6.6 have no such setting; /proc/kallsyms may not be readable by all.
        return "yes"
    return {"0": "yes", "1": "restricted"}.get(setting, "no")


def _status() -> dict[str, str]:
    pairs = (line.partition(":") for line in (_text("/proc/self/status") or "").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _apparmor() -> str:
    for path in ("/proc/self/attr/apparmor/current", "/proc/self/attr/current"):
        profile = _text(path)
        if profile is not None:
            return "" if profile.startswith("unconfined") or not profile else profile
    return ""


def _container() -> str:
    if Path("/.dockerenv").exists():
        return "Docker"
    if Path("/run/.containerenv").exists():
        return "Podman"
    named = _text("/run/systemd/container")
    if named:
        return named
    return "Kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else ""


def _memory_available() -> int | None:
    for line in (_text("/proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _memory_limit() -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        value = _text(path)
        # Without a limit, version 1 shows the largest number of pages.
        if value is not None and value.isdigit() and int(value) < 1 << 60:
            return int(value)
    return None


def _free(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _text(path: str) -> str | None:
    with contextlib.suppress(OSError):
        return Path(path).read_text("utf-8", "replace").strip("\0\n ")
    return None
