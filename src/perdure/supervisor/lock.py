"""One supervisor a workload on this machine: a lock that the kernel drops when its holder dies. Called by `run`, `restore`, `rm`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from perdure import errors

_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of 64-bit Linux
_WHOLE_FILE = (os.SEEK_SET, 0, 0, 0)


@contextlib.contextmanager
def held(path: Path, name: str) -> Iterator[int]:
    """Hold the lock at `path` of the workload `name` while the block runs; yields its descriptor.

    The descriptor is closed in programs that are started. Raises `errors.WorkloadBusy` when another process holds it, `errors.OutputError`.
    """
    descriptor = _take(path, name)
    try:
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise errors.OutputError(
                f"cannot write {path}: {error.strerror}", hint="free some space, or choose another state folder"
            ) from error
        yield descriptor
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Tell whether somebody holds the lock at `path`, without taking it even for a moment."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, *_WHOLE_FILE))
    finally:
        os.close(descriptor)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _take(path: Path, name: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # A lock of the open file, not of the process: closing another descriptor of the same file does not drop it.
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, *_WHOLE_FILE))
            if _is_still_at(descriptor, path):
                return descriptor
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise errors.WorkloadBusy(
                f"{name} is running already, under process {holder or 'of another perdure'}",
                hint=f"see perdure ps; end it with: perdure stop {name}",
            ) from None
        os.close(descriptor)  # `rm` removed the file between our opening and locking it


def _is_still_at(descriptor: int, path: Path) -> bool:
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
