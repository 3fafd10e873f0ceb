"""The faults of one run on Slurm: which is due, and having it done. Called by `slurm_run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure import errors
from perdure.evaluation import faults
from perdure.evaluation.plan import Plan
from perdure.evaluation.schedule import Planned
from perdure.evaluation.slurm_strike import Strikes
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind

_LIMIT_SHARE = 0.5
"""A job that leaves in this last share of its time limit left because of it."""


class Striking:
    """Strikes a run with the faults that were `planned`, in order, and with those asked for by hand.

    What happens goes to `record`; `clock` gives its time. `heartbeat_s` after a fault that can be survived, a job that still goes on has
    survived it.
    """

    def __init__(
        self,
        plan: Plan,
        arm: Arm,
        run_id: str,
        planned: tuple[Planned, ...],
        *,
        heartbeat_s: float,
        record: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._limit_s = plan.faults.time_limit_s
        self._strikes = Strikes(plan, arm, run_id)
        self._heartbeat_s = heartbeat_s
        self._coming = list(planned)
        self._record = record
        self._clock = clock
        self._life: dict[str, Any] = {}
        self._job, self._node, self._began_s = 0, "", 0.0
        self.struck: FaultKind | None = None
        """The fault that struck this life."""
        self.at_s = 0.0
        """When the last fault struck."""
        self.met = 0
        """How many faults struck."""

    @property
    def is_at_once(self) -> bool:
        """A fault struck after which nothing works on."""
        return self.struck in faults.AT_ONCE

    def announce(self) -> None:
        """Write down what is planned."""
        for each in self._coming:
            data: dict[str, Any] = {"kind": each.kind.value} | ({} if each.drawn_s is None else {"drawn_s": each.drawn_s})
            self._record(Event(self._clock(), EventKind.FAULT_PLANNED, each.counter, data))

    def limit_s(self) -> float | None:
        """Return the time limit that the job is to get, None when no fault of it is planned."""
        return self._limit_s if any(each.kind is FaultKind.TIME_LIMIT for each in self._coming) else None

    def begin(self, life: int, job: int, node: str) -> None:
        """Life `life` of the job runs on `node`."""
        self._life, self._job, self._node, self._began_s = {"life": life}, job, node, self._clock()
        self.struck = None

    def reached(self, counter: float) -> None:
        """The counter is at `counter`: strike if a fault is due there. A time limit is left to Slurm's own clock."""
        due = self._coming[0] if self._coming else None
        if due is None or due.counter is None or due.kind is FaultKind.TIME_LIMIT:
            return
        if counter >= due.counter and self.struck is None:
            self._strike(self._coming.pop(0))

    def by_hand(self, kind: FaultKind) -> None:
        """Somebody asks for a fault now."""
        self._strike(Planned(kind, None))

    def pass_time(self) -> None:
        """Time went on in a life that is up: a fault may be over."""
        if self.struck in faults.SURVIVABLE and self._clock() - self.at_s >= self._heartbeat_s:
            self.struck = None
            self._strikes.free_disks()

    def hung(self) -> None:
        """The life hangs. If nobody broke it: what it may still write was worked out before it stood still."""
        if self.struck is None:
            self.struck, self.at_s = FaultKind.HANG, self._clock()

    def down(self, state: str) -> None:
        """The life is over, as Slurm shows by `state`: was it its time limit?"""
        due = self._coming[0] if self._coming else None
        if due is None or due.kind is not FaultKind.TIME_LIMIT or self._limit_s is None or self.struck is not None:
            return
        now_s = self._clock()
        if state != "TIMEOUT" and now_s - self._began_s < _LIMIT_SHARE * self._limit_s:
            return
        self._coming.pop(0)
        way = "Slurm ended it at its time limit" if state == "TIMEOUT" else "it left before its time limit"
        self._struck_by(FaultKind.TIME_LIMIT, now_s)
        self._record(Event(now_s, EventKind.FAULT_INJECTED, None, {"kind": FaultKind.TIME_LIMIT.value} | self._life | {"way": way}))

    def is_down(self) -> None:
        """The job has left its node."""
        self._strikes.is_down()

    def close(self) -> None:
        """The run is over. Raises `errors.EnvironmentUnfit` when a node does not come back."""
        self._strikes.close()

    def _strike(self, planned: Planned) -> None:
        began_s = self._clock()
        data: dict[str, Any] = {"kind": planned.kind.value} | self._life
        if planned.counter is None:
            data["by_hand"] = True
        try:
            if self.struck is not None:
                raise errors.Unsupported(f"the {self.struck.value} before it is not over yet")
            done = self._strikes.strike(planned.kind, self._job, self._node)
        except (errors.Unsupported, errors.SchedulerUnavailable) as error:
            self._record(Event(self._clock(), EventKind.FAULT_PLANNED, planned.counter, data | {"failed": str(error)}))
            return
        # It struck while the command ran. Its begin is taken, in both arms: no recovery is called shorter than it was.
        self._struck_by(planned.kind, began_s)
        data |= done | {"took_s": self._clock() - began_s}
        self._record(Event(began_s, EventKind.FAULT_INJECTED, planned.counter, data))

    def _struck_by(self, kind: FaultKind, at_s: float) -> None:
        self.struck, self.at_s = kind, at_s
        self.met += 1
