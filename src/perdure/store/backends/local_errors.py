"""What a directory store's system errors mean to a person and to a caller that may try again. Called by `local`."""

from __future__ import annotations

import errno
from pathlib import Path

from perdure import errors
from perdure.store.backends import places

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FOR_GOOD: dict[int, str] = {
    errno.EROFS: "mount it writable, or choose another store with --store",
    errno.EACCES: "run as the store's owner, or choose another store with --store",
    errno.EPERM: "run as the store's owner, and see whether the file is immutable (lsattr)",
    errno.ENOTDIR: "a file lies where a folder of the store belongs: choose another place with --store",
    errno.EISDIR: "a folder lies where an object belongs: choose another place with --store",
    errno.ENAMETOOLONG: "choose a place with a shorter path",
}
_FOR_NOW: dict[int, str] = {
    errno.EIO: "the disk or its connection fails: see the kernel's log (dmesg)",
    errno.ESTALE: "the file server was restarted or the store was moved: mount it again",
    errno.ENOTCONN: "the file system's daemon is gone: mount it again",
    errno.EMFILE: "too many files are open in this process: ulimit -n",
    errno.ENFILE: "too many files are open on this machine",
}
UNREADABLE = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EILSEQ})
"""What disks say of bytes that they cannot read, file systems of their own records (EUCLEAN, EBADMSG), and dm-integrity (EILSEQ)."""


def explain(error: OSError, root: Path, key: str) -> errors.StoreError:
    """Return the error of the contract for `error`, met at `key` (may be empty) of the store at `root`.

    No room is `errors.StoreFull`. What stays as it is until somebody mends it is `errors.StoreError`. All else, known or not, is
    `errors.StoreUnavailable`: a disk and a file server may answer the next time.
    """
    if error.errno == errno.ELOOP:
        return places.not_an_object(key or str(root))
    what = f"the store at {root}: {error.strerror or error}" + (f" ({key})" if key else "")
    if error.errno in _NO_ROOM:
        return errors.StoreFull(what, hint="free some space, let `perdure store gc` do it, or choose another store with --store")
    if error.errno in _FOR_GOOD:
        return errors.StoreError(what, hint=_FOR_GOOD[error.errno])
    if error.errno == errno.ENOENT:
        return errors.StoreMissing(
            f"the store at {root} was removed while it was in use", hint="see who removed it; a new one starts empty"
        )
    return errors.StoreUnavailable(what, hint=_FOR_NOW.get(error.errno or 0, "try again, and see the kernel's log (dmesg)"))


def unreadable(error: OSError, root: Path, key: str) -> errors.ObjectUnreadable:
    """Return the error for the object `key` that cannot be read, with `error`, from a disk that gives out others."""
    return errors.ObjectUnreadable(
        f"{key} cannot be read from the disk that {root} lies on: {error.strerror or error}",
        hint="see what it costs: perdure store verify; and what fails: the kernel's log (dmesg)",
        object_key=key,
    )
