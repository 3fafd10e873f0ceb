"""Files of /proc/PID: which of them a restore opens again. Called by preflight beforehand, at the freeze, and before a restore.

CRIU opens them by the name that they had, which leads to the same process where the tree sees the /proc of its own PID namespace: each
process has the number there that it had. Elsewhere a file of somebody else would be opened in silence, or none.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from perdure.base import text
from perdure.checkpoint.images import credentials, openfiles
from perdure.checkpoint.preflight.codes import finding
from perdure.model.checkpoint import Owner
from perdure.model.finding import Finding

_INIT = 1
_NAME = re.compile(r"/proc/(\d+)(?:/task/(\d+))?(?:/|$)")


def number(name: str) -> int | None:
    """Return the number of the process that `name` is a file of; None: it is a file of none."""
    told = _NAME.match(name)
    return int(told[1]) if told else None


def why_not(name: str, processes: Collection[int], *, sees_own_proc: bool, owner: Owner | None, is_written: bool) -> str:
    """Return why a restore cannot open `name` again, as the end of a sentence; nothing when it can, or is a file of no process. Pure.

    `processes` are the living ones of the tree by their numbers inside, and `owner` whom all but the init belong to.
    """
    told = _NAME.match(name)
    if told is None:
        return ""
    if not sees_own_proc:
        return "whose number will be another one"
    if int(told[1]) not in processes:
        return "whose process has ended or is not one of the workload's"
    if owner is not None and int(told[1]) == _INIT:
        return "of the init, which is root's"
    if owner is not None and is_written:
        return "open for writing, and root would open it"
    # Files are opened again when all processes are there, and none of their further threads.
    return "" if told[2] in (None, told[1]) else "of a thread, which is not there yet when files are opened again"


def check(images: Path, *, sees_own_proc: bool, owner: Owner | None) -> tuple[Finding, ...]:
    """Return a problem for each file of a process in the folder `images` that a restore cannot open again.

    Raises `errors.InputMissing` and `errors.InputFormat`.
    """
    held = [one for one in openfiles.of(images) if isinstance(one, openfiles.RegularFile) and number(one.name) is not None]
    if not held:
        return ()
    processes = {task.process for task in credentials.of(images)}
    found = []
    for one in held:
        is_written = openfiles.is_written(one)
        if why := why_not(one.name, processes, sees_own_proc=sees_own_proc, owner=owner, is_written=is_written):
            found.append(finding("file-of-process", text.printable(one.name), f"is held, {why}", path=one.name))
    return tuple(found)
