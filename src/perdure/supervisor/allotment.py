"""The time allotted to a workload, as its scheduler sees it now. Called by `keeper`, in whose thread everything here is called back.

Without a scheduler it is what was said at the start. With one, it is asked now and then, and whenever something depends on its answer;
a scheduler that does not answer changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from perdure import errors
from perdure.base import units
from perdure.checkpoint.preflight import codes
from perdure.supervisor.jobs import Job
from perdure.supervisor.reactor import Reactor, Timer
from perdure.supervisor.scheduler import Notice, Outlook, Scheduler, Standing, pause_s
from perdure.supervisor.voice import Voice

Heard = Callable[[Outlook | None], None]
"""Told what the scheduler says; None: it does not answer."""

_LOOKS_OVER = 2


class _Leaving(msgspec.Struct, frozen=True):
    """What the scheduler is to be told, until it takes it."""

    reason: str
    done: Callable[[], None]
    tries: int = 0


class Allotment:
    """Asks `scheduler` from `start` on. `changed` is told whenever the end moved, `noticed` of an announced end, once each; `over` when
    the scheduler has gone on without us: it ended this attempt, and whoever was to tell us did not.
    """

    def __init__(
        self,
        scheduler: Scheduler | None,
        reactor: Reactor,
        voice: Voice,
        *,
        workload: str,
        end_ns: int | None,
        changed: Callable[[], None],
        noticed: Callable[[Notice], None],
        over: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._reactor = reactor
        self._voice = voice
        self._workload = workload
        self._end_ns = end_ns
        self._changed = changed
        self._noticed = noticed
        self._over = over
        self._looks_over = 0
        self._known: Outlook | None = None
        self._told: Notice | None = None
        self._heard: list[Heard] = []
        self._timer: Timer | None = None
        self._closed = False
        self._warned = False
        self.is_busy = False
        """The scheduler is being asked, or told."""

    @property
    def is_asked(self) -> bool:
        """Tell whether there is a scheduler."""
        return self._scheduler is not None

    @property
    def mercy_s(self) -> float:
        """Seconds between the scheduler's SIGTERM and its SIGKILL; 0 without one."""
        return self._scheduler.mercy_s if self._scheduler is not None else 0.0

    @property
    def end_ns(self) -> int | None:
        """When to leave at the latest, UTC; None: nobody says, or the job would not come back, or its time stands still."""
        known = self._known
        if known is None:
            return self._end_ns
        if not known.returns or known.standing is Standing.SUSPENDED:
            return None
        return known.end_ns

    def start(self) -> None:
        """Ask now, and from then on now and then."""
        if self._scheduler is not None:
            self.look(lambda _outlook: None)

    def close(self) -> None:
        """Ask no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def look(self, heard: Heard) -> None:
        """Ask the scheduler now; `heard` is told. Without one, it is told None at once."""
        scheduler = self._scheduler
        if scheduler is None:
            heard(None)
            return
        self._heard.append(heard)
        if not self.is_busy:
            self._ask(scheduler)

    def leave(self, reason: str, done: Callable[[], None]) -> None:
        """Tell the scheduler that the workload is saved and given up, until it takes it; then call `done`. Without one, at once."""
        self.close()
        if self._scheduler is None:
            done()
            return
        self._tell(self._scheduler, _Leaving(reason, done))

    def warn_of_grace(self, whole_s: float) -> None:
        """A checkpoint took `whole_s` seconds: say once when that does not fit into the grace before a preemption."""
        known = self._known
        if self._warned or known is None or known.grace_s is None or whole_s <= known.grace_s + self.mercy_s:
            return
        self._warned = True
        message = (
            f"a checkpoint took {units.format_duration(whole_s)}, a preemption leaves "
            f"{units.format_duration(known.grace_s + self.mercy_s)}: it cannot be saved then, and goes back to the checkpoint before"
        )
        self._voice.warn(self._workload, codes.finding("process-no-time-to-save", self._workload, message), words=message)

    def _ask(self, scheduler: Scheduler) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.is_busy = True
        # Who asks from now on wants an answer from later than this.
        heard, self._heard = self._heard, []
        Job(self._reactor, "perdure-scheduler", scheduler.look, lambda outlook, problem: self._answered(scheduler, heard, outlook, problem))

    def _answered(self, scheduler: Scheduler, heard: list[Heard], outlook: Outlook | None, problem: BaseException | None) -> None:
        self.is_busy = False
        if problem is not None and not isinstance(problem, errors.SchedulerUnavailable | OSError):
            raise problem
        if outlook is not None:
            self._learn(outlook)
        for each in heard:
            each(outlook)
        if self._heard:
            self._ask(scheduler)
        elif not self._closed:
            self._timer = self._reactor.after(scheduler.poll_s, lambda: self.look(lambda _outlook: None))

    def _learn(self, outlook: Outlook) -> None:
        before, self._known = self.end_ns, outlook
        if self._closed:
            return
        # Once may be seen while SIGTERM is on its way.
        self._looks_over = self._looks_over + 1 if outlook.standing is Standing.LEAVING else 0
        if self._looks_over == _LOOKS_OVER:
            self._over()
        if outlook.notice is not None and outlook.returns and outlook.notice != self._told:
            self._told = outlook.notice
            self._noticed(outlook.notice)
        elif self.end_ns != before:
            self._changed()

    def _tell(self, scheduler: Scheduler, leaving: _Leaving) -> None:
        if self.is_busy:  # an answer that nobody waits for any more
            self._reactor.after(pause_s(0), lambda: self._tell(scheduler, leaving))
            return
        self.is_busy = True
        work = lambda: scheduler.saved(leaving.reason)  # noqa: E731 - a name for the line below
        Job(self._reactor, "perdure-scheduler", work, lambda words, problem: self._taken(scheduler, leaving, words, problem))

    def _taken(self, scheduler: Scheduler, leaving: _Leaving, words: str | None, problem: BaseException | None) -> None:
        self.is_busy = False
        match problem:
            case None:
                self._voice.say(words or "")
                leaving.done()
            case errors.SchedulerUnavailable() | OSError():
                if not leaving.tries:
                    self._voice.say(f"{problem}; trying again")
                again = msgspec.structs.replace(leaving, tries=leaving.tries + 1)
                self._reactor.after(pause_s(leaving.tries), lambda: self._tell(scheduler, again))
            case errors.PerdureError():
                self._voice.say(problem.in_words)
                leaving.done()
            case _:
                raise problem
