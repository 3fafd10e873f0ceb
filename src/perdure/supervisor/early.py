"""Signals that come before there is a workload: whoever asks for its end gets it, though a store may keep us waiting. Called by `start`.

Opening a store, choosing a checkpoint, reading it and waiting for a lease are calls that return when the store answers, and one in the
network may not. They are made by the main thread, where Python handles signals only between two steps of its own. So the reactor is turned
by a thread meanwhile: a request to end is seen at once. The main thread leaves in good order where it comes by one of the points that
look; where it does not, because it waits for the store, the process ends all the same. What it had begun is cleared away by the next run,
as after a SIGKILL.

Where there is a scheduler, it alone knows what its SIGTERM means, and whether it is about to end the job without one.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from perdure import errors
from perdure.base.proc import process
from perdure.store.owners import Linux
from perdure.supervisor import ending
from perdure.supervisor.jobs import Job
from perdure.supervisor.line import GONE
from perdure.supervisor.reactor import Reactor, Timer
from perdure.supervisor.scheduler import Outlook, Scheduler, Standing, pause_s
from perdure.supervisor.signals import Inbox
from perdure.supervisor.voice import Voice

_ASK_TO_END = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, GONE})
_AGAIN = frozenset({signal.SIGTERM, signal.SIGHUP, GONE})
"""Nothing was started, and nothing is lost: it can be tried again, as after a checkpoint that SIGTERM asked for."""

_LOOK_S = 0.5
_NOTICE_S = 3.0
"""So long a step of ours may take, and putting things in order; what takes longer waits for something, such as the store."""
_LOOKS_OVER = 2
"""So often a scheduler has to say that it ends the job, where it sends no signal: one is on its way after the first time."""


class Left(BaseException):
    """Somebody asked for the end before anything was started. No error: what cleans up after any exception does so after this one.

    `why`: what a scheduler said; empty: the signal `number` came. `returns`: the scheduler may run the job again, and is told.
    """

    def __init__(self, number: int, why: str = "", *, returns: bool = True) -> None:
        super().__init__(number)
        self.number = number
        self.returns = returns
        self._why = why

    @property
    def status(self) -> int:
        """What `run` ends with."""
        return ending.TRY_AGAIN if self.number in _AGAIN else 128 + self.number

    @property
    def name(self) -> str:
        """Who asked, in words."""
        if self._why:
            return self._why
        return "whoever waited for it is gone" if self.number == GONE else signal.Signals(self.number).name


def take_leave(scheduler: Scheduler | None, left: Left, told: str) -> str:
    """Let the scheduler put the job into its queue again, however long that takes; return what happened, which `told` begins."""
    if scheduler is None or not left.returns:
        return told
    tries = 0
    while True:
        try:
            return scheduler.saved(told)
        except (errors.SchedulerUnavailable, OSError):
            time.sleep(pause_s(tries))
            tries += 1
        except errors.PerdureError as error:
            return error.in_words


class Early:
    """Watches for signals from `begin` to `end`, which may follow on each other; what comes afterwards waits in `inbox`.

    With a `scheduler` SIGTERM is obeyed when that ends the job, else it is the workload's, as are all others but the end of a line.
    """

    def __init__(self, reactor: Reactor, inbox: Inbox, voice: Voice, name: str, *, scheduler: Scheduler | None) -> None:
        self._reactor = reactor
        self._inbox = inbox
        self._voice = voice
        self._name = name
        self._scheduler = scheduler
        self._unanswered: list[int] = []
        """Signals of which the scheduler has to be asked what they mean."""
        self._is_asking = False
        self._looks_over = 0
        self._polling: Timer | None = None
        self._asked = threading.Event()
        self._left: Left | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._waiting = 0
        """Signals that the kernel kept for this process at the last look, as a mask."""
        self._anticipated: set[int] = set()
        """Those that were obeyed before they came."""

    def begin(self) -> None:
        """Watch. The reactor belongs to the watching thread until `end`."""
        if self._thread is None:
            self._is_over = False
            self._inbox.hand_to(self._came)
            self._thread = threading.Thread(target=self._watch, name="perdure-early", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Watch no longer: a workload is about to be there, whose end is the keeper's business. Raises `Left`."""
        self.check()
        self.close()
        if self._left is not None:
            self.begin()  # what is still to be put in order may have to wait for the store too
            raise self._left

    def close(self) -> None:
        """Watch no longer."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._reactor.post(self._stop)
            thread.join()
            self._inbox.hand_to(self._inbox.keep)

    def check(self) -> None:
        """Raise `Left` when somebody asked for the end."""
        if self._left is not None:
            raise self._left

    def pause(self, seconds: float) -> None:
        """Let `seconds` pass. Raises `Left` as soon as somebody asks for the end."""
        self._asked.wait(seconds)
        self.check()

    def _watch(self) -> None:
        self._looking = self._reactor.after(_LOOK_S, self._look)
        self._poll_later()
        while not self._is_over:
            self._reactor.turn()
        self._looking.cancel()
        if self._polling is not None:
            self._polling.cancel()

    def _look(self) -> None:
        """See which signals have been waiting for the main thread since the last look.

        The kernel keeps them for it, though this thread could take them, while it is in a call that nothing but SIGKILL ends, as on a
        network file system that does not answer.
        """
        waiting = process.status(os.getpid()).waiting
        for number in _ASK_TO_END - self._anticipated:
            if waiting & self._waiting & 1 << (number - 1):
                self._anticipated.add(number)
                self._heed(number)
        self._waiting = waiting
        self._looking = self._reactor.after(_LOOK_S, self._look)

    def _stop(self) -> None:
        self._is_over = True

    def _came(self, number: int) -> None:
        if number not in _ASK_TO_END:
            self._inbox.keep(number)
        elif number in self._anticipated:
            self._anticipated.remove(number)
        else:
            self._heed(number)

    def _heed(self, number: int) -> None:
        if self._scheduler is None or number == GONE:
            self._obey(Left(number, returns=number != GONE))
        elif number == signal.SIGTERM:
            self._unanswered.append(number)
            self._ask(self._scheduler)
        else:
            self._inbox.keep(number)

    def _poll_later(self) -> None:
        if self._scheduler is not None:
            self._polling = self._reactor.after(self._scheduler.poll_s, self._poll)

    def _poll(self) -> None:
        if self._scheduler is not None:
            self._ask(self._scheduler)
            self._poll_later()

    def _ask(self, scheduler: Scheduler) -> None:
        if self._is_asking or self._left is not None:
            return  # who is answered asks again for what came meanwhile, and who leaves does not ask
        self._is_asking = True
        numbers, self._unanswered = self._unanswered, []
        Job(self._reactor, "perdure-scheduler", scheduler.look, lambda outlook, problem: self._answered(numbers, outlook, problem))

    def _answered(self, numbers: list[int], outlook: Outlook | None, problem: BaseException | None) -> None:
        self._is_asking = False
        if problem is not None and not isinstance(problem, errors.SchedulerUnavailable | OSError):
            raise problem
        if self._thread is None:
            # The workload is there: what the signal means is the keeper's business.
            numbers, self._unanswered = numbers + self._unanswered, []
            for number in numbers:
                self._inbox.put(number)
            return
        left = self._judge(outlook, is_signalled=bool(numbers))
        if left is not None:
            self._obey(left)
            return
        for number in numbers:
            self._inbox.keep(number)
        if self._unanswered and self._scheduler is not None:
            self._ask(self._scheduler)

    def _judge(self, outlook: Outlook | None, *, is_signalled: bool) -> Left | None:
        """Return what is to be obeyed when the scheduler sees the job as `outlook` says, or does not say."""
        if outlook is None:
            return Left(signal.SIGTERM) if is_signalled else None
        if not outlook.is_ending:
            self._looks_over = 0
            return None
        if outlook.notice is not None:
            return Left(signal.SIGTERM, outlook.notice.reason)
        self._looks_over += 1
        if not is_signalled and self._looks_over < _LOOKS_OVER:
            return None
        is_final = outlook.standing is Standing.CANCELLED
        return Left(signal.SIGTERM, "the job was cancelled" if is_final else "ended by the scheduler", returns=not is_final)

    def _obey(self, left: Left) -> None:
        if self._left is not None:
            self._leave(self._left)
        self._left = left
        self._asked.set()
        self._reactor.after(_NOTICE_S, lambda: self._leave(left))

    def _leave(self, left: Left) -> None:
        told = f"{left.name}: what was waited for, perhaps the store, has not come; nothing of {self._name} was started"
        self._voice.say(take_leave(self._scheduler, left, told))
        os._exit(left.status)


class Surroundings(Linux):
    """The real ones, whose pauses end when somebody asks for that."""

    def __init__(self, early: Early) -> None:
        self._early = early

    def pause(self, seconds: float) -> None:
        """Sleep. Raises `Left`."""
        self._early.pause(seconds)
