"""Whether the processes of an ordinary user's workload are that user's, and nobody else's. Called before each restore and at each freeze.

Images are made and brought back by root: what they say of a process's rights is what it gets. The init is root's, and no other process is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perdure.checkpoint.images import credentials
from perdure.checkpoint.images.credentials import Credentials
from perdure.checkpoint.preflight.codes import finding
from perdure.model.checkpoint import Owner
from perdure.model.finding import Finding

_INIT = 1


def check_images(images: Path, owner: Owner) -> tuple[Finding, ...]:
    """Return a problem for each task in the folder `images` that has other rights than `owner`; the init is left out.

    Raises `errors.InputMissing` and `errors.InputFormat` for images that do not tell.
    """
    return tuple(found for task in credentials.of(images) if task.process != _INIT for found in check(task, owner))


def check(task: Credentials, owner: Owner) -> Iterator[Finding]:
    """Yield what `task` may that `owner` may not. Pure."""
    own_groups = {owner.gid, *owner.groups}
    more = []
    if task.uids != (owner.uid,) * 4:
        more.append(f"user {_first_other(task.uids, {owner.uid})}")
    if not own_groups.issuperset(task.gids) or not own_groups.issuperset(task.groups):
        more.append(f"group {_first_other((*task.gids, *sorted(task.groups)), own_groups)}")
    if task.has_capabilities:
        more.append("capabilities")
    if task.secure_bits:
        more.append("secure bits")
    if more:
        who = f"process {task.process}" if task.process == task.thread else f"thread {task.thread} of process {task.process}"
        yield finding("process-other-user", who, f"has the rights of more than user {owner.uid}: {', '.join(more)}", pid=task.process)


def _first_other(ids: tuple[int, ...], own: set[int]) -> int:
    return next(each for each in ids if each not in own)
