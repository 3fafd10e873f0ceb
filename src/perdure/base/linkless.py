"""Open files along paths that others can change, never following a link. Called by whoever reads or writes as root where users write.

A path is walked from the root folder by folder descriptors, each opened without following; what is then done happens in the last folder's
descriptor, so that a folder that is exchanged meanwhile changes nothing. A path that legitimately leads through a link has to be given as
the real path. (openat2 with RESOLVE_NO_SYMLINKS says the same in one call, from kernel 5.6 on, and not through Python.)
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from perdure import errors

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def parent(path: str, *, make: tuple[int, int] | None = None) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the folder of the absolute `path` and the last name; the descriptor is closed at the end.

    Missing folders are made with mode 0755 for `make`, a user and a group id, where that is given.
    Raises `errors.LinkInPath`, `errors.InputMissing` when a folder is missing, `errors.InputDenied`, and `errors.InputFormat` for a path
    that is not absolute, or has ``..`` or no last name.
    """
    parts = path.split("/")
    folders, name = [part for part in parts[1:-1] if part not in {"", "."}], parts[-1]
    if parts[0] or name in {"", ".", ".."} or ".." in folders or "\0" in path:
        raise errors.InputFormat(f"{path!r} is not an absolute path of a file")
    descriptor = os.open("/", _FOLDER)
    try:
        for folder in folders:
            below = _enter(descriptor, folder, path, make)
            os.close(descriptor)
            descriptor = below
        yield descriptor, name
    finally:
        os.close(descriptor)


def _enter(descriptor: int, folder: str, path: str, make: tuple[int, int] | None) -> int:
    try:
        return os.open(folder, _FOLDER, dir_fd=descriptor)
    except FileNotFoundError as error:
        if make is None:
            raise errors.InputMissing(f"{path} is not there: there is no folder {folder}") from error
    except OSError as error:
        raise _refusal(path, folder, error) from error
    try:
        os.mkdir(folder, 0o755, dir_fd=descriptor)
        readable = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    except OSError as error:
        raise _refusal(path, folder, error) from error
    try:
        # The name may lead to another folder by now: only an empty one is given away.
        if os.fstat(readable).st_uid == os.geteuid() and not os.listdir(readable):
            os.fchown(readable, *make)
        return os.open(".", _FOLDER, dir_fd=readable)
    finally:
        os.close(readable)


def _refusal(path: str, part: str, error: OSError) -> errors.InputDenied:
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
        return errors.LinkInPath(f"{path} does not lead to where it did: {part} is a link or no folder")
    return errors.InputDenied(f"may not open {path}: {error.strerror}")


def status(folder: int, name: str) -> os.stat_result | None:
    """Return stat(2) of `name` in the folder of descriptor `folder`, of a link itself; None when it is not there."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def open_regular(folder: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open the regular file `name` in the folder of descriptor `folder` and return its descriptor.

    It never waits (a FIFO) and never follows. Raises `errors.LinkInPath` when it is anything but a regular file, `errors.InputMissing` and
    `errors.InputDenied`.
    """
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError as error:
        raise errors.InputMissing(f"{name} is not there") from error
    except OSError as error:
        # ENXIO: a FIFO without a reader, or a socket; EISDIR: a folder opened for writing.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise errors.LinkInPath(f"{name} is not a regular file") from error
        raise errors.InputDenied(f"may not open {name}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise errors.LinkInPath(f"{name} is not a regular file")
    return descriptor
