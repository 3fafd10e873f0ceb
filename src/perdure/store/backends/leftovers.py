"""Temporary files of a directory store, and the removal of those whose writer died. Called by `local`.

A writer holds a lock on its temporary file until the file has its name; the kernel drops the lock with the process. A file without a lock
that has been quiet for an hour, by the file system's own clock, belongs to nobody. A writer that was judged wrongly (a file system without
locks, a machine that slept) finds its file gone and fails as a whole: no half object can come of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets

from perdure.store.backends import contract, places

QUIET_S = 3600.0
"""How long a temporary file must not have been written to. Writing 256 MiB takes seconds, on a bad network minutes."""

_TEMPORARY = re.compile(r"\+[0-9a-f]{16}\.tmp")


def temporary_name(token: str) -> str:
    """Return the temporary name for `token`, 16 hexadecimal digits. It can be the name of no object."""
    return f"+{token}.tmp"


def sweep(root: int) -> int:
    """Remove abandoned temporary files everywhere below `root`, an open folder, and return how many. Raises `OSError`."""
    return _sweep(root, _now_s(root))


def _now_s(root: int) -> float:
    """Return the file system's time: a server's clock may be far from this machine's."""
    name = temporary_name(secrets.token_hex(8))
    descriptor = places.create_file(root, name)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        os.unlink(name, dir_fd=root)


def _sweep(directory: int, now_s: float) -> int:
    removed = 0
    with os.scandir(directory) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_directory in entries:
        if is_directory:
            if contract.KEY.fullmatch(name) is None:
                continue  # a file system's own, such as lost+found, which may be root's alone
            with places.directory(directory, [name]) as below:
                removed += _sweep(below, now_s)
        elif _TEMPORARY.fullmatch(name) and _is_abandoned(directory, name, now_s):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
                removed += 1
    return removed


def _is_abandoned(directory: int, name: str, now_s: float) -> bool:
    try:
        if now_s - os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime < QUIET_S:
            return False
        descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks on this file system: its age decides
    finally:
        os.close(descriptor)
    return True
