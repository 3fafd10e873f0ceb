"""Signals before there is a workload: seen while the main thread waits, obeyed or kept for the keeper."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading

import pytest

from perdure import errors
from perdure.supervisor.early import Early, Left, Surroundings, take_leave
from perdure.supervisor.line import GONE
from perdure.supervisor.reactor import Reactor
from perdure.supervisor.scheduler import Begun, Notice, Outlook, Standing
from perdure.supervisor.signals import Inbox
from perdure.supervisor.voice import Voice


class Desk:
    """What `Early` stands between."""

    def __init__(self, *, scheduler: Slurm | None = None) -> None:
        self.reactor = Reactor()
        self.inbox = Inbox()
        self.early = Early(self.reactor, self.inbox, Voice(quiet=True, as_json=False), "a", scheduler=scheduler)

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
def desks(monkeypatch):
    # Whoever was asked to leave and has not after this long is ended, with the whole process: a test on a busy machine may stand still.
    monkeypatch.setattr("perdure.supervisor.early._NOTICE_S", 3600.0)
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
from perdure.supervisor import early as module
from perdure.supervisor.early import Early, Left, Surroundings
from perdure.supervisor.reactor import Reactor
from perdure.supervisor.signals import Inbox
from perdure.supervisor.voice import Voice

module._NOTICE_S = 3600.0  # on a busy machine this may take long
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
reactor, inbox = Reactor(), Inbox()
early = Early(reactor, inbox, Voice(quiet=True, as_json=False), "a", scheduler=None)
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


class Slurm:
    """A scheduler that sees the job as `outlook`."""

    poll_s = 3600.0
    mercy_s = 30.0

    def __init__(self) -> None:
        self.outlook: Outlook | Exception = Outlook(standing=Standing.RUNNING, end_ns=None)
        self.asked = threading.Semaphore(0)
        self.told: list[str] = []

    def look(self) -> Outlook:
        self.asked.release()
        if isinstance(self.outlook, Exception):
            raise self.outlook
        return self.outlook

    def saved(self, reason: str) -> str:
        self.told.append(reason)
        if len(self.told) < 2:
            raise errors.SchedulerUnavailable("away", hint="")
        return f"{reason}; taken"

    def lines(self, begun: Begun) -> tuple[str, ...]:
        return (begun.workload,)


@pytest.fixture
def slurm():
    return Slurm()


def left_by(desk) -> Left:
    """Wait until somebody leaves."""
    with pytest.raises(Left) as caught:
        desk.early.pause(60)
    return caught.value


def test_a_scheduler_that_goes_on_with_the_job_means_the_workload(desks, slurm):
    desk = desks(scheduler=slurm)
    desk.early.begin()
    desk.comes(signal.SIGTERM)
    desk.comes(signal.SIGHUP)
    desk.comes(signal.SIGINT)
    assert slurm.asked.acquire(timeout=60)
    desk.early.end()
    kept = desk.kept()
    while len(kept) < 3:  # the answer may still be on its way
        desk.reactor.turn()
    assert sorted(kept) == [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]


def test_a_signal_that_is_still_asked_about_is_for_the_keeper_to_ask_about(desks, slurm):
    answer = threading.Event()
    slurm.look = lambda: (answer.wait(60), slurm.outlook)[1]
    desk = desks(scheduler=slurm)
    desk.early.begin()
    desk.comes(signal.SIGTERM)
    desk.early.end()
    kept = desk.kept()
    answer.set()
    while not kept:
        desk.reactor.turn()
    assert kept == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("outlook", "name", "returns"),
    [
        (Outlook(standing=Standing.LEAVING, end_ns=None), "ended by the scheduler", True),
        (Outlook(standing=Standing.CANCELLED, end_ns=None), "the job was cancelled", False),
        (Outlook(standing=Standing.RUNNING, end_ns=None, notice=Notice(1, "preempted")), "preempted", True),
        (errors.SchedulerUnavailable("away", hint=""), "SIGTERM", True),
    ],
    ids=["ending", "cancelled", "preempted", "unknown"],
)
def test_a_scheduler_that_ends_the_job_is_obeyed(desks, slurm, outlook, name, returns):
    slurm.outlook = outlook
    desk = desks(scheduler=slurm)
    desk.early.begin()
    desk.comes(signal.SIGTERM)
    left = left_by(desk)
    assert (left.name, left.status, left.returns) == (name, 75, returns)


def test_whoever_waited_is_gone_whatever_the_scheduler_says(desks, slurm):
    desk = desks(scheduler=slurm)
    desk.early.begin()
    desk.comes(GONE)
    left = left_by(desk)
    assert (left.name, left.returns) == ("whoever waited for it is gone", False)
    assert not slurm.asked.acquire(timeout=0)


@pytest.mark.parametrize(("standing", "looks"), [(Standing.RUNNING, 1), (Standing.LEAVING, 2)], ids=["preempted", "ending"])
def test_a_scheduler_that_sends_no_signal_is_looked_at(desks, slurm, standing, looks):
    slurm.poll_s = 0.05
    slurm.outlook = Outlook(standing=standing, end_ns=None, notice=Notice(1, "preempted") if standing is Standing.RUNNING else None)
    desk = desks(scheduler=slurm)
    desk.early.begin()
    left_by(desk)
    assert [slurm.asked.acquire(timeout=0) for _ in range(3)] == [number < looks for number in range(3)]


def test_a_scheduler_is_told_until_it_takes_it_and_not_of_what_it_has_ended_for_good(slurm, monkeypatch):
    monkeypatch.setattr("perdure.supervisor.scheduler._AGAIN_S", 0.01)
    assert take_leave(slurm, Left(signal.SIGTERM), "nothing") == "nothing; taken"
    assert slurm.told == ["nothing"] * 2
    assert take_leave(slurm, Left(signal.SIGTERM, returns=False), "nothing") == "nothing"
    assert take_leave(None, Left(signal.SIGTERM), "nothing") == "nothing"
    assert len(slurm.told) == 2


def test_a_scheduler_that_does_not_take_the_job_back_says_what_to_do(slurm, monkeypatch):
    def refuse(_reason):
        raise errors.Unsupported("nothing; not put into the queue again", hint="once that is possible: scontrol requeue 7")

    monkeypatch.setattr(slurm, "saved", refuse)
    said = "nothing; not put into the queue again (once that is possible: scontrol requeue 7)"
    assert take_leave(slurm, Left(signal.SIGTERM), "nothing") == said
