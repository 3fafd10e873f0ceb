"""Where an embedded ledger's file may lie: not where somebody else could lead it elsewhere or change it. Called by `sqlite`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from perdure import errors

_MODE = 0o600  # keys and results name people, orders and payments


def prepare(path: Path, *, create: bool) -> None:
    """Check that `path` is safe to open, and make it, empty and private, when it is absent and `create` is set.

    Raises `errors.LedgerMissing` when it is absent and is not to be made, `errors.LedgerUnsafe` for a path that leads through
    a link in a folder that everybody may write to, for a folder in which anybody may replace the file, and for a file that
    others may write to or own, and `errors.LedgerError` when it cannot be made.
    """
    _refuse_foreign_links(path)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        if not create:
            raise errors.LedgerMissing(
                f"there is no ledger at {path}", hint="name the one that the job uses: --ledger PATH or URL"
            ) from None
        _make(path)
        found = os.lstat(path)
    except OSError as error:
        raise errors.LedgerError(f"cannot look at the ledger {path}: {error.strerror}", hint="name a file in a folder of yours") from error
    if stat.S_ISLNK(found.st_mode):
        found = os.stat(path)
    _check_file(path, found)


def _check_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise errors.LedgerError(f"{path} is not a file", hint="name a file for the ledger")
    if found.st_mode & stat.S_IWOTH:
        raise errors.LedgerUnsafe(f"everybody may write to {path}", hint=f"chmod o-w {path}, and check what is in it")
    folder = os.stat(path.parent)
    if folder.st_mode & stat.S_IWOTH:
        if not folder.st_mode & stat.S_ISVTX:
            raise errors.LedgerUnsafe(f"anybody may replace files in {path.parent}", hint="put the ledger into a folder of yours")
        if found.st_uid not in (os.geteuid(), 0):
            raise errors.LedgerUnsafe(f"{path} belongs to somebody else", hint="put the ledger into a folder of yours")


def _refuse_foreign_links(path: Path) -> None:
    """Refuse a link that anybody could have put where it is, the file's own name included."""
    for part in (*reversed(path.absolute().parents), path.absolute()):
        try:
            is_link = part.is_symlink()
            open_to_all = is_link and bool(os.stat(part.parent).st_mode & stat.S_IWOTH)
        except OSError:
            return
        if open_to_all:
            raise errors.LedgerUnsafe(f"{part} is a link in a folder that everybody may write to", hint="name the real path")


def _make(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE))
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except FileExistsError:
        return  # another process of the job was quicker
    except OSError as error:
        raise errors.LedgerError(
            f"cannot make the ledger {path}: {error.strerror}", hint="name a file in a folder that you may write to"
        ) from error
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
