"""Class and level of a thread's input and output, as ionice sets them. Called when a tree is saved and brought back.

Python has no call for it, nor has the C library: these are the kernel's own. (Source: ioprio_set(2).)
"""

from __future__ import annotations

import ctypes
import os
import platform

_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "riscv64": 30, "s390x": 282}
_GET = {"x86_64": 252, "aarch64": 31, "ppc64le": 274, "riscv64": 31, "s390x": 283}
_WHO_PROCESS = 1
_CLASS_SHIFT = 13

_libc = ctypes.CDLL(None, use_errno=True)


def io_priority(thread: int) -> int | None:
    """Return class and level of `thread` as one number; None: it has none of its own, is gone, or this machine's call is not known."""
    number = _GET.get(platform.machine())
    found = -1 if number is None else int(_libc.syscall(number, _WHO_PROCESS, thread))
    return found if found > 0 and found >> _CLASS_SHIFT else None


def set_io_priority(thread: int, wanted: int) -> None:
    """Give `thread` class and level of its input and output. Raises OSError."""
    number = _SET.get(platform.machine())
    if number is not None and _libc.syscall(number, _WHO_PROCESS, thread, wanted) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
