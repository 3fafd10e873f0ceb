"""How much memory a process could still take: what the machine has free, within the limits of its control groups. Called by `gpu_reading`.

GPU memory is moved into the memory of the process that owns it. In a job with a memory limit it is that limit that counts: beyond it
the kernel ends the workload.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from perdure.base.proc import machine, process

_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED_BYTES = 1 << 60
"""Without a limit, version 1 shows the largest number of pages."""


def free_bytes(pid: int, *, root: Path = _ROOT) -> int:
    """Return the bytes that process `pid` could still take. `root` is where control groups are mounted.

    Raises `errors.ProcessGone`, and `errors.EnvironmentUnfit` without /proc.
    """
    return min(machine.memory().available_bytes, *(left for left in _left(process.cgroups(pid), root)), _UNLIMITED_BYTES)


def _left(groups: dict[str, str], root: Path) -> Iterator[int]:
    """Yield what each control group with a limit, from the process's own upwards, leaves."""
    for controllers, path in groups.items():
        if not controllers:
            tops = [
                (root, "memory.max", "memory.current", "inactive_file"),
                (root / "unified", "memory.max", "memory.current", "inactive_file"),
            ]
        elif "memory" in controllers.split(","):
            tops = [(root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")]
        else:
            continue
        for top, limit_name, usage_name, inactive in tops:
            folder = Path(os.path.normpath(f"{top}/{path}"))
            while folder == top or top in folder.parents:
                limit, usage = _number(folder / limit_name), _number(folder / usage_name)
                if limit is not None and usage is not None and limit < _UNLIMITED_BYTES:
                    # Pages of files that nobody uses make room by themselves.
                    yield max(limit - usage + _of(folder / "memory.stat", inactive), 0)
                folder = folder.parent


def _number(path: Path) -> int | None:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() else None


def _of(path: Path, name: str) -> int:
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return 0
    found = [words[1] for line in lines if len(words := line.split()) == 2 and words[0] == name and words[1].isdigit()]
    return int(found[0]) if found else 0
