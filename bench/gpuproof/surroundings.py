"""What is around the proof: rights, limits, devices, room. It goes into the report, since a failure on a machine nobody can look at again
is told from a limit of its container by this alone.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.metadata
import os
import resource
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from perdure import errors
from perdure.base import privileges
from perdure.base.proc import mounts
from perdure.checkpoint.cuda.helper import Helper
from perdure.checkpoint.preflight import gpu_room

_WANTED = (
    "CAP_SYS_ADMIN",
    "CAP_SYS_PTRACE",
    "CAP_SYS_RESOURCE",
    "CAP_CHECKPOINT_RESTORE",
    "CAP_NET_ADMIN",
    "CAP_IPC_LOCK",
    "CAP_SETPCAP",
    "CAP_SYS_CHROOT",
)
_SMI = ("nvidia-smi", "--query-gpu=name,driver_version,persistence_mode,compute_mode,mig.mode.current,pci.bus_id", "--format=csv,noheader")
_SMI_S = 60.0
_FILES = {
    "kernel": "/proc/version",
    "driver": "/proc/driver/nvidia/version",
    "ptrace_scope": "/proc/sys/kernel/yama/ptrace_scope",
    "control_groups": "/proc/self/cgroup",
    "system": "/etc/os-release",
}


def look(folder: Path) -> dict[str, Any]:
    """Return what there is, as far as this process may see it. `folder` is where the proof works. Nothing is raised for what is missing."""
    status = _status()
    return {
        "lacks": list(privileges.missing(_WANTED)),
        "seccomp": status.get("Seccomp", ""),
        "no_new_privileges": status.get("NoNewPrivs", ""),
        "is_container": any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))) or "container" in os.environ,
        "own_pid_namespace": status.get("NSpid", ""),
        "locked_memory_limit_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "memory_left_bytes": gpu_room.free_bytes(os.getpid()),
        "places": [_place(path) for path in (str(folder), "/dev/shm", "/tmp", "/var/tmp", "/run")],
        "devices": _devices(),
        "visible": {name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "NVIDIA_"))},
        "nvidia_smi": _smi(),
        "driver_says": _driver(),
        **{name: _text(path) for name, path in _FILES.items()},
    }


def _status() -> dict[str, str]:
    lines = _text("/proc/self/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text("utf-8", "replace").strip()
    return ""


def _place(path: str) -> dict[str, Any]:
    found: dict[str, Any] = {"path": path}
    with contextlib.suppress(OSError):
        there = os.statvfs(path)
        found |= {"free_bytes": there.f_bavail * there.f_frsize, "no_programs": bool(there.f_flag & os.ST_NOEXEC)}
        mount = mounts.covering(os.path.realpath(path), mounts.of(os.getpid()))
        found["kind"] = mount.kind if mount else ""
    return found


def _devices() -> list[str]:
    found = []
    for path in sorted([*glob.glob("/dev/nvidia*"), *glob.glob("/dev/nvidia-caps/*"), *glob.glob("/dev/infiniband/*")]):
        with contextlib.suppress(OSError):
            there = os.stat(path)
            where = f" {os.major(there.st_rdev)}:{os.minor(there.st_rdev)}" if stat.S_ISCHR(there.st_mode) else ""
            found.append(f"{path} {stat.filemode(there.st_mode)}{where}")
    return found


def _driver() -> dict[str, Any]:
    """Return what the driver itself says that it can do, and what asks it."""
    found: dict[str, Any] = {}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["bindings"] = importlib.metadata.version("cuda-bindings")
    with Helper() as helper:
        try:
            return found | msgspec.to_builtins(helper.facts().driver)
        except errors.GpuUnavailable as error:
            return found | {"refused": str(error)}


def _smi() -> str:
    if shutil.which(_SMI[0]) is None:
        return "there is none"
    try:
        done = subprocess.run(_SMI, capture_output=True, text=True, errors="replace", timeout=_SMI_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}"
    return (done.stdout + done.stderr).strip()[-2000:]
