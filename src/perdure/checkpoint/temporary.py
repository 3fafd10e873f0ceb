"""Folders for temporary files, and named pipes in them, that a tree needs to be there again: a reboot, a cleaner or another node has
emptied what they lie in.

Called at the freeze (`record`, `record_pipes`) and before a restore (`make`). CRIU gives Unix sockets their names back, enters the folders
that processes work in, opens those that they have open, and named pipes, whose content it holds; but it makes none of them. What else lies
in the folders is not theirs to say: `carried` and `outputs` do.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import acting, linkless, text
from perdure.checkpoint.images import openfiles, paths
from perdure.checkpoint.outputs import rules
from perdure.model.checkpoint import Folder, Manifest, NamedPipe, Owner
from perdure.model.finding import Finding, Severity

_OF_USERS = "/run/user/"
"""Each user's folder in it is the system's to make, when the user logs in."""
_MOST_FOLDERS = 100_000


def record(images: Path, owner: Owner | None, *, besides: Iterable[str] = ()) -> tuple[Folder, ...]:
    """Return the folders for temporary use on the way to what the tree in the folder `images` reaches by path, outer ones first.

    `besides` are more paths of folders. Links are not followed, and the rights of `owner` count (None: those of this process): what is not
    found so is left out. Raises `errors.CheckpointFailed` for too many, and `errors.InputFormat`.
    """
    found: dict[str, Folder] = {}
    wanted = sorted({way for path in (*_reached(images, owner), *besides) for way in _ways(path)})
    if len(wanted) > _MOST_FOLDERS:
        raise errors.CheckpointFailed(f"the workload uses {len(wanted)} folders for temporary files", hint="close some of them")
    with acting.as_owner(owner):
        for path in wanted:
            there = _look(path)
            if there is not None and stat.S_ISDIR(there.st_mode):
                found[path] = Folder(text.storable(path), stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid)
    return tuple(found.values())


def record_pipes(images: Path, owner: Owner | None) -> tuple[NamedPipe, ...]:
    """Return the named pipes for temporary use that the tree in the folder `images` has open, found as by `record`.

    Raises `errors.InputFormat`.
    """
    opened = {each.name for each in openfiles.of(images) if isinstance(each, openfiles.RegularFile) and stat.S_ISFIFO(each.mode or 0)}
    found = []
    with acting.as_owner(owner):
        for path in sorted(filter(rules.is_volatile, opened)):
            there = _look(path)
            if there is not None and stat.S_ISFIFO(there.st_mode):
                found.append(NamedPipe(text.storable(path), stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid))
    return tuple(found)


def _reached(images: Path, owner: Owner | None) -> Iterator[str]:
    for opened in openfiles.of(images):
        if isinstance(opened, openfiles.RegularFile):
            yield opened.name if opened.mode is not None and stat.S_ISDIR(opened.mode) else os.path.dirname(opened.name)
    for name in paths.unix_names(images):
        # The name that it was given; all others are the kernel's, which has followed the links.
        with acting.as_owner(owner):
            yield os.path.realpath(os.path.dirname(name))


def _ways(path: str) -> Iterator[str]:
    """Yield `path` and the folders above it, as far as they may vanish."""
    while rules.is_volatile(path) and os.path.dirname(path) + "/" != _OF_USERS:
        yield path
        path = os.path.dirname(path)


def _look(path: str) -> os.stat_result | None:
    try:
        with linkless.parent(path) as (folder, name):
            return linkless.status(folder, name)
    except (OSError, errors.InputError):
        return None


def of(manifest: Manifest) -> tuple[Folder | NamedPipe, ...]:
    """Return the folders and named pipes that a checkpoint lists, in the order in which they are to be made."""
    folders = () if manifest.folders is msgspec.UNSET else manifest.folders
    pipes = () if manifest.named_pipes is msgspec.UNSET else manifest.named_pipes
    return (*folders, *pipes)


def makes(wanted: Folder | NamedPipe, owner: Owner | None) -> bool:
    """Tell whether `wanted` is made again for a workload of `owner`: root makes any, and an ordinary user only own ones."""
    return owner is None or wanted.uid == owner.uid


def make(wanted: Iterable[Folder | NamedPipe], owner: Owner | None = None) -> tuple[Finding, ...]:
    """Make those of `wanted` that are missing, as they were, with the rights of `owner`; what is there is left as it is.

    Returns what could not be made, and what belongs to a stranger now and did not then: a problem stops the restore.
    """
    findings: list[Finding] = []
    for each in wanted:
        path = text.original(each.path)
        try:
            with acting.as_owner(owner), linkless.parent(path) as (folder, name):
                there = linkless.status(folder, name)
                if there is None and makes(each, owner):
                    there = _made(folder, name, each)
            if there is not None:
                findings += _judge(path, there, each, owner)
        except errors.InputMissing:
            # What it lay in was not the user's: who needs it says so.
            continue
        except (OSError, errors.InputError) as error:
            if _lies_elsewhere(path) and _is_one(path, each):
                continue
            reason = error.strerror if isinstance(error, OSError) else str(error)
            message = f"was a {_word(each)} of the workload and cannot be made again: {reason}"
            findings.append(_problem("failed", path, each, message, "make it, or move away what lies there"))
    return tuple(findings)


def _word(wanted: Folder | NamedPipe) -> str:
    return "folder" if isinstance(wanted, Folder) else "named pipe"


def _is_kind(mode: int, wanted: Folder | NamedPipe) -> bool:
    return stat.S_ISDIR(mode) if isinstance(wanted, Folder) else stat.S_ISFIFO(mode)


def _is_one(path: str, wanted: Folder | NamedPipe) -> bool:
    try:
        return _is_kind(os.stat(path).st_mode, wanted)
    except OSError:
        return False


def _lies_elsewhere(path: str) -> bool:
    """Tell whether the folder for temporary use that `path` lies in is a link here, which root has made."""
    return any(path.startswith(one) and os.path.realpath(one) != one.rstrip("/") for one in rules.VOLATILE)


def _made(folder: int, name: str, wanted: Folder | NamedPipe) -> os.stat_result:
    if isinstance(wanted, Folder):
        os.mkdir(name, 0o700, dir_fd=folder)
        made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    else:
        os.mkfifo(name, 0o600, dir_fd=folder)
        made = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    try:
        # The name may lead to another one by now: only one of ours is given away that is as we have made it.
        there = os.fstat(made)
        is_bare = there.st_nlink == 1 if isinstance(wanted, NamedPipe) else not os.listdir(made)
        if _is_kind(there.st_mode, wanted) and there.st_uid == acting.uid() and is_bare:
            os.fchown(made, wanted.uid, wanted.gid)
            os.fchmod(made, wanted.mode)
        return os.fstat(made)
    finally:
        os.close(made)


def _judge(path: str, there: os.stat_result, then: Folder | NamedPipe, owner: Owner | None) -> Iterator[Finding]:
    trusted = {0, os.geteuid(), owner.uid if owner is not None else 0}
    if not _is_kind(there.st_mode, then):
        yield _problem("taken", path, then, f"was a {_word(then)} of the workload and is none now", "move away what lies there")
    elif then.uid in trusted and there.st_uid not in trusted:
        message = f"belonged to user {then.uid} and belongs to user {there.st_uid} now, who could change what the workload uses in it"
        yield _problem("taken", path, then, message, "move it away")


def _problem(what: str, path: str, wanted: Folder | NamedPipe, message: str, remedy: str) -> Finding:
    kind = "folder" if isinstance(wanted, Folder) else "pipe"
    return rules.finding(f"restore-{kind}-{what}", Severity.PROBLEM, path, message, remedy=remedy)
