"""The last resort of a lease: a process is killed at the lease's end, not before, and not when the lease was renewed or nobody waits."""

from __future__ import annotations

import subprocess

import pytest
import stores

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


def lives_on(process) -> bool:
    try:
        process.wait(LOOKS_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def test_it_strikes_at_the_leases_end_and_each_renewal_puts_that_off(around, held, process):
    deadman = DeadMan(held, process.pid)
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
    deadman = DeadMan(held, process.pid)
    deadman.start()
    deadman.close()
    deadman.join()
    around.pass_time(TTL_S * 2)
    assert process.poll() is None
    assert not deadman.has_struck
