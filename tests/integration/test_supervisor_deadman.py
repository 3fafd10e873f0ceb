"""The last resort of a lease: a process is killed at the lease's end, not before, and not when the lease was renewed or nobody waits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
import stores
from supervised import wait_for

from perdure.checkpoint import tree
from perdure.checkpoint.tree import Tree
from perdure.store import lives
from perdure.supervisor.deadman import DeadMan

TTL_S = 0.3
LOOKS_S = 1.2
"""Real time in which the thread looks a few times at a clock that stands still."""


@pytest.fixture
def around():
    return stores.Still()


@pytest.fixture
def held(tmp_path, around):
    return lives.begin(stores.new_repository(tmp_path), "w", restored_from=None, surroundings=around, ttl_s=TTL_S)


@pytest.fixture
def process():
    with subprocess.Popen(["sleep", "600"]) as started:
        yield started
        started.kill()


def root_of(process) -> Tree:
    return Tree(process.pid, tree.start_ticks_of(process.pid))


def lives_on(process) -> bool:
    try:
        process.wait(LOOKS_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def test_it_strikes_at_the_leases_end_and_each_renewal_puts_that_off(around, held, process):
    deadman = DeadMan(held, root_of(process))
    deadman.start()
    for _renewal in range(2):
        around.pass_time(TTL_S * 0.9)
        assert lives_on(process)
        held.renew()
    around.pass_time(TTL_S * 1.1)
    assert process.wait() == -9
    deadman.join()
    assert deadman.has_struck


def test_closed_it_strikes_nobody(around, held, process):
    deadman = DeadMan(held, root_of(process))
    deadman.start()
    deadman.close()
    deadman.join()
    around.pass_time(TTL_S * 2)
    assert process.poll() is None
    assert not deadman.has_struck


SUSPENDED = """
import subprocess, sys, time
from perdure.checkpoint import tree
from perdure.checkpoint.tree import Tree
from perdure.supervisor import deadman as module
from perdure.supervisor.deadman import DeadMan

if sys.argv[1] == "never":
    module.RENEWAL_S = 0.5

if sys.argv[1] == "told":
    module.RENEWAL_S = 600.0

class Held:
    ttl_s = 2.0
    looks = 0
    def __init__(self): self.since_s = now_s() + 600
    @property
    def remaining_s(self):
        self.looks += 1
        return self.since_s + self.ttl_s - now_s()

now_s = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
held = Held()
with subprocess.Popen(["sleep", "600"]) as victim:
    deadman = DeadMan(held, Tree(victim.pid, tree.start_ticks_of(victim.pid)))
    deadman.start()
    while held.looks < 2:  # then it is about to wait
        time.sleep(0.01)
    time.sleep(0.05)
    held.since_s = now_s()
    print(victim.pid, flush=True)
    sys.stdin.readline()  # in which it is stopped
    if sys.argv[1] == "never":
        victim.wait()
        print("dead", flush=True)
    else:
        if sys.argv[1] == "told":
            sys.stdin.readline()
        else:
            time.sleep(float(sys.argv[1]))
        held.ttl_s = 600
        time.sleep(1)
        until_s = now_s() + 120
        while len(sys.argv) > 2 and victim.poll() is None and tree.look(victim.pid).states[victim.pid] != sys.argv[2] and now_s() < until_s:
            time.sleep(0.02)
        print("dead" if victim.poll() is not None or deadman.has_struck else tree.look(victim.pid).states[victim.pid], flush=True)
        deadman.close()
        deadman.join()
        victim.kill()
"""


@contextlib.contextmanager
def suspended(renews_after, *comes_to):
    """Give a process that holds a lease of two seconds, and the PID of its workload; it goes on as soon as there is a line to read.

    It renews so many seconds later, or when it is `told` by another line; the workload may take a while until it `comes_to` a state.
    """
    with subprocess.Popen([sys.executable, "-c", SUSPENDED, renews_after, *comes_to], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        victim = int(one.stdout.readline())
        one.send_signal(signal.SIGSTOP)
        one.stdin.write(b"go on\n")
        one.stdin.flush()
        yield one, victim


@pytest.mark.parametrize(
    ("still_s", "renews_after", "expected"),
    [
        pytest.param(3.0, "0", b"S\n", id="renewed at once"),
        pytest.param(1.7, "1.5", b"S\n", id="woken shortly before the lease's end, renewed after it"),
        pytest.param(3.0, "never", b"dead\n", id="never renewed"),
    ],
)
def test_suspended_it_waits_for_a_renewal(still_s, renews_after, expected):
    with suspended(renews_after, *(["S"] if expected == b"S\n" else [])) as (one, _victim):
        time.sleep(still_s)
        one.send_signal(signal.SIGCONT)
        assert one.stdout.readline() == expected


def test_what_is_woken_later_is_stopped_until_the_renewal_and_goes_on_then():
    with suspended("told", "S") as (one, victim):
        os.kill(victim, signal.SIGSTOP)
        time.sleep(3.0)
        one.send_signal(signal.SIGCONT)
        time.sleep(1.0)
        os.kill(victim, signal.SIGCONT)
        wait_for(lambda: tree.look(victim).is_stopped)
        one.stdin.write(b"renew\n")
        one.stdin.flush()
        assert one.stdout.readline() == b"S\n"


def test_what_somebody_else_has_stopped_stays_stopped():
    with suspended("1") as (one, victim):
        os.kill(victim, signal.SIGSTOP)
        time.sleep(3.0)
        one.send_signal(signal.SIGCONT)
        assert one.stdout.readline() == b"T\n"
        os.kill(victim, signal.SIGKILL)
