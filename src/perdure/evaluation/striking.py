"""The faults of one run: which is due, doing it, and when it is over. Called by `conduct`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure import errors
from perdure.evaluation import faults
from perdure.evaluation.disk import Disk
from perdure.evaluation.local import Life
from perdure.evaluation.plan import Faults
from perdure.evaluation.schedule import Planned
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind


class Striking:
    """Strikes a run of `arm` with the faults that were `planned`, in order, and with those asked for by hand.

    What happens goes to `record`; `clock` gives its time. `heartbeat_s` after a fault that can be survived, a workload that still goes on
    has survived it. `prepare` comes first.
    """

    def __init__(
        self,
        plan: Faults,
        arm: Arm,
        planned: tuple[Planned, ...],
        *,
        heartbeat_s: float,
        record: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._plan = plan
        self._arm = arm
        self._coming = list(planned)
        self._heartbeat_s = heartbeat_s
        self._record = record
        self._clock = clock
        self._struck: Planned | None = None
        self._life_number = 0
        self.disk: Disk | None = None
        """The disk that can be filled, where the plan names that fault."""
        self.at_s = 0.0
        """When the last fault struck."""
        self.met = 0
        """How many faults struck."""
        self.kill_s: float | None = None
        """When a life that was asked to end is ended; None: it was not asked."""

    def prepare(self, disk_place: Path) -> None:
        """Write down what is planned, and mount the disk at `disk_place` where there is to be one. Raises what `disk.Disk` raises."""
        if FaultKind.DISK_FULL in self._plan.kinds:
            self.disk = Disk(disk_place)
        for each in self._coming:
            data: dict[str, Any] = {"kind": each.kind.value} | ({} if each.drawn_s is None else {"drawn_s": each.drawn_s})
            if each.kind is FaultKind.TIME_LIMIT:
                data["after_s"] = self._plan.time_limit_s
            self._record(Event(self._clock(), EventKind.FAULT_PLANNED, each.counter, data))

    @property
    def struck(self) -> FaultKind | None:
        """The fault that struck and is not over."""
        return None if self._struck is None else self._struck.kind

    def begin(self, life_number: int) -> None:
        """A life begins."""
        self._life_number = life_number
        self.kill_s = None

    def limit_s(self) -> float | None:
        """Return the time limit of a life that begins now, None when it has none."""
        return self._plan.time_limit_s if self._coming and self._coming[0].kind is FaultKind.TIME_LIMIT else None

    def reached(self, counter: float, life: Life) -> None:
        """The counter is at `counter`: strike if a fault is due there."""
        due = self._coming[0] if self._coming else None
        if due is None or due.counter is None or due.kind is FaultKind.TIME_LIMIT:
            return
        if counter >= due.counter and self._struck is None:
            self._strike(self._coming.pop(0), life)

    def pass_time(self, began_s: float, life: Life) -> None:
        """Time went on in a life that began at `began_s`: strike if its limit is reached; a fault may be over."""
        now_s = self._clock()
        limit_s = self.limit_s()
        if limit_s is not None and self._struck is None and now_s - began_s >= limit_s:
            self._strike(self._coming.pop(0), life)
        elif self.struck in faults.SURVIVABLE and now_s - self.at_s >= self._heartbeat_s:
            self.get_over()

    def by_hand(self, kind: FaultKind, life: Life) -> None:
        """Somebody asks for a fault now."""
        self._strike(Planned(kind, None), life)

    def get_over(self) -> None:
        """The fault is over, and the life with it or not."""
        self._struck = None
        if self.disk is not None:
            self.disk.free()

    def close(self) -> None:
        """The run is over."""
        if self.disk is not None:
            self.disk.close()

    def _strike(self, planned: Planned, life: Life) -> None:
        data: dict[str, Any] = {"kind": planned.kind.value, "life": self._life_number}
        if planned.counter is None:
            data["by_hand"] = True
        try:
            if self._struck is not None:
                raise errors.Unsupported(f"the {self._struck.kind.value} before it is not over yet")
            done = faults.inject(planned.kind, life.processes(self._arm), node=life.node, disk=self.disk)
        except (errors.ProcessGone, errors.Unsupported) as error:
            self._record(Event(self._clock(), EventKind.FAULT_PLANNED, planned.counter, data | {"failed": str(error)}))
            return
        self._struck, self.at_s = planned, self._clock()
        self.met += 1
        self._record(Event(self.at_s, EventKind.FAULT_INJECTED, planned.counter, data | done))
        if planned.kind in faults.ASKED_FIRST:
            self.kill_s = self.at_s + self._plan.grace_s
