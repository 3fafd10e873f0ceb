"""The store's folder as one node sees it: root's alone, writable by root, and the same folder as on the others. Called by `checks`."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from pathlib import Path

from perdure.base.proc import mounts
from perdure.model.finding import Finding, Severity

MARK = "perdure-site"
"""File in the store that says which one it is, so that a node where another folder is mounted there is found out."""
_LOCAL_KINDS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "bcachefs"})
_LEAST_FREE_BYTES = 10 << 30


def read_mark(store: str) -> str:
    """Return the mark of the store at `store`, or an empty text when there is none."""
    try:
        descriptor = os.open(os.path.join(store, MARK), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    with open(descriptor, "rb") as handle:
        return handle.read(64).decode("ascii", "replace").strip()


def judge(store: str, *, expected: str | None, trying: bool) -> list[Finding]:
    """Return what speaks against the folder `store`, which need not exist yet.

    `expected` is the mark that it must have, None: any. With `trying`, a file is made in it, looked at and removed.
    """
    found: list[Finding] = []

    def say(severity: Severity, code: str, message: str, remedy: str) -> None:
        found.append(Finding(code=f"slurm-store-{code}", severity=severity, subject=store, message=message, remedy=remedy, path=store))

    present = os.path.lexists(store)
    if present:
        status = os.lstat(store)
        if not stat.S_ISDIR(status.st_mode):
            say(Severity.PROBLEM, "kind", "is not a folder", "name a folder, by its own path and not by a link")
            return found
        if status.st_uid != 0 or status.st_mode & 0o077:
            say(
                Severity.PROBLEM,
                "owner",
                "is not root's alone: checkpoints hold the memory of jobs",
                f"chown root {store}; chmod 700 {store}",
            )
    place = Path(store)
    while not place.is_dir():
        place = place.parent
    for above in [folder for folder in (place, *place.parents) if str(folder) != store]:
        status = above.stat()
        if status.st_uid != 0 or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX):
            say(Severity.PROBLEM, "path", f"can be exchanged by those who may write {above}", f"chown root {above}; chmod go-w {above}")
    covering = mounts.covering(os.path.realpath(place), mounts.of(os.getpid()))
    if covering is not None and covering.kind in _LOCAL_KINDS:
        say(Severity.WARNING, "local", f"is on a local file system ({covering.kind}): other nodes may not see it", "name a shared one")
    if shutil.disk_usage(place).free < _LEAST_FREE_BYTES:
        say(Severity.WARNING, "room", "has less than 10 GiB free", "make room, or name another")
    mark = read_mark(store)
    if expected is not None and mark != expected:
        say(Severity.PROBLEM, "other", "is not the folder that the first node has there", "mount the same file system on all nodes")
    if trying and not found_problem(found):
        refusal = _try(str(place))
        if refusal:
            say(Severity.PROBLEM, "root", refusal, "export it to this node with no_root_squash, or name another")
    return found


def found_problem(found: list[Finding]) -> bool:
    """Tell whether one of `found` is a problem."""
    return any(finding.severity is Severity.PROBLEM for finding in found)


def _try(folder: str) -> str:
    """Make a file in `folder`, see whose it is, and remove it; return what is wrong, or an empty text."""
    path = os.path.join(folder, f".perdure-try.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return f"root may not write there: {error.strerror}"
    try:
        owner = os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(path)
    return "" if owner == 0 else f"what root writes there belongs to user {owner}: root is squashed"
