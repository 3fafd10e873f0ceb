"""Makes the mount namespace that a workload lives in, and mounts the /proc of its PID namespace there. Run by `views` as a program of its
own, never imported.

Descriptor 0 brings lines, and descriptor 1 takes ``done`` for each:

- ``start NUMBER PID``: mount the /proc of the new PID namespace of PID, by the host; let NUMBER be the next one in it; close what is closed
  in ours.
- ``view PID``: mount that /proc; it is open to whoever sets numbers and limits there.
- ``close``: close in it what is closed in ours.

Closed is what is read-only there, or covered by another part of /proc: containers are made so. The first argument is a descriptor that
takes one message when the namespace is there, with a descriptor of it, or one line about what failed. The second is a folder where the
machine's own /proc is to be seen until descriptor 0 ends; it may be empty.
"""

import ctypes
import errno
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator

Part = tuple[str, str, bool]
"""Where a part of /proc lies, which part it is, and whether it is read-only."""

_CONTROL = 3
_CLONE_NEWNS, _CLONE_NEWPID = 0x00020000, 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 19
_MNT_DETACH = 2

_LEFT_OUT = frozenset({"autofs", "binfmt_misc", "nfsd", "proc"})
"""Mounts below /proc that are not repeated in the new one: looking at them mounts something, or they are of no use to a workload."""

_PLAIN = re.compile(r"(?:/(?!\d+(?:/|$))[^/\\]+)(?:/[^/\\]+)*")
"""A path below /proc that is not of a process, whose number would be another one's, and has nothing escaped in it."""

_libc = ctypes.CDLL(None, use_errno=True)


def _enter() -> None:
    """Make the namespace. What is mounted outside later appears here where the machine shares its mounts, and nothing of here there."""
    if os.readlink("/proc/self") != str(os.getpid()):
        raise OSError(errno.EPERM, "/proc is that of another PID namespace")
    _check(_libc.unshare(_CLONE_NEWNS))
    _mount(None, "/", None, _MS_REC | _MS_SLAVE)
    # Security modules of containers may forbid just this.
    _mount_proc()
    _check(_libc.umount2(b"/proc", _MNT_DETACH))


def _give_proc(pid: int, parts: list[Part], next_number: int | None = None) -> None:
    points = _below_proc()
    before = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    pids = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    # A process enters a PID namespace with its children.
    child = os.fork()
    if child == 0:
        _end_with(lambda: _mount_from_within(pids, points, before, next_number))
    os.close(pids)
    os.close(before)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number:
        raise OSError(abs(number), os.strerror(abs(number)), "/proc")
    if next_number is not None:
        _close(parts)


def _mount_from_within(pids: int, points: list[str], before: int, next_number: int | None) -> None:
    _check(_libc.setns(pids, _CLONE_NEWPID))
    child = os.fork()
    if child == 0:
        _end_with(lambda: _cover_proc(points, before, next_number))
    os._exit(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


def _cover_proc(points: list[str], before: int, next_number: int | None) -> None:
    _mount_proc()
    for point in points:
        try:
            _mount(f"/proc/self/fd/{before}/{os.path.relpath(point, '/proc')}", point, None, _MS_BIND)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
    if next_number is not None:
        # What is written counts for the namespace of the writer.
        with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as handle:
            handle.write(str(next_number - 1))


def _close(parts: list[Part]) -> None:
    for point, root, is_read_only in parts:
        try:
            # With what lies on it already.
            _mount(f"/proc{root}", point, None, _MS_BIND | _MS_REC)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            continue
        allowed = _MS_RDONLY if is_read_only else 0
        _mount(None, point, None, _MS_REMOUNT | _MS_BIND | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | allowed)


def _mount_proc() -> None:
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _below_proc() -> list[str]:
    """Return what is mounted below /proc, upper things first: containers cover or replace some of its files."""
    found = []
    for point, _, _, kind in _mounts():
        if kind not in _LEFT_OUT and point not in found:
            found.append(point)
    return found


def _parts() -> list[Part]:
    """Return the parts of /proc that are mounted below it, upper things first: read-only, over others, or to be written to all the same."""
    found: dict[str, Part] = {}
    for point, root, options, kind in _mounts():
        found.pop(point, None)  # it is not seen any more
        if kind == "proc" and _PLAIN.fullmatch(root) and _PLAIN.fullmatch(point.removeprefix("/proc")):
            found[point] = (point, root, "ro" in options.split(","))
    return list(found.values())


def _mounts() -> Iterator[tuple[str, str, str, str]]:
    """Yield point, root, options and kind of each mount below /proc."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as handle:
        for line in handle:
            fields, _, rest = line.partition(" - ")
            _, _, _, root, point, options = fields.split()[:6]
            if point.startswith("/proc/") and "\\" not in point:
                yield point, root, options, rest.split()[0]


def _end_with(work: Callable[[], None]) -> None:
    try:
        work()
    except OSError as error:
        os._exit(error.errno or errno.EIO)
    os._exit(0)


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), None))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _serve(control: socket.socket, shown: str) -> None:
    _enter()
    if shown:
        _mount("/proc", shown, None, _MS_BIND)
    namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    socket.send_fds(control, [b"ready\n"], [namespace])
    parts = _parts()  # while /proc is ours
    with os.fdopen(os.dup(0), "r", encoding="ascii") as asked:
        for line in asked:
            match line.split():
                case ["start", number, pid]:
                    _give_proc(int(pid), parts, int(number))
                case [_, pid]:
                    _give_proc(int(pid), parts)
                case _:
                    _close(parts)
            os.write(1, b"done\n")
    if shown:
        _check(_libc.umount2(os.fsencode(shown), _MNT_DETACH))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # they are for the workload, or for whoever saves it
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        try:
            _serve(channel, sys.argv[2])
        except OSError as error:
            channel.sendall(json.dumps({"errno": error.errno}).encode("ascii") + b"\n")
            os._exit(1)
