"""Folders and files of a directory store, opened one part at a time from the store's own descriptor. Called by `local`.

No link is ever followed below the store's root, so that a link put there by somebody else leads nowhere. Modes are set, not masked:
0700 and 0600 whatever the umask.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from perdure import errors
from perdure.store.backends import names

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600  # a checkpoint holds the memory of a program: keys, passwords, data
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a FIFO that somebody put in an object's place would hold the reader for ever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def directory(root: int, parts: list[str]) -> Iterator[int]:
    """Yield a descriptor of the folder `parts` below `root`. Raises `OSError`."""
    current = os.dup(root)
    try:
        for part in parts:
            following = os.open(part, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def make_directories(root: int, parts: list[str], durable: set[str]) -> None:
    """Make the folders `parts` below `root` where they are missing, durably.

    `durable` names those whose entry in their parent is known to be on disk, and is added to: another process may have made a folder a
    moment ago and not have come to its fsync. Raises `OSError`.
    """
    if not parts or "/".join(parts) in durable:
        return
    make_directories(root, parts[:-1], durable)
    with directory(root, parts[:-1]) as parent:
        try:
            os.mkdir(parts[-1], DIRECTORY_MODE, dir_fd=parent)
        except FileExistsError:
            pass
        else:
            _make_private(parent, parts[-1])
        os.fsync(parent)
    durable.add("/".join(parts))


def _make_private(parent: int, name: str) -> None:
    """Set the mode of the folder that was just made: a strange umask may have left its own user without rights to open it."""
    made = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{made}", DIRECTORY_MODE)  # fchmod refuses a descriptor of this kind
    finally:
        os.close(made)


def create_file(parent: int, name: str) -> int:
    """Create the new file `name`, private whatever the umask, and return a descriptor for writing. Raises `OSError`."""
    descriptor = os.open(name, _CREATE, FILE_MODE, dir_fd=parent)
    os.fchmod(descriptor, FILE_MODE)
    return descriptor


@contextlib.contextmanager
def reading(root: int, key: str) -> Iterator[int]:
    """Yield a descriptor of the object `key` for reading.

    Raises `errors.ObjectMissing`, `errors.StoreError` for what is no regular file, `OSError`.
    """
    *parts, name = key.split("/")
    try:
        with directory(root, parts) as parent:
            descriptor = os.open(name, _READ, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError) as error:
        if error.errno == errno.ENOTDIR:
            refuse_links(root, parts)
        raise names.missing(key) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise names.missing(key)
        if not stat.S_ISREG(mode):
            raise not_an_object(key)
        yield descriptor
    finally:
        os.close(descriptor)


def refuse_links(root: int, parts: list[str]) -> None:
    """Raise `errors.StoreError` when a link stands where one of the folders `parts` should be.

    The kernel answers ENOTDIR for a link as for a file, and under a file no object can lie.
    """
    for depth, part in enumerate(parts):
        with directory(root, parts[:depth]) as parent:
            mode = os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise not_an_object("/".join(parts[: depth + 1]))
        if not stat.S_ISDIR(mode):
            return


def not_an_object(key: str) -> errors.StoreError:
    """Return the error for a link, FIFO or device in the store: none of ours, and not touched."""
    return errors.StoreError(
        f"{key} in the store is a link or a special file, which no object ever is: it is not followed",
        hint="somebody put it there: find out who may write to the store, and remove it",
    )


def read(descriptor: int, start: int, length: int) -> bytes:
    """Read `length` bytes from `start`; fewer only at the end of the file. Raises `OSError`."""
    pieces: list[bytes] = []
    while length > 0:
        piece = os.pread(descriptor, length, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def write(descriptor: int, content: memoryview) -> None:
    """Write all of `content`. Raises `OSError`."""
    while content:
        content = content[os.write(descriptor, content) :]
