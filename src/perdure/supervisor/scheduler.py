"""By what a supervisor hears of the scheduler that allots its time. Implemented by `slurm.scheduler`; asked by `allotment`.

A scheduler knows four things that no process on the node can know: when the allotted time ends (which may change), that it will end
before that (preemption), whether it is the scheduler that is ending the workload right now, and whether the job would come back
afterwards. In return it is told that the workload is saved, and puts the job into its queue again.
"""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from perdure.model.checkpoint import CheckpointId

_AGAIN_S = 2.0
_LONGEST_AGAIN_S = 30.0


def pause_s(tries: int) -> float:
    """Return how long to wait, in seconds, before a scheduler that did not answer so many times before is told again."""
    return min(_AGAIN_S * 2.0 ** min(tries, 10), _LONGEST_AGAIN_S)


class Standing(enum.StrEnum):
    """How the scheduler sees the job right now."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    LEAVING = "leaving"
    """It is being ended and may run again: requeued, preempted, its time is up, its node is given up."""
    CANCELLED = "cancelled"
    """It is being ended for good, because somebody said so."""


class Notice(msgspec.Struct, frozen=True):
    """It was announced that the job will be ended, before its time."""

    end_ns: int
    """When, UTC."""
    reason: str
    """In words, such as "preempted"."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler says at one moment."""

    standing: Standing
    end_ns: int | None
    """When the allotted time ends, UTC; None: never."""
    notice: Notice | None = None
    returns: bool = True
    """Given up after a checkpoint, the job may be put into the queue again."""
    grace_s: float | None = None
    """Seconds from the announcement of a preemption until it strikes; None: nobody says, or this job is not preempted."""

    @property
    def is_ending(self) -> bool:
        """Tell whether the job is being ended, or that was announced."""
        return self.standing in (Standing.LEAVING, Standing.CANCELLED) or (self.notice is not None and self.returns)


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A life that began, as far as the job's output is to tell of it."""

    workload: str
    epoch: int
    restored_from: CheckpointId | None
    hostname: str


class Scheduler(Protocol):
    """One job's scheduler. `look` and `saved` may take seconds and are called from a thread of their own, never two at once."""

    @property
    def poll_s(self) -> float:
        """Seconds between two looks, as long as nothing happens."""

    @property
    def mercy_s(self) -> float:
        """Seconds between the scheduler's SIGTERM and its SIGKILL."""

    def look(self) -> Outlook:
        """Ask how the job stands. Returns within seconds. Raises `errors.SchedulerUnavailable`."""

    def saved(self, reason: str) -> str:
        """The workload is saved and given up because of `reason`: put the job into the queue again. Returns what was done, in words.

        Raises `errors.SchedulerUnavailable` (to be tried again), `errors.Unsupported` when the job may not come back.
        """

    def lines(self, begun: Begun) -> tuple[str, ...]:
        """Return what the job's output says once of the life that has `begun`."""
