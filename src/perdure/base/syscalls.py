"""System calls that a program is to do without: it is told that the kernel has none of that name, as it would be by an older one."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

IO_URING_SETUP = 425
"""The number of io_uring_setup, the same on every architecture."""

_X32 = 0x40000000
"""Marks the numbers of programs of 32-bit pointers on x86-64."""
_SECCOMP = {"x86_64": 317, "aarch64": 277, "ppc64le": 358, "riscv64": 277, "s390x": 348}
_SET_MODE_FILTER, _SPEC_ALLOW = 1, 1 << 2
_PR_SET_NO_NEW_PRIVS = 38
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000

_libc = ctypes.CDLL(None, use_errno=True)


def deny(number: int) -> bool:
    """Let system call `number` fail with ENOSYS in this process, and in all that it starts, for good; see seccomp(2).

    Without CAP_SYS_ADMIN this process also gives up the right to gain rights by what it starts (sudo); returns whether it did.
    Raises OSError where the kernel has no such filters, or on an architecture that is not known.
    """
    call = _SECCOMP.get(platform.machine())
    if call is None:
        raise OSError(errno.ENOSYS, f"no filter for {platform.machine()}")
    instructions = (
        (_LOAD, 0, 0, 0),  # the number, which comes first in struct seccomp_data
        (_JUMP_IF_EQUAL, 1, 0, number),
        (_JUMP_IF_EQUAL, 0, 1, number | _X32),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in instructions))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(instructions), ctypes.addressof(code)))
    # Without that flag, kernels before 5.16 slow down whatever has a filter.
    arguments = [ctypes.c_long(each) for each in (call, _SET_MODE_FILTER, _SPEC_ALLOW, ctypes.addressof(program))]
    if _libc.syscall(*arguments) == 0:
        return False
    if ctypes.get_errno() == errno.EACCES and _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and _libc.syscall(*arguments) == 0:
        return True
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
