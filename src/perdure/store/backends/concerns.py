"""Who else could read, replace or take away a store in a directory. Called by the commands that open or make one, which print it.

A checkpoint holds a program's memory: passwords, keys, data. Its files are private whatever lies around them; what is told here is about
what others learn of the store, and what they could put in its place.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from perdure.model.finding import Finding, Severity


def find(path: str | os.PathLike[str]) -> tuple[Finding, ...]:
    """Return what is of concern about the directory store at `path`, which need not be there yet. Nothing is raised: what may not be looked
    at is passed over.
    """
    store = Path(path).absolute()
    found: list[Finding] = []
    status = _look(store)
    if status is not None:
        found += _about_store(store, status)
    parent = _look(store.parent)
    if parent is not None and parent.st_mode & stat.S_IROTH:
        message = f"everybody may list {store.parent}, and sees that there is a store, and when it changes"
        found.append(
            _warning("store-parent-readable", store.parent, message, "keep the store in a folder that is yours alone: mkdir -m 700 FOLDER")
        )
    for folder in store.parents:
        status = _look(folder)
        if status is None:
            continue
        if status.st_mode & (stat.S_IWOTH | stat.S_IWGRP) and not status.st_mode & stat.S_ISVTX and not _is_own_group(status):
            message = f"others may write to {folder}, and could put another store in the place of {store}"
            found.append(_warning("store-parent-writable", folder, message, f"chmod go-w {folder}, or keep the store elsewhere"))
        if status.st_uid not in (os.geteuid(), 0):
            message = f"{folder} belongs to user {status.st_uid}, who could put another store in the place of {store}"
            found.append(_warning("store-parent-owner", folder, message, "keep the store in a folder of yours or of root's"))
    return tuple(found)


def about_key(path: str | os.PathLike[str]) -> tuple[Finding, ...]:
    """Return what is of concern about the key file at `path`: who reads it reads every checkpoint. Nothing is raised."""
    file = Path(path).absolute()
    status = _look(file)
    if status is None or not status.st_mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        return ()
    message = f"others may read or change the key file {file}: it is all that keeps checkpoints secret"
    return (_warning("store-key-open", file, message, f"chmod 600 {file}"),)


def _about_store(store: Path, status: os.stat_result) -> list[Finding]:
    found = []
    if status.st_uid != os.geteuid():
        message = f"the store {store} belongs to user {status.st_uid}, not to you: that user can read and change every checkpoint in it"
        found.append(_warning("store-owner", store, message, f"chown {os.geteuid()} {store}, or use a store of your own"))
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        verb = "write to" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else "look into"
        message = f"others may {verb} the store's folder {store}; what is in it is private, its names and sizes are not"
        found.append(_warning("store-open", store, message, f"chmod 700 {store}"))
    return found


def _is_own_group(status: os.stat_result) -> bool:
    """Tell whether only the group may write, and that group is one user's own (the custom of one group for each user) or root's."""
    return not status.st_mode & stat.S_IWOTH and status.st_gid == status.st_uid


def _look(folder: Path) -> os.stat_result | None:
    try:
        return os.stat(folder)
    except OSError:
        return None


def _warning(code: str, subject: Path, message: str, remedy: str) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, subject=str(subject), message=message, remedy=remedy, path=str(subject))
