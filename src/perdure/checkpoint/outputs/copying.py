"""Copy content between descriptors as fast as the file systems can, holes kept. Called while the workload stands still."""

from __future__ import annotations

import errno
import fcntl
import os

from perdure import errors

_FICLONE = 0x40049409
_STEP_BYTES = 8 << 20
_COMPARED_BYTES = 64 << 10
_MARGIN_BYTES = 64 << 20
"""What stays free where copies are made: the images of the same checkpoint are written there, too."""


def copy(source: int, target: int, size_bytes: int) -> bool:
    """Copy the first `size_bytes` bytes of the file of descriptor `source` to the empty one of `target`; holes stay holes.

    Returns whether the file system shares the content (reflink) instead of copying it. Raises OSError; a source that has become shorter
    leaves a hole.
    """
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        os.ftruncate(target, size_bytes)
        copy_range(source, target, 0, size_bytes, 0)
        return False
    os.ftruncate(target, size_bytes)
    return True


def copy_range(source: int, target: int, begin: int, end: int, at: int) -> None:
    """Copy bytes `begin` to `end` of `source` to offset `at` of `target`, data only: holes are left out. Raises OSError."""
    place = begin
    while place < end:
        try:
            place = os.lseek(source, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            if error.errno != errno.EINVAL:
                raise
            hole = end
        else:
            if place >= end:
                return
            hole = min(end, os.lseek(source, place, os.SEEK_HOLE))
        _copy_data(source, target, place, hole, at + place - begin)
        place = hole


def _copy_data(source: int, target: int, begin: int, end: int, at: int) -> None:
    # sendfile goes from file to file on every file system, and is no slower than copy_file_range where nothing is shared.
    os.lseek(target, at, os.SEEK_SET)
    place = begin
    while place < end:
        sent = os.sendfile(target, source, place, min(_STEP_BYTES, end - place))
        if not sent:
            return
        place += sent


def room_bytes(folder: str | int) -> int:
    """Return how many bytes may be written in the file system of `folder`, a margin left for others."""
    there = os.statvfs(folder)
    return max(0, there.f_bavail * there.f_frsize - _MARGIN_BYTES)


def allocated_bytes(there: os.stat_result) -> int:
    """Return how much room a copy of the file takes: holes take none."""
    return min(there.st_size, there.st_blocks * 512)


def to_staging(source: int, staging: int, name: str, size_bytes: int) -> bool:
    """Copy `source` to the new file `name`, mode 0600, in the folder of descriptor `staging`. Returns whether it is shared.

    Raises `errors.CheckpointFailed` when it cannot be read or there is no room; nothing is left then.
    """
    target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=staging)
    try:
        return copy(source, target, size_bytes)
    except OSError as error:
        os.unlink(name, dir_fd=staging)
        raise errors.CheckpointFailed(
            f"cannot copy an open file into the checkpoint: {error.strerror}",
            hint="free memory or disk space, or choose another staging folder",
        ) from error
    finally:
        os.close(target)


def is_equal(one: int, other: int, begin: int, size_bytes: int) -> bool:
    """Tell whether `size_bytes` bytes from `begin` of file `one` are those at the start of file `other`. Raises OSError.

    Where both have a hole nothing is read.
    """
    at = 0
    while (at := min(_next_data(one, begin + at) - begin, _next_data(other, at))) < size_bytes:
        step = min(_STEP_BYTES, size_bytes - at)
        first, second = os.pread(one, step, begin + at), os.pread(other, step, at)
        if len(first) != step or first != second:
            return False
        at += step
    return min(os.fstat(one).st_size - begin, os.fstat(other).st_size) >= size_bytes


def make_equal(target: int, source: int) -> None:
    """Give the file `target` the content of `source` in place, writing only what differs. Raises OSError."""
    size_bytes = os.fstat(source).st_size
    at = 0
    while (at := min(_next_data(target, at), _next_data(source, at))) < size_bytes:
        step = min(_COMPARED_BYTES, size_bytes - at)
        wanted = os.pread(source, step, at)
        if os.pread(target, step, at) != wanted:
            os.pwrite(target, wanted, at)
        at += step
    os.ftruncate(target, size_bytes)


def is_mixture(mixed: int, one: int, other: int) -> bool:
    """Tell whether each byte of `mixed` is that of `one` or of `other` at its place: what an interrupted `make_equal` leaves.

    Raises OSError.
    """
    size_bytes = os.fstat(mixed).st_size
    if size_bytes > max(os.fstat(one).st_size, os.fstat(other).st_size):
        return False
    for at in range(0, size_bytes, _COMPARED_BYTES):
        step = min(_COMPARED_BYTES, size_bytes - at)
        found, first, second = (os.pread(each, step, at) for each in (mixed, one, other))
        if found in (first[: len(found)], second[: len(found)]):
            continue
        pairs = zip(found, _filled(first, step), _filled(second, step), strict=True)
        if not all(byte in (left, right) for byte, left, right in pairs):
            return False
    return True


def _filled(part: bytes, size_bytes: int) -> list[int]:
    """Return the bytes as numbers, those beyond the end of the file as one that no byte is."""
    return [*part, *([-1] * (size_bytes - len(part)))]


def _next_data(descriptor: int, at: int) -> int:
    """Return where the next data in the file is, from `at` on; beyond any file where there is none."""
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return 1 << 63
        if error.errno == errno.EINVAL:
            return at
        raise
