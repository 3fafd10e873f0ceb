"""The program around one life of one arm: it starts the command, tells how it ended, and leaves nothing behind. Started by `local`.

It is to both arms what a batch system's step daemon is to a job: when the command ends, what it left running ends too. When the harness is
gone, which shows as the end of its pipe, everything ends. Two descriptors are given as arguments: one to read, whose end is the end of the
harness, and one on which a line of JSON tells of the start and of the end. With ``--node`` the command gets a PID namespace, a mount
namespace with its own /proc and a network namespace (loopback alone): killing its first process is then the loss of a node.

It imports nothing of Perdure's but this file, so that it starts fast and stays small beside what is measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys

_CLONE_NEWNS, _CLONE_NEWPID, _CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1

_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> int:
    """Run the command after ``--`` until it ends; returns 0 when its end was told."""
    split = arguments.index("--")
    lifeline, told = (int(word) for word in arguments[:2])
    command = arguments[split + 1 :]
    for descriptor in (lifeline, told):
        os.set_inheritable(descriptor, False)
    if "--node" in arguments[2:split]:
        return _node(lifeline, told, command)
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    return _keep(lifeline, told, command)


def _node(lifeline: int, told: int, command: list[str]) -> int:
    """Start a process that is to its namespaces what a node is, and wait for it."""
    _check(_libc.unshare(_CLONE_NEWPID | _CLONE_NEWNS | _CLONE_NEWNET))
    pid = os.fork()
    if pid:
        os.close(lifeline)
        os.close(told)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    _check(_libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None))
    _raise_loopback()
    os._exit(_keep(lifeline, told, command))


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def _keep(lifeline: int, told: int, command: list[str]) -> int:
    """Run the command, reap whatever becomes ours, and end all of it with the command or with the harness."""
    inbox, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    # What is asked of the job goes to the command; the harness sends it there itself.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        # Its own standard streams are ours: nothing, and the harness's pipe.
        child = subprocess.Popen(command, start_new_session=True, restore_signals=True, preexec_fn=_listen_again)  # noqa: PLW1509
    except OSError as error:
        _tell(told, {"failed": error.strerror or str(error), "errno": error.errno})
        return 1
    _tell(told, {"started": child.pid})
    status = None
    with selectors.DefaultSelector() as waiting:
        waiting.register(lifeline, selectors.EVENT_READ)
        waiting.register(inbox, selectors.EVENT_READ)
        while status is None:
            for key, _ in waiting.select():
                if key.fd == lifeline and not os.read(lifeline, 4096):
                    _end_all()
                    return 1
                if key.fd == inbox:
                    os.read(inbox, 4096)
            status = _reap(child.pid)
    _end_all()
    _tell(told, {"ended": status})
    return 0


def _listen_again() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _reap(main: int) -> int | None:
    """Reap who has ended, and return how the main process did, None while it runs."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == main:
                found = os.waitstatus_to_exitcode(status)
    return found


def _end_all() -> None:
    """Kill everything below us; orphans become our children, so that in the end there is nobody left."""
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    while True:
        for pid in _below(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _below(pid: int) -> list[int]:
    found, waiting = [], [pid]
    while waiting:
        current = waiting.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{current}/task"):
                with open(f"/proc/{current}/task/{thread}/children", "rb") as handle:
                    children = [int(word) for word in handle.read().split()]
                found += children
                waiting += children
    return found


def _tell(told: int, what: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        os.write(told, json.dumps(what).encode() + b"\n")


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
