"""When to save. Pure: what happened and the time go in, what is due comes out. Called by `supervise`.

One checkpoint at a time: what is asked for meanwhile is answered by one more after it. A checkpoint that failed is tried again after a
pause that grows; asking by hand or by signal does not wait for it.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from perdure.base import units
from perdure.model.checkpoint import Trigger
from perdure.supervisor import interval
from perdure.supervisor.record import Options

_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 1800.0
_SAFETY = 2.0
"""With `--before-end auto`: so many times what the last checkpoint took from its trigger until it was durable, …"""
_MARGIN_S = 30.0
"""… and so much on top for what nobody foresees."""
_UNMEASURED_S = 120.0
"""… or this, before there was one; …"""
_MOST_OF_ALLOTTED = 0.5
"""… but no more than half of the time that there was at the start: each life has to come on."""
_MOVED_S = 5.0
"""The end is a time of day, which a clock that is set moves by a little."""


class Due(msgspec.Struct, frozen=True):
    """A checkpoint that is to be made now."""

    trigger: Trigger
    reason: str
    stop: bool = False
    """Give the workload up after it."""


class Triggers:
    """What asks for checkpoints of one workload. Times are seconds on one clock that never jumps."""

    def __init__(self, options: Options, *, now_s: float) -> None:
        self._options = options
        self._since_s = now_s
        self._cost_s = interval.ASSUMED_COST_S
        self._whole_s: float | None = None
        self._failures = 0
        self._not_before_s = now_s
        self._asked: Due | None = None
        self._end_s: float | None = None
        self._allotted_s: float | None = None
        self._end_used = False
        self._is_paused = False

    @property
    def interval_s(self) -> float:
        """Seconds of work between two checkpoints; inf: none by itself."""
        match self._options.every:
            case "never":
                return math.inf
            case "auto":
                return interval.best_s(self.mttf_s, self._cost_s)
            case seconds:
                return seconds

    @property
    def mttf_s(self) -> float:
        """Mean time to failure that `auto` reckons with."""
        return interval.mttf_s(self._options.mttf_s, self._options.rated_mttf_s)

    def ends(self, end_s: float | None, *, now_s: float) -> None:
        """The allotted time ends at `end_s`; None: nobody says."""
        if end_s is not None and self._end_s is not None and end_s > self._end_s + _MOVED_S:
            self._end_used = False  # there is more time than there was when it was used up
        if end_s is not None and self._allotted_s is None:
            self._allotted_s = max(end_s - now_s, 0.0)
        self._end_s = end_s

    def ask(self, due: Due) -> None:
        """Somebody asks for a checkpoint. One that stops the workload outweighs one that does not."""
        if self._asked is None or (due.stop and not self._asked.stop):
            self._asked = due

    def withdraw(self) -> None:
        """Nobody asks any more."""
        self._asked = None

    def pause(self) -> None:
        """The workload stands still on purpose: until `go_on`, none is made by itself but before the end of the allotted time."""
        self._is_paused = True

    def go_on(self, now_s: float) -> None:
        """It works again: the interval begins anew, if it had been paused."""
        if self._is_paused:
            self._is_paused, self._since_s = False, now_s

    def committed(self, now_s: float, *, stopped_s: float, whole_s: float) -> None:
        """A checkpoint is durable: the workload stood still for `stopped_s`, and `whole_s` went by from its trigger."""
        self._cost_s = stopped_s
        self._whole_s = whole_s
        self._failures = 0
        self._not_before_s = now_s
        self._since_s = now_s

    def failed(self, now_s: float) -> float:
        """A checkpoint was not made. Returns the pause in seconds until the next try."""
        pause_s = min(_FIRST_PAUSE_S * 2.0**self._failures, _LONGEST_PAUSE_S)
        self._failures += 1
        return self._put_off(now_s, pause_s)

    def put_off(self, now_s: float) -> float:
        """It was not the moment for a checkpoint: as `failed`, but the pause does not grow, since nothing has to be mended."""
        return self._put_off(now_s, _FIRST_PAUSE_S)

    def _put_off(self, now_s: float, pause_s: float) -> float:
        if math.isfinite(self.interval_s):
            pause_s = max(pause_s, self.interval_s)  # more often than without failures would be odd
        self._not_before_s = now_s + pause_s
        self._since_s = now_s
        return pause_s

    def due(self, now_s: float) -> Due | None:
        """Return the checkpoint that is to be made now, if any; it counts as begun."""
        if self._asked is not None:
            asked, self._asked = self._asked, None
            return asked
        end_s = self._stop_s()
        if end_s is not None and not self._end_used and now_s >= end_s:
            self._end_used = True
            left = units.format_duration(max((self._end_s or now_s) - now_s, 0.0))
            return Due(Trigger.END, f"the allotted time ends in {left}", stop=True)
        if now_s >= self._next_s():
            return Due(Trigger.INTERVAL, f"every {units.format_duration(self.interval_s)}")
        return None

    def next_s(self) -> float:
        """Return when `due` is to be asked next; inf: only when something happens."""
        end_s = self._stop_s()
        return min(self._next_s(), end_s if end_s is not None and not self._end_used else math.inf)

    def _next_s(self) -> float:
        if self._is_paused:
            return math.inf
        return max(self._since_s + self.interval_s, self._not_before_s)

    def _stop_s(self) -> float | None:
        before = self._options.before_end
        if before is None or self._end_s is None:
            return None
        return self._end_s - self.lead_s(before)

    def lead_s(self, before: float | Literal["auto"]) -> float:
        """Return how long before the end to save and stop."""
        if before != "auto":
            return before
        lead_s = _MARGIN_S + (_SAFETY * self._whole_s if self._whole_s is not None else _UNMEASURED_S)
        return lead_s if self._allotted_s is None else min(lead_s, self._allotted_s * _MOST_OF_ALLOTTED)
