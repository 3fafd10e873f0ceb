"""Signals that come before there is a workload: whoever asks for its end gets it, though a store may keep us waiting. Called by `start`.

Opening a store, choosing a checkpoint, reading it and waiting for a lease are calls that return when the store answers, and one in the
network may not. They are made by the main thread, where Python handles signals only between two steps of its own. So the reactor is turned
by a thread meanwhile: a request to end is seen at once. The main thread leaves in good order where it comes by one of the points that
look; where it does not, because it waits for the store, the process ends all the same. What it had begun is cleared away by the next run,
as after a SIGKILL.
"""

from __future__ import annotations

import os
import signal
import threading

from perdure.base.proc import process
from perdure.store.owners import Linux
from perdure.supervisor import ending
from perdure.supervisor.line import GONE
from perdure.supervisor.reactor import Reactor
from perdure.supervisor.signals import Inbox
from perdure.supervisor.voice import Voice

_ASK_TO_END = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, GONE})
_AGAIN = frozenset({signal.SIGTERM, signal.SIGHUP, GONE})
"""Nothing was started, and nothing is lost: it can be tried again, as after a checkpoint that SIGTERM asked for."""

_LOOK_S = 0.5
_NOTICE_S = 3.0
"""So long a step of ours may take, and putting things in order; what takes longer waits for something, such as the store."""


class Left(BaseException):
    """Somebody asked for the end before anything was started. No error: what cleans up after any exception does so after this one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def status(self) -> int:
        """What `run` ends with."""
        return ending.TRY_AGAIN if self.number in _AGAIN else 128 + self.number

    @property
    def name(self) -> str:
        """Who asked, in words."""
        return "whoever waited for it is gone" if self.number == GONE else signal.Signals(self.number).name


class Early:
    """Watches for signals from `begin` to `end`, which may follow on each other; what comes afterwards waits in `inbox`.

    With `obeys` false all of them wait there: a scheduler that knows why it sends them is asked first, by the keeper.
    """

    def __init__(self, reactor: Reactor, inbox: Inbox, voice: Voice, name: str, *, obeys: bool) -> None:
        self._reactor = reactor
        self._inbox = inbox
        self._voice = voice
        self._name = name
        self._obeys = obeys
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
        if self._obeys and self._thread is None:
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
        while not self._is_over:
            self._reactor.turn()
        self._looking.cancel()

    def _look(self) -> None:
        """See which signals have been waiting for the main thread since the last look.

        The kernel keeps them for it, though this thread could take them, while it is in a call that nothing but SIGKILL ends, as on a
        network file system that does not answer.
        """
        waiting = process.status(os.getpid()).waiting
        for number in _ASK_TO_END - self._anticipated:
            if waiting & self._waiting & 1 << (number - 1):
                self._anticipated.add(number)
                self._obey(number)
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
            self._obey(number)

    def _obey(self, number: int) -> None:
        if self._left is not None:
            self._leave(self._left)
        self._left = Left(number)
        self._asked.set()
        self._reactor.after(_NOTICE_S, lambda left=self._left: self._leave(left))  # type: ignore[misc]

    def _leave(self, left: Left) -> None:
        self._voice.say(f"{left.name}: what was waited for, perhaps the store, has not come; nothing of {self._name} was started")
        os._exit(left.status)


class Surroundings(Linux):
    """The real ones, whose pauses end when somebody asks for that."""

    def __init__(self, early: Early) -> None:
        self._early = early

    def pause(self, seconds: float) -> None:
        """Sleep. Raises `Left`."""
        self._early.pause(seconds)
