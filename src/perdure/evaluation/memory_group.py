"""Exhaust the memory of a workload as the kernel sees it: in a memory cgroup, version 1 or 2. Called by `faults`.

The tree is put into a group with little room, which counts only what is allocated from then on; a process of ours in that group takes the
room, and the kernel ends the largest process of the workload, which was made its first choice.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base.proc import mounts, process

_ROOM_BYTES = 16 << 20
_STEP_BYTES = 1 << 20
_ENDED_S = 20.0
# What it takes lies in a file in memory, which is its group's and no part of its own size: the kernel ends what is largest by size and
# bias, and the bias is worth no more than the room.
_TAKER = (
    "import os, sys\nopen('/proc/self/oom_score_adj', 'w').write('0')\nfile = os.memfd_create('taken')\nsys.stdin.readline()\n"
    f"while True:\n    os.write(file, b'x' * {_STEP_BYTES})\n"
)


class _Group(msgspec.Struct, frozen=True):
    path: Path
    version: int

    @property
    def limit(self) -> Path:
        return self.path / ("memory.max" if self.version == 2 else "memory.limit_in_bytes")


def exhaust(tree: tuple[int, ...]) -> str:
    """Exhaust the memory of the processes `tree`, the main one among them; returns in words what was done.

    Raises `errors.Unsupported` when no memory cgroup can be made here: nothing was done then. Raises `errors.ProcessGone`.
    """
    group = _make(tree[0])
    try:
        _enter(group, tree)
        try:
            group.limit.write_text(str(_ROOM_BYTES))
        except OSError as error:
            raise errors.Unsupported(f"its memory cgroup takes no limit: {error.strerror}") from error
        for pid in tree:
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", _TAKER], stdin=subprocess.PIPE, start_new_session=True) as taker:
            try:
                (group.path / "cgroup.procs").write_text(str(taker.pid))
                if taker.stdin is not None:
                    taker.stdin.write(b"go\n")
                    taker.stdin.flush()
                ended = _await_end(tree, taker)
            finally:
                taker.kill()
        if not ended:
            raise errors.Unsupported("the kernel ended nothing of the workload for want of memory")
        return f"memory cgroup of version {group.version}: its limit was reached, and the kernel's OOM killer ended {ended} processes"
    finally:
        _remove(group, tree)


def _make(pid: int) -> _Group:
    """Make a group below the one that process `pid` is in."""
    joined = process.cgroups(pid)
    for mount in mounts.of(os.getpid()):
        if mount.kind == "cgroup2" and "" in joined and _has_memory(Path(mount.point)):
            where, version = joined[""], 2
        elif mount.kind == "cgroup" and "memory" in mount.super_options and "memory" in joined:
            where, version = joined["memory"], 1
        else:
            continue
        inside = os.path.relpath(where, mount.root) if where.startswith(mount.root) else "."
        above = Path(os.path.normpath(os.path.join(mount.point, inside)))
        for place in (above, above.parent, Path(mount.point)):
            made = place / f"perdure-eval-{secrets.token_hex(4)}"
            with contextlib.suppress(OSError):
                made.mkdir()
                group = _Group(made, version)
                if group.limit.exists():
                    return group
                made.rmdir()
    raise errors.Unsupported("no memory cgroup can be made here")


def _has_memory(root: Path) -> bool:
    with contextlib.suppress(OSError):
        return "memory" in (root / "cgroup.controllers").read_text().split()
    return False


def _enter(group: _Group, pids: tuple[int, ...]) -> None:
    for pid in pids:
        try:
            (group.path / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            continue
        except OSError as error:
            raise errors.Unsupported(f"the workload cannot be put into a memory cgroup: {error.strerror}") from error


def _await_end(tree: tuple[int, ...], taker: subprocess.Popen[bytes]) -> int:
    """Wait until the kernel ended something of the tree; returns how many processes are gone."""
    end_s = time.monotonic() + _ENDED_S
    while time.monotonic() < end_s and taker.poll() is None:
        if gone := _gone(tree):
            return gone
        time.sleep(0.01)
    return _gone(tree)


def _gone(tree: tuple[int, ...]) -> int:
    gone = 0
    for pid in tree:
        try:
            gone += process.stat(pid).is_dead
        except errors.ProcessGone:
            gone += 1
    return gone


def _remove(group: _Group, tree: tuple[int, ...]) -> None:
    """Give back what is left, and remove the group; it is empty as soon as the kernel has let go of who was killed."""
    above = group.path.parent / "cgroup.procs"
    end_s = time.monotonic() + _ENDED_S
    while time.monotonic() < end_s:
        for pid in tree:
            with contextlib.suppress(OSError):
                if str(pid) in (group.path / "cgroup.procs").read_text().split():
                    above.write_text(str(pid))
        try:
            group.path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
