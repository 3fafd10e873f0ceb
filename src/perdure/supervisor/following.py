"""A workload's log as somebody reads it while it is written, over all its lives. Called by `perdure logs`."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Callable
from pathlib import Path

from perdure.supervisor import listing, lock, state
from perdure.supervisor.folders import Folders
from perdure.supervisor.record import State

LOOK_S = 0.2
"""Between two looks. A log that was cut for a resume grows again only when the workload was seen to live, which takes longer."""

_CHUNK_BYTES = 1 << 16


class Stage(enum.Enum):
    """Whether anything more is to come."""

    RUNS = "runs"
    LOST = "lost"
    """It ended with its supervisor: the next run goes on with it."""
    ENDED = "ended"
    """By itself, or it was stopped, or removed."""


class Tail:
    """What is still to be read of the log behind `descriptor`, closed by `close`. `path`: where another one may take its place."""

    def __init__(self, descriptor: int, path: Path | None = None) -> None:
        self._descriptor = descriptor
        self._path = path
        self.at = 0
        """Offset of what comes next."""

    def copy(self, write: Callable[[bytes], object]) -> None:
        """Hand all that is there to `write`."""
        while content := os.pread(self._descriptor, _CHUNK_BYTES, self.at):
            write(content)
            self.at += len(content)

    def catch_up(self) -> None:
        """Go back where a resume has cut the log, and to the beginning of one that a new start has put in its place."""
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._reopen(self._path)
        self.at = min(self.at, os.fstat(self._descriptor).st_size)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    def _reopen(self, path: Path) -> None:
        there, here = os.lstat(path), os.fstat(self._descriptor)
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
            return
        again = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.close()
        self._descriptor, self.at = again, 0


def follow(
    tail: Tail, look: Callable[[], Stage], write: Callable[[bytes], object], *, wait: Callable[[float], None], lost: Callable[[], None]
) -> None:
    """Hand the log to `write` until the workload has ended, which `look` is asked for again and again, with `wait` in between.

    A workload that is lost meanwhile is waited for, and `lost` told of it once each time; one that is lost from the start is not.
    """
    has_run = is_told = False
    while True:
        # Asked before reading: what is written until the supervisor ends is read after it.
        now = look()
        tail.copy(write)
        if now is Stage.ENDED or (now is Stage.LOST and not has_run):
            return
        if now is Stage.LOST and not is_told:
            lost()
        has_run, is_told = True, now is Stage.LOST
        wait(LOOK_S)
        tail.catch_up()


def stage(folders: Folders, name: str) -> Stage:
    """Return whether anything more is to come of the workload `name`. Raises `errors.OutputError`, `errors.InputFormat`."""
    if lock.is_held(folders.lock(name)):
        return Stage.RUNS
    with state.opened(folders.database) as database:
        known = database.get(name)
    if known is None:
        return Stage.ENDED
    match listing.state_of(known, folders):
        case State.STARTING | State.RUNNING | State.SUSPENDED:
            return Stage.RUNS  # since just now
        case State.LOST:
            return Stage.LOST
        case _:
            return Stage.ENDED
