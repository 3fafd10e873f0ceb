"""PID 1 of a workload's namespaces, until it becomes the init program. Run by `launch` as a program of its own, never imported.

A fresh interpreter, so that nothing of the supervisor's threads, memory and descriptors is in it. It imports as little as it can:
its start is part of the workload's. Descriptor 3 brings the request as one JSON line and takes back one line about a failure;
that it closes without one means that the init program runs.
"""

import ctypes
import fcntl
import json
import os
import select
import signal
import stat

_CONTROL = 3
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS = 0x00020000
_CLONE_NEWIPC = 0x08000000
_TIOCSCTTY = 0x540E
_MOST_COPIED_BYTES = 1 << 30


def _start() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # The tree ends with the thread that started it: the kernel sees to it, however that thread ends.
    _check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    with os.fdopen(os.dup(_CONTROL), "rb") as channel:
        request = json.loads(channel.readline())
    # The parent may have ended before prctl: then its end of the channel is closed already.
    poll = select.poll()
    poll.register(_CONTROL, select.POLLHUP)
    if poll.poll(0):
        os._exit(1)
    if request["own_ipc"]:
        _check(libc.unshare(_CLONE_NEWIPC))
    if request["mounts"]:
        mounts = os.open(request["mounts"], os.O_RDONLY)
        _check(libc.setns(mounts, _CLONE_NEWNS))
        _open_anew()
    if request["first_pid"]:
        # Whichever /proc this is, what is written counts for the namespace of the writer.
        with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as handle:
            handle.write(str(request["first_pid"] - 1))
    os.setsid()
    if request["terminal"]:
        fcntl.ioctl(0, _TIOCSCTTY, 0)
    os.chdir(request["working_directory"])
    os.umask(request["umask"])
    # Python ignores the first two for itself, a supervisor the others; a signal that is ignored would stay so for the workload.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    environment = {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape") for name, value in request["environment"]
    }
    os.set_inheritable(_CONTROL, False)
    os.closerange(_CONTROL + 1, 1 << 20)
    argv = [word.encode("utf-8", "surrogateescape") for word in request["argv"]]
    os.execve(argv[0], argv, environment)  # noqa: S606 - a program with its arguments is what was asked for


def _open_anew() -> None:
    """Open the files among our streams once more: what was opened on mounts of another namespace cannot be saved.

    Pipes, sockets and terminals belong to none that matters. A file for reading that is not found under its name, or may not be opened
    by root, is copied into memory; another one stays as it is.
    """
    opened: dict[tuple[int, int, int], int] = {}
    for number in range(3):
        there = os.fstat(number)
        if stat.S_ISFIFO(there.st_mode) or stat.S_ISSOCK(there.st_mode) or os.isatty(number):
            continue
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
        key = (there.st_dev, there.st_ino, flags)
        if key not in opened:
            again = _found_anew(number, there, flags)
            if again is None and stat.S_ISREG(there.st_mode) and flags & os.O_ACCMODE == os.O_RDONLY:
                again = _copied(number, there)
            if again is None:
                continue
            if stat.S_ISREG(there.st_mode):
                os.lseek(again, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            opened[key] = again
        os.dup2(opened[key], number)


def _found_anew(number: int, there: os.stat_result, flags: int) -> int | None:
    """Open the file by its name; None where that leads to another one, which is not opened: its user may have put anything there."""
    try:
        place = os.open(os.readlink(f"/proc/self/fd/{number}"), os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        found = os.fstat(place)
        if (found.st_dev, found.st_ino) != (there.st_dev, there.st_ino):
            return None
        return os.open(f"/proc/self/fd/{place}", flags & ~os.O_NOFOLLOW | os.O_NOCTTY)
    except OSError:
        return None
    finally:
        os.close(place)


def _copied(number: int, there: os.stat_result) -> int | None:
    """Return a descriptor for reading of the same content, which lies on no mount; None where it is too large, or cannot be read."""
    if there.st_size > _MOST_COPIED_BYTES:
        return None
    try:
        copy = os.memfd_create("perdure-stdin")
        try:
            at = 0
            while sent := os.sendfile(copy, number, at, 1 << 20):
                at += sent
            os.fchown(copy, there.st_uid, there.st_gid)
            os.fchmod(copy, stat.S_IMODE(there.st_mode))
            return os.open(f"/proc/self/fd/{copy}", os.O_RDONLY)
        finally:
            os.close(copy)
    except OSError:
        return None


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    try:
        _start()
    except OSError as error:
        os.write(_CONTROL, json.dumps({"errno": error.errno, "path": error.filename and os.fsdecode(error.filename)}).encode())
        os._exit(1)
