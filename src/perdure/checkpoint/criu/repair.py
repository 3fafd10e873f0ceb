"""What a killed dump leaves in the tree: sockets in the kernel's repair mode, in which nothing is sent or received.

CRIU switches it on to read an established connection's state, and off when it has done so or failed; killed in between, it cannot.
Called by `run` after CRIU was killed, and by whoever mends what a crash of the caller left (`end` with the PIDs of the tree).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Iterable

from perdure import errors
from perdure.base.proc import process

_TCP_REPAIR = 19
_OFF_WITHOUT_PROBE = -1
_PIDFD_GETFD = 438


class Held:
    """The tree below process `root` while it is dumped: stopped for an instant when CRIU is killed, so that nothing runs on half mended."""

    def __init__(self, root: int) -> None:
        self._root = root
        # The user's own stopped processes stay stopped.
        self._stopped_before = frozenset(pid for pid in self.pids() if _state(pid) == "T")

    def pids(self) -> tuple[int, ...]:
        """Return the PIDs of the tree; empty when it is gone."""
        try:
            return (self._root, *process.descendants(self._root))
        except errors.ProcessGone:
            return ()

    def stop(self) -> None:
        """Stop all of it. Inside a debugger's or CRIU's stop, this takes effect when that ends."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let go on what went on before."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        for pid in self.pids():
            if pid not in self._stopped_before:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)


def end(pids: Iterable[int]) -> int:
    """Switch repair mode off on all sockets of the processes `pids` that are in it; return on how many.

    Harmless on sockets that are not, and for processes that are gone. Must not be called while a dump of them is in progress.
    """
    return sum(_end_of(pid) for pid in pids)


def _end_of(pid: int) -> int:
    count = 0
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                        count += _switch_off(process, int(name))
        finally:
            os.close(process)
    return count


def _switch_off(process: int, descriptor: int) -> bool:
    """Take a copy of the other process's socket and switch it off; False when it is no TCP socket, or was not in that mode."""
    copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
    if copy < 0:
        return False
    with socket.socket(fileno=copy) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return False
        if not one.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR):
            return False
        one.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _OFF_WITHOUT_PROBE)
        return True


def _state(pid: int) -> str:
    try:
        return process.stat(pid).state
    except errors.ProcessGone:
        return ""
