"""Signals before there is a workload: seen while the main thread waits, obeyed or kept for the keeper."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading

import pytest

from perdure.supervisor.early import Early, Left, Surroundings
from perdure.supervisor.line import GONE
from perdure.supervisor.reactor import Reactor
from perdure.supervisor.signals import Inbox
from perdure.supervisor.voice import Voice


class Desk:
    """What `Early` stands between."""

    def __init__(self, *, obeys: bool = True) -> None:
        self.reactor = Reactor()
        self.inbox = Inbox()
        self.early = Early(self.reactor, self.inbox, Voice(quiet=True, as_json=False), "a", obeys=obeys)

    def comes(self, number: int) -> None:
        """Let a signal come, and wait until it was seen."""
        seen = threading.Event()
        self.reactor.post(lambda: (self.inbox.put(number), seen.set()))
        assert seen.wait(60)

    def kept(self) -> list[int]:
        """What a keeper is given."""
        found: list[int] = []
        self.inbox.hand_to(found.append)
        return found


@pytest.fixture
def desks():
    with contextlib.ExitStack() as stack:

        def make(**options) -> Desk:
            desk = Desk(**options)
            stack.callback(desk.reactor.close)
            stack.callback(desk.early.close)
            return desk

        yield make


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (GONE, 75), (signal.SIGINT, 130), (signal.SIGQUIT, 131)],
    ids=["TERM", "HUP", "gone", "INT", "QUIT"],
)
def test_whoever_asks_for_the_end_gets_it(desks, number, status):
    desk = desks()
    desk.early.begin()
    desk.early.check()
    desk.comes(number)
    with pytest.raises(Left) as caught:
        desk.early.check()
    assert caught.value.status == status
    with pytest.raises(Left):
        desk.early.end()


KEPT = """
import os, signal
from perdure.supervisor.early import Early, Left, Surroundings
from perdure.supervisor.reactor import Reactor
from perdure.supervisor.signals import Inbox
from perdure.supervisor.voice import Voice

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
reactor, inbox = Reactor(), Inbox()
early = Early(reactor, inbox, Voice(quiet=True, as_json=False), "a", obeys=True)
early.begin()
os.kill(os.getpid(), signal.SIGTERM)
try:
    Surroundings(early).pause(60)
except Left as left:
    print("left with", left.status)
reactor.post(lambda: inbox.put(signal.SIGTERM))  # the thread has come loose, and it comes at last
early.close()
print("only once")
"""


def test_one_that_the_kernel_keeps_for_a_thread_that_hangs_is_obeyed_once():
    """Blocked by every thread, it stays with the kernel, as it does while the main thread is in a call that only SIGKILL ends."""
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "left with 75\nonly once\n"), done.stderr


def test_a_pause_ends_at_once(desks):
    desk = desks()
    desk.early.begin()
    timer = threading.Timer(0.05, desk.comes, [signal.SIGTERM])
    timer.start()
    with pytest.raises(Left):
        Surroundings(desk.early).pause(3600)
    timer.join()


def test_what_is_for_the_workload_waits_for_it(desks):
    desk = desks()
    desk.early.begin()
    desk.comes(signal.SIGUSR1)
    desk.comes(signal.SIGWINCH)
    desk.early.end()
    desk.inbox.put(signal.SIGTERM)  # the reactor is the keeper's from here on
    assert desk.kept() == [signal.SIGUSR1, signal.SIGWINCH, signal.SIGTERM]


def test_what_came_between_two_tries_is_obeyed_at_the_next(desks):
    desk = desks()
    desk.early.begin()
    desk.early.end()
    desk.inbox.put(signal.SIGINT)
    desk.early.begin()
    with pytest.raises(Left):
        desk.early.check()


def test_a_scheduler_is_asked_first(desks):
    desk = desks(obeys=False)
    desk.early.begin()
    desk.inbox.put(signal.SIGTERM)
    desk.early.pause(0.0)
    desk.early.end()
    assert desk.kept() == [signal.SIGTERM]
