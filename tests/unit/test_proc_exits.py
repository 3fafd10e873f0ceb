import os
import signal
import subprocess
import sys

import pytest
from supervised import LIMIT_S, is_zombie, wait_for

from perdure.base.proc import exits
from perdure.base.proc.exits import Exits

FATAL = {signal.SIGTRAP, signal.SIGBUS}


@pytest.fixture
def child():
    with subprocess.Popen(["sleep", "600"]) as made:
        yield made
        made.kill()


def test_whoever_lives_was_not_killed(child):
    with Exits([child.pid]) as watched:
        assert watched.killed_by(FATAL) == ()


def test_a_zombie_tells_on_any_kernel(child, monkeypatch):
    monkeypatch.setattr(exits, "_GET_INFO", 0)
    with Exits([child.pid]) as watched:
        child.send_signal(signal.SIGTRAP)
        wait_for(lambda: is_zombie(child.pid), LIMIT_S)
        assert watched.killed_by(FATAL) == (child.pid,)
        assert watched.killed_by({signal.SIGKILL}) == ()
        child.wait()
        assert watched.killed_by(FATAL) == ()  # and nobody tells any more


def test_whoever_was_reaped_is_told_of_by_a_new_kernel_and_never_wrongly(child):
    with Exits([child.pid]) as watched:
        child.send_signal(signal.SIGTRAP)
        child.wait()
        told = watched.killed_by(FATAL)
    release = tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])
    assert told == ((child.pid,) if release >= (6, 15) else ())


def test_an_exit_status_is_no_signal():
    with (
        subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(5)"], stdin=subprocess.PIPE) as one,
        Exits([one.pid]) as watched,
    ):
        one.communicate(b"\n")
        assert watched.killed_by(FATAL) == ()


def test_whoever_is_gone_before_is_passed_over():
    with subprocess.Popen(["true"]) as one:
        one.wait()
    with Exits([one.pid, os.getpid()]) as watched:
        assert watched.killed_by(FATAL) == ()
