"""Walk stories through their interruptions under a policy: pure arithmetic on arrays, seconds. Called by `replay`."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Terms:
    """One entry a story, seconds."""

    work: Floats
    """Run time that it needs without interruption, > 0."""
    limit: Floats
    """inf: none."""
    interval: Floats
    """Work between checkpoints; inf: no checkpoints, which is to retry."""
    checkpoint: Floats
    restore: Floats
    durable: Floats
    """Part of a run that the application keeps by itself, 0 to 1."""


@dataclasses.dataclass
class Walk:
    """The stories on their way: progress that is safe, time lost, and which are done or stuck."""

    terms: Terms
    progress: Floats
    lost: Floats
    begun: NDArray[np.bool_]
    """Has been interrupted, so that the next run begins with a restore."""
    done: NDArray[np.bool_]

    @classmethod
    def of(cls, terms: Terms) -> Walk:
        """Return all stories at their beginnings."""
        count = len(terms.work)
        return cls(terms, np.zeros(count), np.zeros(count), np.zeros(count, bool), np.zeros(count, bool))

    def interrupt(self, rows: NDArray[np.intp], after_s: Floats) -> None:
        """Let the stories `rows` (each at most once) run until they are interrupted after `after_s` seconds of run time.

        One that is done before is not interrupted; one that would be done at that very second is.
        """
        open_ = ~self.done[rows]
        rows, after = rows[open_], after_s[open_]
        rest, restart = self.terms.work[rows] - self.progress[rows], self._restart(rows)
        needed = restart + rest + self._checkpoints(rows, rest)
        # An attempt that was cut off needs at least what it ran: often exactly that, as nobody knows how much more.
        finishes = (needed < after) & (needed <= self.terms.limit[rows])
        kept = np.where(finishes, rest, np.minimum(self._kept(rows, after - restart), rest))
        self.progress[rows] += kept
        self.lost[rows] += np.where(finishes, needed - rest, after - kept)
        self.done[rows] = finishes
        self.begun[rows] = True

    def finish(self) -> NDArray[np.bool_]:
        """Let every story that is not done run on undisturbed, from limit to limit; return which ones never end."""
        rows = np.flatnonzero(~self.done)
        rest, restart = self.terms.work[rows] - self.progress[rows], self._restart(rows)
        needed = restart + rest + self._checkpoints(rows, rest)
        limit, saves = self.terms.limit[rows], np.isfinite(self.terms.interval[rows])
        over = needed > limit * (1 + 1e-9)
        # An attempt that ends at its limit: with checkpoints one more of them and a restore; else what the application keeps.
        bound = np.where(np.isfinite(limit), limit, 0.0)
        room = np.where(saves, limit - self.terms.restore[rows] - self.terms.checkpoint[rows], self.terms.durable[rows] * bound)
        stuck = over & ~(room > 0)
        going = over & ~stuck
        ends = np.ceil(np.where(going, needed - limit, 0.0) / np.where(going, room, 1.0))
        each = np.where(saves, self.terms.restore[rows] + self.terms.checkpoint[rows], (1 - self.terms.durable[rows]) * bound)
        self.lost[rows] += np.where(stuck, 0.0, needed - rest + ends * each)
        self.progress[rows] = np.where(stuck, self.progress[rows], self.terms.work[rows])
        never = np.zeros(len(self.done), bool)
        never[rows] = stuck
        self.done[rows] = ~stuck
        return never

    def _restart(self, rows: NDArray[np.intp]) -> Floats:
        """A restore, where there is a checkpoint to restore; a fresh start's set-up is part of the work as accounting sees it."""
        restores = self.begun[rows] & np.isfinite(self.terms.interval[rows]) & (self.progress[rows] > 0)
        return np.where(restores, self.terms.restore[rows], 0.0)

    def _checkpoints(self, rows: NDArray[np.intp], rest: Floats) -> Floats:
        """Time that the checkpoints of the work `rest` take: one after every interval but the last."""
        interval = self.terms.interval[rows]
        saves = np.isfinite(interval)
        count = np.ceil(np.where(saves, rest, 1.0) / np.where(saves, interval, 1.0) - 1e-9) - 1
        return np.where(saves, np.maximum(count, 0.0) * self.terms.checkpoint[rows], 0.0)

    def _kept(self, rows: NDArray[np.intp], ran: Floats) -> Floats:
        """Work that survives an interruption after `ran` seconds of running."""
        ran = np.maximum(ran, 0.0)
        interval = self.terms.interval[rows]
        saves = np.isfinite(interval)
        whole = np.where(saves, interval, 1.0)
        with_checkpoints = np.floor(ran / (whole + np.where(saves, self.terms.checkpoint[rows], 0.0))) * whole
        return np.maximum(np.where(saves, with_checkpoints, 0.0), self.terms.durable[rows] * ran)
