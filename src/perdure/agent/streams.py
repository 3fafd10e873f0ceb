"""What a user hands over as standard streams, looked at before root reads or writes there. Called by `seat`.

A write by root to a descriptor that a user opened is harmless for files, pipes, sockets and terminals. Files of the kernel's own
interfaces may look at who writes instead of who opened, and disks are not streams.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat

from perdure import errors

_NAMES = ("stdin", "stdout", "stderr")
_TTY_MAJORS = frozenset({4, 5, 136, 137, 138, 139, 140, 141, 142, 143, 204, 229})
"""Consoles, serial lines, pseudo-terminals (Documentation/admin-guide/devices.txt)."""
_NULL = frozenset({os.makedev(1, 3), os.makedev(1, 5), os.makedev(1, 7), os.makedev(1, 9)})
"""null, zero, full, urandom."""
_KERNELS = frozenset(
    {0x9FA0, 0x62656572, 0x27E0EB, 0x63677270, 0x64626720, 0x74726163, 0x73636673, 0x62656570, 0xCAFE4A11, 0x6E736673, 0x9FA2, 0xDE5E81E4}
)
"""File systems that are interfaces: proc, sysfs, cgroup, cgroup2, debugfs, tracefs, securityfs, configfs, bpf, nsfs, usbdevfs, efivarfs
(linux/magic.h)."""

_libc = ctypes.CDLL(None, use_errno=True)


def install(descriptors: tuple[int, int, int]) -> None:
    """Make `descriptors` this process's 0, 1 and 2, and close them. Raises `errors.UsageError` for one that is no stream."""
    try:
        for name, descriptor in zip(_NAMES, descriptors, strict=True):
            try:
                _check(name, descriptor)
            except OSError as error:
                # Such as a user's own file system, which shows root nothing.
                raise errors.UsageError(f"{name} cannot be looked at: {error.strerror}", hint="redirect it to a file or a pipe") from error
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _check(name: str, descriptor: int) -> None:
    found = os.fstat(descriptor)
    mode = found.st_mode
    way = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    wrong = os.O_WRONLY if name == _NAMES[0] else os.O_RDONLY
    # nohup(1) makes stdin one that cannot be read: of /dev/null.
    if way & os.O_PATH or (way & os.O_ACCMODE == wrong and found.st_rdev not in _NULL):
        raise errors.UsageError(
            f"{name} cannot be {'read' if name == _NAMES[0] else 'written'}", hint="redirect it, to /dev/null if to nothing else"
        )
    is_stream = (
        stat.S_ISREG(mode)
        or stat.S_ISFIFO(mode)
        or stat.S_ISSOCK(mode)
        or (stat.S_ISCHR(mode) and (os.major(found.st_rdev) in _TTY_MAJORS or found.st_rdev in _NULL))
    )
    if not is_stream or (not stat.S_ISCHR(mode) and not stat.S_ISSOCK(mode) and _kind_of_file_system(descriptor) in _KERNELS):
        raise errors.UsageError(f"{name} is neither a file, nor a pipe, a socket or a terminal", hint="redirect it to one of these")


def _kind_of_file_system(descriptor: int) -> int:
    """Return the magic number of the file system that `descriptor` lies on: the first word that fstatfs(2) fills in."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.fstatfs(descriptor, buffer) != 0:
        return 0
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF
