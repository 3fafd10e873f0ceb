"""Whether a workload ran since it was last saved: real processes, looked at."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from perdure.checkpoint import tree
from perdure.checkpoint.tree import Tree
from perdure.supervisor import motion
from perdure.supervisor.motion import Motion

ECHO = "import sys\nprint('up', flush=True)\nfor line in sys.stdin: print('on', flush=True)"


@pytest.fixture
def echo():
    """A process that waits for a line, and takes a step for each."""
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def at_rest(root: Tree):
    """Look once the process waits: what it says comes before it does."""
    while True:
        before = motion.marks(root, has_init=False)
        if all(state == "S" for process in tree.members(root) for state in process.states.values()):
            after = motion.marks(root, has_init=False)
            if before == after:
                return after
        os.sched_yield()


def test_a_step_is_seen_and_rest_is_rest(echo):
    root = Tree(echo.pid, tree.start_ticks_of(echo.pid))
    first = at_rest(root)
    assert at_rest(root) == first
    echo.stdin.write(b"go\n")
    echo.stdin.flush()
    assert echo.stdout.readline() == b"on\n"
    assert at_rest(root) != first
    # An init that runs says nothing of its workload; one that was adopted is the workload.
    assert motion.marks(root, has_init=True) == frozenset()


def looks(number: int):
    return frozenset({(1, 1, number, number)})


def test_it_counts_as_having_run_until_it_was_saved():
    watched = Motion()
    assert watched.look(looks(1))
    watched.settle(looks(2), is_saved=False)
    assert watched.look(looks(2))
    watched.settle(looks(3), is_saved=True)
    assert not watched.look(looks(3))


def test_what_it_did_before_a_checkpoint_that_failed_is_not_forgotten():
    watched = Motion()
    watched.settle(looks(1), is_saved=True)
    assert watched.look(looks(2))
    watched.settle(looks(3), is_saved=False)
    assert watched.look(looks(3))


def test_a_checkpoint_that_failed_is_no_step_of_its_own():
    watched = Motion()
    watched.settle(looks(1), is_saved=True)
    assert not watched.look(looks(1))
    watched.settle(looks(2), is_saved=False)  # frozen and let go
    assert not watched.look(looks(2))


def test_it_runs_on():
    watched = Motion()
    watched.settle(looks(1), is_saved=True)
    assert not watched.look(looks(1))
    watched.settle(looks(2), is_saved=True)
    assert watched.look(looks(3))
