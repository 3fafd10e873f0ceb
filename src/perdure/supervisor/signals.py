"""Signals as events of the reactor, so that nothing happens in between. Called by `keeper`."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

from perdure.supervisor.reactor import READ, Reactor

HANDLED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGTSTP,
    signal.SIGCONT,
)
OF_THE_JOB = frozenset(
    {
        *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
        *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR, signal.SIGURG, signal.SIGXCPU),
        *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
    }
)
"""Where a scheduler keeps us, these are the workload's business alone: jobs have themselves warned by one of them."""
IGNORED = (signal.SIGPIPE, signal.SIGTTIN, signal.SIGTTOU)
"""A pipe that broke, and a terminal that is another job's, are told by an error of the call."""

_AT_A_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)

_Handler = Callable[[int, FrameType | None], object] | int | None


class Inbox:
    """Signals that came, until somebody takes them."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._receive: Callable[[int], None] = self.keep

    def put(self, number: int) -> None:
        """Signal `number` came."""
        self._receive(number)

    def keep(self, number: int) -> None:
        """Let signal `number` wait for the next one who takes them."""
        self._waiting.append(number)

    def hand_to(self, receive: Callable[[int], None]) -> None:
        """Give what came, and what will come, to `receive`."""
        self._receive = receive
        waiting, self._waiting = self._waiting, []
        for number in waiting:
            receive(number)


class Source(Protocol):
    """Something else that signals come from, such as a `line.Line`."""

    def fileno(self) -> int:
        """Return the descriptor to wait at."""

    def take(self) -> tuple[int, ...]:
        """Return what came; SIGKILL is the last."""


@contextlib.contextmanager
def delivered(reactor: Reactor, source: Source | None = None, *, passed_over: frozenset[int] = frozenset()) -> Iterator[Inbox]:
    """Collect each of `HANDLED` that arrives while the block runs, in the reactor's thread, and what comes from `source`.

    Those `passed_over` count only when they come from there: a scheduler that signals all processes of a job means none of ours.

    Main thread only, and for the rest of the process: after the block what comes is of no use any more, and must not end in its own way a
    process that ends with a status of ours. A person at a terminal still can.
    """
    inbox = Inbox()
    ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            for number in os.read(ours, 256):
                if number not in passed_over:
                    inbox.put(number)

    found: dict[int, _Handler] = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    # A handler must be there for the number to be written; ignored signals stay ignored where `nohup` asked for it.
    for number in (*HANDLED, *passed_over - frozenset(HANDLED)):
        known = signal.getsignal(number)
        if number is signal.SIGHUP and known is signal.SIG_IGN:
            continue
        found[number] = signal.signal(number, lambda _number, _frame: None)
    before = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    reactor.watch(ours, READ, read)
    if source is not None:
        _listen(reactor, source, inbox)
    try:
        yield inbox
    finally:
        if source is not None:
            reactor.forget(source.fileno())
        signal.set_wakeup_fd(before)
        for number, handler in found.items():
            # Handlers of Python's own are undone before the process has ended; what is ignored stays so.
            signal.signal(number, handler if number in IGNORED or number in _AT_A_TERMINAL else signal.SIG_IGN)
        reactor.forget(ours)
        os.close(ours)
        os.close(theirs)


def _listen(reactor: Reactor, source: Source, inbox: Inbox) -> None:
    descriptor = source.fileno()

    def read() -> None:
        for number in source.take():
            if number == signal.SIGKILL:
                reactor.forget(descriptor)
            inbox.put(number)

    reactor.watch(descriptor, READ, read)
