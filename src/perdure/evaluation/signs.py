"""A run's signs of life: its counter, when it was ready and useful again, and how long it may be silent. Called by `conduct`, `slurm_run`.

Both arms, here and on Slurm, are timed by these lines alone.
"""

from __future__ import annotations

from perdure.evaluation import restarter
from perdure.evaluation.plan_workload import Workload
from perdure.evaluation.runs import Recorder
from perdure.model.evaluation import Event, EventKind

_READY_S = 1800.0
_JUST_BEFORE_S = 1e-6


class Signs:
    """What is heard of the lives of one run of `workload`; milestones and signals go to `recorder`. Times are the evaluation's clock's."""

    def __init__(self, workload: Workload, recorder: Recorder) -> None:
        self._workload = workload
        self._recorder = recorder
        self._began_s = 0.0
        self._up_s: float | None = None
        self._last_s: float | None = None
        self._first_ready_s: float | None = None
        self._is_awaited = False
        self.fruitless = 0
        """Lives in a row that made no progress, of those that are over."""
        self.has_reached = False
        """The counter came to the target."""

    @property
    def heartbeat_s(self) -> float:
        """Silence after which a life that has counted hangs."""
        return self._workload.progress.heartbeat_s if self._workload.progress else _READY_S

    @property
    def is_given_up(self) -> bool:
        """Too many lives in a row made no progress."""
        return self.fruitless >= restarter.MOST_FRUITLESS

    def begin(self, at_s: float, *, is_up: bool) -> None:
        """A life begins. With `is_up` the workload itself runs from now on, else from `up` on."""
        self._began_s = at_s
        self._up_s = at_s if is_up else None
        self._last_s = None

    def up(self, at_s: float) -> None:
        """The workload itself runs since then."""
        self._up_s = at_s

    def end(self) -> None:
        """The life is over."""
        self.fruitless = self.fruitless + 1 if self._last_s is None else 0

    def await_useful(self) -> None:
        """The workload was interrupted: its next signal is the first useful one."""
        self._is_awaited = True

    def hear(self, at_s: float, counter: float) -> None:
        """The counter was seen."""
        if self._last_s is None:
            self._recorder.event(Event(at_s, EventKind.READY, counter))
            if self._first_ready_s is None:
                self._first_ready_s = at_s - self._began_s
            if self._is_awaited:
                self._recorder.event(Event(at_s, EventKind.USEFUL, counter))
            self._is_awaited, self.fruitless = False, 0
        self._last_s = at_s
        self._recorder.signal(at_s, counter)
        target = self._workload.progress.target if self._workload.progress else None
        self.has_reached = self.has_reached or (target is not None and counter >= target)

    def hear_late(self, at_s: float, counter: float, *, fault_s: float) -> None:
        """The counter was seen after a fault that ends all work at once: it was said before it."""
        self._recorder.signal(before(fault_s, at_s), counter)

    def is_silent(self, now_s: float) -> bool:
        """Tell whether the life has been silent for so long that it hangs."""
        ready = self._workload.ready
        limit_s = restarter.silence_limit_s(
            heartbeat_s=self.heartbeat_s,
            has_signalled=self._last_s is not None,
            is_up=self._up_s is not None,
            first_ready_s=self._first_ready_s,
            ready_limit_s=_READY_S if ready is None else ready.timeout_s,
        )
        return now_s - max(self._began_s, self._up_s or 0.0, self._last_s or 0.0) >= limit_s


def before(fault_s: float, at_s: float) -> float:
    """Return when something that was read at `at_s` was said, if a fault at `fault_s` let nobody speak after it."""
    return min(at_s, fault_s - _JUST_BEFORE_S)
