"""The last resort of a lease: a process is killed at the lease's end, not before, and not when the lease was renewed or nobody waits."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
import stores

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
from perdure.supervisor.deadman import DeadMan

class Held:
    ttl_s = 90.0 if sys.argv[1] == "renews" else 1.5  # a third of it is how long a renewal is waited for
    def __init__(self): self.since_s = now_s()
    @property
    def remaining_s(self): return self.since_s + 2.0 - now_s()

now_s = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
held = Held()
with subprocess.Popen(["sleep", "600"]) as victim:
    deadman = DeadMan(held, Tree(victim.pid, tree.start_ticks_of(victim.pid)))
    deadman.start()
    print("ready", flush=True)
    sys.stdin.readline()  # in which it is stopped for longer than the lease lasts
    if sys.argv[1] == "renews":
        held.since_s = now_s() + 600
        deadman.close()
        deadman.join()
        print("alive" if victim.poll() is None and not deadman.has_struck else "dead", flush=True)
        victim.kill()
    else:
        victim.wait()
        print("dead", flush=True)
"""


@pytest.mark.parametrize(("then", "expected"), [("renews", b"alive\n"), ("hangs", b"dead\n")])
def test_suspended_for_longer_than_the_lease_it_waits_for_a_renewal(then, expected):
    """The suspended process writes nothing: what it finds on its input was written while it stood still, and is read when it goes on."""
    command = [sys.executable, "-c", SUSPENDED, then]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as suspended:
        assert suspended.stdout.readline() == b"ready\n"
        suspended.send_signal(signal.SIGSTOP)
        suspended.stdin.write(b"go on\n")
        suspended.stdin.flush()
        time.sleep(3.0)  # the lease has to run out meanwhile
        suspended.send_signal(signal.SIGCONT)
        assert suspended.stdout.readline() == expected
