"""How long a holder has been quiet, without trusting any clock that somebody can set. Called by `steps` and by the command line's views.

On the holder's own machine and boot, its last sign of life is a moment of the clock that both read. From anywhere else, a
waiter measures for itself how long the row has not moved; no clock of another machine, nor the database's, is believed.
"""

from __future__ import annotations

from perdure.effects.identity import Process, Surroundings
from perdure.effects.rows import Row, Sight, State


class Watch:
    """One waiter's memory of when a row last moved."""

    def __init__(self) -> None:
        self._mark: object = None
        self._since_s = 0.0
        self._last_s = 0.0

    def sight(self, row: Row | None, surroundings: Surroundings) -> Sight:
        """Return what is seen of the row's holder now."""
        if row is None:
            return Sight(alive=None, quiet_s=0.0)
        here, now_s = surroundings.process(), surroundings.boot_s()
        holder = Process.load(row.holder)
        alive = surroundings.is_alive(holder) if row.state is State.RUNNING else None
        observed_s = self._observe(row, here, now_s)
        if holder.boot == here.boot:
            return Sight(alive, max(0.0, now_s - row.beat_boot_s))
        return Sight(alive, observed_s)

    def _observe(self, row: Row, here: Process, now_s: float) -> float:
        # A waiter that was itself frozen and brought back elsewhere reads another clock: it begins anew.
        mark = (row.nonce, row.beat, row.state, here.boot, here.pid, here.started)
        if mark != self._mark or now_s < self._last_s:
            self._mark, self._since_s = mark, now_s
        self._last_s = now_s
        return now_s - self._since_s


class Stopwatch:
    """Time that a caller spent waiting, looked at often: a clock that jumps because the process was brought back elsewhere adds little."""

    _LONGEST_STEP_S = 60.0

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._last_s = surroundings.boot_s()
        self._total_s = 0.0

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        now_s = self._surroundings.boot_s()
        self._total_s += min(max(0.0, now_s - self._last_s), self._LONGEST_STEP_S)
        self._last_s = now_s
        return self._total_s


def from_stamps(row: Row, surroundings: Surroundings, now_s: float) -> Sight:
    """Return what the row's own stamps tell, for people who look once: elsewhere than on the holder's machine, by wall clocks."""
    sight = Watch().sight(row, surroundings)
    if Process.load(row.holder).boot == surroundings.process().boot:
        return sight
    return Sight(sight.alive, max(0.0, now_s - row.beat_at_s))
