"""Rules about open descriptors that are no files of a disk: kernel objects, devices, namespaces. Pure."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from perdure.base.proc.descriptors import Descriptor
from perdure.checkpoint.cuda import processes
from perdure.checkpoint.preflight import about, devices
from perdure.checkpoint.preflight.scene import Member, Scene
from perdure.model.finding import Finding

SAVED_ANONYMOUS = frozenset({"[eventfd]", "[eventpoll]", "inotify", "[signalfd]", "[timerfd]", "[fanotify]", "[pidfd]"})
"""Anonymous inodes that CRIU saves and restores; tried with 4.2.1."""

_TIMER_CLOCKS = frozenset({"0", "1", "7"})
"""CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME."""

_NAMESPACE = re.compile(r"(?:net|mnt|pid|user|uts|ipc|cgroup|time)(?:_for_children)?:\[\d+\]")


def check(scene: Scene) -> Iterator[Finding]:
    """Yield what is wrong with descriptors of kernel objects, devices and namespaces."""
    for member in scene.members:
        for opened in member.descriptors:
            if opened.target.startswith("anon_inode:"):
                yield from _anonymous(scene, member, opened)
            elif opened.number in member.device_numbers:
                yield from _device(member, opened)
            elif _NAMESPACE.fullmatch(opened.target):
                yield about.descriptor("file-namespace", member, opened, f"holds the namespace {opened.target} open")


def _anonymous(scene: Scene, member: Member, opened: Descriptor) -> Iterator[Finding]:
    kind = opened.target.removeprefix("anon_inode:")
    if kind == "[io_uring]":
        yield about.descriptor("file-io-uring", member, opened, "is an io_uring, which cannot be saved")
    elif kind not in SAVED_ANONYMOUS:
        yield about.descriptor("file-kernel-object", member, opened, f"is a kernel object ({kind.strip('[]')}) that cannot be saved")
    elif kind == "[timerfd]":
        clock = about.line(opened, "clockid")
        if clock is not None and clock not in _TIMER_CLOCKS:
            yield about.descriptor("file-timer-clock", member, opened, f"is a timer on clock {clock}, which CRIU does not know")
    elif kind == "[pidfd]":
        target = int(about.line(opened, "Pid") or 0)
        # -1: the process has ended; 0: it cannot be seen from here.
        if target >= 0 and target not in scene.pids:
            who = f"process {target}, which is outside" if target else "a process that cannot be seen from here"
            yield about.descriptor("file-kernel-object", member, opened, f"is a pidfd of {who}")


def _device(member: Member, opened: Descriptor) -> Iterator[Finding]:
    if processes.is_device(opened.target):
        return
    number = member.device_numbers[opened.number]
    is_block = stat.S_ISBLK(opened.mode)
    code = devices.code_of(number, opened.target, is_block=is_block)
    if code is not None:
        kind = "block" if is_block else "character"
        yield about.descriptor(code, member, opened, f"is the {kind} device {opened.target} ({os.major(number)}:{os.minor(number)})")
