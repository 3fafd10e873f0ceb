"""How many seats there are: a lock for each, which the kernel drops when its holder ends. Called by `seat`.

Counted so, nothing has to be remembered: an agent that is started anew, and seats that no agent started, count alike.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from perdure import errors
from perdure.model.checkpoint import Owner
from perdure.supervisor import lock

MOST_OF_A_USER = 256
MOST = 4096
MOST_KNOWN = 2000
"""Workloads that a user may have on this machine, running or not: each takes files in folders that all users share a disk in."""

_FOLDER = "seats"


@contextlib.contextmanager
def taken(state: Path, user_state: Path, owner: Owner) -> Iterator[None]:
    """Take one of the places of `owner`, and one of all, while the block runs. `state` is root's state folder, `user_state` the user's.

    Raises `errors.AgentUnavailable` when none is free.
    """
    with contextlib.ExitStack() as stack:
        _take(stack, user_state / _FOLDER, MOST_OF_A_USER, f"user {owner.uid} has {MOST_OF_A_USER} workloads running already")
        _take(stack, state / _FOLDER, MOST, f"{MOST} workloads are running already")
        yield


def require_room(user_state: Path, name: str | None) -> None:
    """Raise `errors.Unsupported` when the user of `user_state` has so many workloads that one more, unless `name` is known, is too many."""
    folder = user_state / "workloads"
    if name is not None and (folder / name).is_dir():
        return
    if folder.is_dir() and sum(1 for _ in folder.iterdir()) >= MOST_KNOWN:
        raise errors.Unsupported(f"you have {MOST_KNOWN} workloads on this machine", hint="forget those that are done with: perdure rm")


def count(user_state: Path) -> int:
    """Return how many seats run with `user_state` as their user's state folder."""
    folder = user_state / _FOLDER
    return sum(lock.is_held(path) for path in folder.iterdir()) if folder.is_dir() else 0


def _take(stack: contextlib.ExitStack, folder: Path, most: int, full: str) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    first = os.getpid()  # somewhere, so that the first look mostly finds a free one
    for number in range(first, first + most):
        with contextlib.suppress(errors.WorkloadBusy):
            stack.enter_context(lock.held(folder / str(number % most), full))
            return
    raise errors.AgentUnavailable(full, hint="end one first, or try later; see perdure ps")
