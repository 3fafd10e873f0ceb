"""PID 1 of a workload's namespaces, until it becomes the init program. Run by `launch` as a program of its own, never imported.

A fresh interpreter, so that nothing of the supervisor's threads, memory and descriptors is in it. It imports as little as it can:
its start is part of the workload's. Descriptor 3 brings the request as one JSON line and takes back one line about a failure;
that it closes without one means that the init program runs.
"""

import ctypes
import json
import os
import select
import signal

_CONTROL = 3
_PR_SET_PDEATHSIG = 1
_CLONE_NEWIPC = 0x08000000
_TIOCSCTTY = 0x540E


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
    # A file of /proc as the host sees it; what is written counts for the namespace of the writer.
    with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as handle:
        handle.write(str(request["first_pid"] - 1))
    os.setsid()
    if request["terminal"]:
        import fcntl

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
