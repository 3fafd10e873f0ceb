"""How much of a busy machine storing a checkpoint takes: a little while the workload works, its full share when all wait for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest
from supervised import descendants, wait_for

from perdure.store import locks
from perdure.store.owners import Linux
from perdure.supervisor import place

pytestmark = pytest.mark.criu

LIMIT_S = 120.0


def priorities(root: int) -> list[tuple[int, int]]:
    """Nice value and policy of each process below `root` that stores a checkpoint."""
    found = []
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            if b"perdure.supervisor.saver" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append((os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)))
    return found


def test_it_yields_to_a_workload_that_runs_and_hurries_for_one_that_is_to_be_ended(site):
    command = ("run", "--name", "a", "--every", "never", "--", "python3", "count.py", "100000", "0.02")
    process = site.start(*command, stdout=subprocess.DEVNULL)  # nobody reads it meanwhile
    wait_for(lambda: site.log("a"), LIMIT_S, "for its first line")
    where = place.Place(url=str(site.state / "store"), key_file=None, cache=str(site.folder / "cache"), threads=1)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with place.opened(where) as repository:
        # As long as somebody has the store for himself, nothing is stored.
        with locks.exclusive(repository, purpose="test", surroundings=Linux()):
            asker = site.start("checkpoint", "a")
            wait_for(lambda: priorities(process.pid) == [(max(10, own), os.SCHED_BATCH)], LIMIT_S, "for a saver that yields")
        assert asker.wait(LIMIT_S) == 0
        with locks.exclusive(repository, purpose="test", surroundings=Linux()):
            asker = site.start("checkpoint", "a", "--stop")
            wait_for(lambda: priorities(process.pid) == [(own, os.SCHED_OTHER)], LIMIT_S, "for a saver that hurries")
        assert asker.wait(LIMIT_S) == 0
    process.communicate(timeout=LIMIT_S)
