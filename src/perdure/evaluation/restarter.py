"""The stand-in for a scheduler, the same for both arms: what follows when a life ended, and how long silence is no hang. Pure.

Called by `conduct`. A life that a fault ended, or that was found to hang, goes back into the queue; so does one that asks for it by the
status 75. One that ended with 0 has done its work, unless it was asked to leave before: then it is queued again, as schedulers do with a
preempted job. Any other end is the workload's own failure and ends the run.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.evaluation import faults
from perdure.model.evaluation import FaultKind

TRY_AGAIN = 75
MOST_FRUITLESS = 3
"""After so many lives in a row without any progress the run is given up."""

Next = Literal["restart", "completed", "failed"]


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a life ended."""

    status: int | None
    """Exit status, minus the signal that ended it; None: its node was lost, and nobody can tell."""
    struck: FaultKind | None = None
    """The fault that it met and that nothing has come after yet."""
    hung: bool = False
    """It was found to hang, and was ended."""
    is_target_reached: bool = False
    fruitless: int = 0
    """Lives in a row, this one included, that made no progress."""
    has_recovered: bool = False
    """A fault was met before, in this life or an earlier one."""


def after(end: End) -> Next:
    """Return what follows the end of a life."""
    if end.is_target_reached:
        return "completed"
    asked = end.struck in faults.ASKED_FIRST
    if end.status == 0 and not end.hung and not asked:
        return "completed"
    if end.fruitless >= MOST_FRUITLESS:
        return "failed"
    # A life after a fault that cannot even begin, such as one whose restore failed, is tried again.
    if end.struck is not None or end.hung or end.status in (None, TRY_AGAIN) or (end.fruitless > 0 and end.has_recovered):
        return "restart"
    return "failed"


def silence_limit_s(*, heartbeat_s: float, has_signalled: bool, is_up: bool, first_ready_s: float | None, ready_limit_s: float) -> float:
    """Return how long a life may be silent until it counts as hung, in seconds, from its last signal or else from when it was up.

    One that has signalled: the heartbeat. One that has not: `ready_limit_s` in the first life of a run, and as long as it is still being
    brought back (not `is_up`); else the heartbeat and twice what the first life took to its first signal.
    """
    if has_signalled:
        return heartbeat_s
    return ready_limit_s if first_ready_s is None or not is_up else heartbeat_s + 2 * first_ready_s
