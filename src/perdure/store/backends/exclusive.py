"""Give a finished file its name unless that name is taken: the one step that must be atomic on every file system. Called by `local`.

Three ways, the best that the file system has:

1. ``renameat2`` with ``RENAME_NOREPLACE``: ext4, XFS, btrfs, tmpfs, FAT, SMB. NFS and some cluster file systems answer EINVAL.
2. A hard link and the removal of the first name: NFS and most cluster file systems. Refused on some FUSE and SMB mounts.
3. A lock on a file beside it, a look, and a plain rename: what is left where neither is had. The lock ends with its process.

Where even locks are refused the store is refused: to overwrite what another writer believes to be its own is worse.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os

from perdure import errors

LOCK_NAME = "+lock"  # "+" is in no key, so that this name belongs to no object
_RENAME_NOREPLACE = 1  # linux/fs.h
# EPERM: a sandbox that does not know the call. The next way tells whether the folder itself may be written to.
_NOT_HERE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.EINVAL})
_NO_LOCKS = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})


def rename_if_absent(directory: int, temporary: str, name: str) -> None:
    """Rename `temporary` to `name` within `directory` (an open descriptor).

    Raises `FileExistsError` when `name` is there, then `temporary` stays; `errors.StoreError` where the file system has no way to do it;
    `OSError` as the system says.
    """
    if _rename_noreplace(directory, temporary, name) or _link(directory, temporary, name):
        return
    _rename_locked(directory, temporary, name)


def _rename_noreplace(directory: int, temporary: str, name: str) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(directory, os.fsencode(temporary), directory, os.fsencode(name), _RENAME_NOREPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_HERE:
        return False
    raise OSError(number, os.strerror(number), name)


def _link(directory: int, temporary: str, name: str) -> bool:
    try:
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        # An NFS server that did it, whose answer was lost, is asked again and says "exists": a second name of our file is the proof.
        if os.stat(temporary, dir_fd=directory, follow_symlinks=False).st_nlink < 2:
            raise
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    os.unlink(temporary, dir_fd=directory)
    return True


def _rename_locked(directory: int, temporary: str, name: str) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(LOCK_NAME, flags, 0o600, dir_fd=directory)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise errors.StoreError(
                "this file system can neither rename without replacing, nor link, nor lock: two writers could overwrite each other",
                hint="keep the store on a local disk, on NFS, or in an object store: --store s3://BUCKET/PREFIX",
            ) from error
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    finally:
        os.close(lock)
