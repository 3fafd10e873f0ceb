"""Refuse system calls to this process, as a file system or a sandbox does: run in children of tests. x86-64 only."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

SUPPORTED = platform.machine() == "x86_64"
_NUMBERS = {"renameat2": 316, "linkat": 265, "flock": 73, "mount": 165}
_ANSWERS = {"renameat2": errno.EINVAL, "linkat": errno.EPERM, "flock": errno.ENOLCK, "mount": errno.EACCES}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def refuse(*names: str) -> None:
    """Make the named calls fail from now on, with what a file system that lacks them answers."""
    program = [struct.pack("HBBI", _LOAD, 0, 0, 0)]
    for name in names:
        program.append(struct.pack("HBBI", _IF_EQUAL, 0, 1, _NUMBERS[name]))
        program.append(struct.pack("HBBI", _RETURN, 0, 0, _ERRNO | _ANSWERS[name]))
    program.append(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    for call in ((_PR_SET_NO_NEW_PRIVS, 1, 0), (_PR_SET_SECCOMP, _FILTER, ctypes.addressof(header))):
        if libc.prctl(*call, *[0] * (5 - len(call))) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
