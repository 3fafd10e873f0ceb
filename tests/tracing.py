"""Trace a process as whoever saves it does. For tests."""

from __future__ import annotations

import ctypes
import os

_SEIZE, _INTERRUPT, _CONT, _DETACH = 0x4206, 0x4207, 7, 17
_WALL = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def seize(pid: int) -> None:
    """Trace the process `pid`, which stands still when this returns. The thread that calls this is the tracer."""
    _ask(_SEIZE, pid)
    _ask(_INTERRUPT, pid)
    os.waitpid(pid, _WALL)


def let_go(pid: int, *, without: int) -> None:
    """Let it go on, take the signal `without` from it when it comes, and trace it no more."""
    _ask(_CONT, pid)
    while True:
        _, status = os.waitpid(pid, _WALL)
        if os.WSTOPSIG(status) == without and not status >> 16:
            break
        _ask(_CONT, pid)
    _ask(_DETACH, pid)


def _ask(request: int, pid: int) -> None:
    if _LIBC.ptrace(request, pid, None, None) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
