"""Keep what lies at a name aside before it changes, and put a file into place: atomically, never over anything, never through a link.

Called by `bring_back`, `trees` and `carried`. All work happens in the descriptor of a folder. A file is made without a name (O_TMPFILE),
filled, synced, and only then linked to its name, which fails where that is taken: a crash leaves nothing half done. On file systems that
know no such files it has a name of its own meanwhile, and a crash can leave that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator

import msgspec

from perdure import errors
from perdure.base import linkless
from perdure.checkpoint.outputs import copying

_LONGEST_NAME_BYTES = 255
_READ_ANYWHERE = "tfevents"
_MOST_TAILS = 10_000
_TAIL = re.compile(r"\.perdure-(tail|new)-\d+(\.\d+)?\Z")


class Look(msgspec.Struct, frozen=True):
    """What a file that is put back looks like, besides its content."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    attributes: tuple[tuple[str, bytes], ...] = ()
    """Extended attributes."""


def tail_names(name: str, epoch: int, kind: str = "tail") -> Iterator[str]:
    """Yield ``NAME.perdure-tail-EPOCH``, then with ``.1``, ``.2``…; a long name is cut so that the whole is a valid one.

    TensorBoard reads every file of a folder that has `_READ_ANYWHERE` in its name: what was cut off would be shown beside what is kept.
    """
    name = name.replace(_READ_ANYWHERE, _READ_ANYWHERE[:2] + "-" + _READ_ANYWHERE[2:])
    for number in range(_MOST_TAILS):
        suffix = f".perdure-{kind}-{epoch}" + (f".{number}" if number else "")
        yield os.fsdecode(os.fsencode(name)[: _LONGEST_NAME_BYTES - len(suffix)]) + suffix


def is_tail(name: str) -> bool:
    """Tell whether `name` is one that was kept aside here, or is new on its way."""
    return _TAIL.search(name) is not None


@contextlib.contextmanager
def unnamed(folder: int) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of a new file in `folder`, mode 0600, and the path to link it from; without a link it is gone at the end."""
    name: str | None = None
    try:
        descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            raise
        name = f".perdure-{os.getpid()}-{os.urandom(6).hex()}"
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        yield descriptor, f"/proc/self/fd/{descriptor}" if name is None else f"/proc/self/fd/{folder}/{name}"
    finally:
        os.close(descriptor)
        if name is not None:
            os.unlink(name, dir_fd=folder)


def keep_range(folder: int, name: str, source: int, begin: int, epoch: int) -> str:
    """Copy what lies in `source` from `begin` to its end into a new file beside `name`, with the same owner and mode; return its name.

    It is on disk when this returns. One that already holds the very same bytes is taken instead: a run that was interrupted made it.
    Raises OSError, and `errors.OutputError` when every name is taken.
    """
    there = os.fstat(source)
    for tail in _tails(folder, name, epoch):
        if _holds(folder, tail, source, begin, there.st_size - begin):
            return tail
    with unnamed(folder) as (target, way):
        os.ftruncate(target, there.st_size - begin)
        copying.copy_range(source, target, begin, there.st_size, 0)
        dress(target, Look(stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid, there.st_mtime_ns))
        os.fsync(target)
        return _link_free(way, folder, name, epoch)


def keep_whole(folder: int, name: str, epoch: int) -> str:
    """Give whatever lies at `name` a second name beside it, or move it there if it is a folder; return that name.

    What it leads to is not touched. Raises OSError, and `errors.OutputError` when every name is taken.
    """
    there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    for tail in tail_names(name, epoch):
        other = linkless.status(folder, tail)
        if other is not None:
            if (other.st_dev, other.st_ino) == (there.st_dev, there.st_ino):
                return tail
            continue
        if stat.S_ISDIR(there.st_mode):
            os.rename(name, tail, src_dir_fd=folder, dst_dir_fd=folder)
            return tail
        try:
            _link_whole(folder, name, tail)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK) or not stat.S_ISREG(there.st_mode):
                raise
            return _keep_copy(folder, name, epoch)
        return tail
    raise errors.OutputError(f"cannot keep {name} aside: there are {_MOST_TAILS} such files", hint="remove those that are not needed")


def overwrite(folder: int, name: str, current: int, source: int, *, look: Look, epoch: int) -> str:
    """Give the file of descriptor `current`, at `name`, the content of `source` in place, and return where what it held is kept.

    For a file that has to stay the very same one: a program that remembers its inode, as SQLite does, refuses another. What it held is on
    disk under the other name before the first byte changes; after an interruption, what is then found in the file is known to be made of
    the two. Raises OSError, and `errors.OutputError` when every name is taken.
    """
    tail = interrupted(folder, name, current, source, epoch) or keep_range(folder, name, current, 0, epoch)
    # Through the very file that was looked at: its name may lead elsewhere by now.
    writable = os.open(f"/proc/self/fd/{current}", os.O_RDWR | os.O_CLOEXEC)
    try:
        copying.make_equal(writable, source)
        dress(writable, look)
        os.fsync(writable)
    finally:
        os.close(writable)
    return tail


def interrupted(folder: int, name: str, current: int, source: int, epoch: int) -> str | None:
    """Return where an interrupted `overwrite` keeps what the file held; None when there was none."""
    return next((each for each in _tails(folder, name, epoch) if _is_mixture(folder, current, each, source)), None)


def put(folder: int, name: str, source: int, look: Look, epoch: int, *, replace: bool = True, size_bytes: int | None = None) -> None:
    """Make `name` a file with the content of `source`, in place of whatever non-folder lies there, atomically; on disk at the return.

    `size_bytes` is how much of the content (None: all of it).

    Raises OSError, among them FileExistsError where something is there and `replace` is false, and `errors.OutputError` when every name
    that it would use on the way is taken.
    """
    size_bytes = os.fstat(source).st_size if size_bytes is None else size_bytes
    with unnamed(folder) as (target, way):
        copying.copy(source, target, size_bytes)
        dress(target, look)
        os.fsync(target)
        try:
            os.link(way, name, dst_dir_fd=folder)
        except FileExistsError:
            if not replace:
                raise
            # Two workloads may bring the same file at once: whose is on its way is locked.
            fcntl.flock(target, fcntl.LOCK_EX)
            _remove_leftovers(folder, name, source, size_bytes, epoch)
            new = _link_free(way, folder, name, epoch, kind="new")
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    sync(folder)


def is_as(folder: int, name: str, source: int, look: Look) -> bool:
    """Tell whether `name` is a regular file with the content of `source` that looks like `look` (attributes apart). Raises OSError."""
    there = linkless.status(folder, name)
    if there is None or not stat.S_ISREG(there.st_mode):
        return False
    found = Look(stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid, there.st_mtime_ns)
    wanted = msgspec.structs.replace(look, attributes=())
    return found == wanted and _holds(folder, name, source, 0, os.fstat(source).st_size)


def sync(folder: int) -> None:
    """Bring the names in `folder` (a descriptor that only stands for a place) to disk. Raises OSError."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tails(folder: int, name: str, epoch: int) -> Iterator[str]:
    """Yield the names beside `name` that were taken already."""
    for tail in tail_names(name, epoch):
        if linkless.status(folder, tail) is None:
            return
        yield tail


def _is_mixture(folder: int, current: int, tail: str, source: int) -> bool:
    try:
        kept = linkless.open_regular(folder, tail)
    except errors.InputError:
        return False
    try:
        return copying.is_mixture(current, kept, source)
    finally:
        os.close(kept)


def _keep_copy(folder: int, name: str, epoch: int) -> str:
    source = linkless.open_regular(folder, name)
    try:
        return keep_range(folder, name, source, 0, epoch)
    finally:
        os.close(source)


def _link_whole(folder: int, name: str, other: str) -> None:
    while True:
        try:
            os.link(name, other, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            # Also what is said of a file that another one took the place of just now.
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        else:
            return


def _link_free(way: str, folder: int, name: str, epoch: int, kind: str = "tail") -> str:
    for free in tail_names(name, epoch, kind):
        try:
            os.link(way, free, dst_dir_fd=folder)
        except FileExistsError:
            continue
        sync(folder)
        return free
    raise errors.OutputError(f"cannot keep {name} aside: there are {_MOST_TAILS} such files", hint="remove those that are not needed")


def _remove_leftovers(folder: int, name: str, source: int, size_bytes: int, epoch: int) -> None:
    """Remove what an interrupted `put` left: files that hold exactly what is put now, and that nobody puts just now."""
    for new in tail_names(name, epoch, "new"):
        if linkless.status(folder, new) is None:
            return
        with contextlib.suppress(errors.InputError, BlockingIOError, FileNotFoundError):
            other = linkless.open_regular(folder, new)
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had it until now may have given it its name, and the next one may have taken this one.
                if os.path.samestat(os.fstat(other), os.stat(new, dir_fd=folder, follow_symlinks=False)) and _is_copy(
                    source, other, size_bytes
                ):
                    os.unlink(new, dir_fd=folder)
            finally:
                os.close(other)


def _is_copy(source: int, other: int, size_bytes: int) -> bool:
    return os.fstat(other).st_size == size_bytes and copying.is_equal(source, other, 0, size_bytes)


def _holds(folder: int, name: str, source: int, begin: int, size_bytes: int) -> bool:
    try:
        other = linkless.open_regular(folder, name)
    except errors.InputError:
        return False
    try:
        return os.fstat(other).st_size == size_bytes and copying.is_equal(source, other, begin, size_bytes)
    finally:
        os.close(other)


def dress(target: int, look: Look) -> None:
    """Give the file or folder of descriptor `target` owner, permissions, attributes and time. Raises OSError."""
    os.fchown(target, look.uid, look.gid)
    os.fchmod(target, look.mode)
    for key, value in look.attributes:
        # Not every file system knows them: the content is what matters.
        with contextlib.suppress(OSError):
            os.setxattr(target, key, value)
    os.utime(target, ns=(look.mtime_ns, look.mtime_ns))
