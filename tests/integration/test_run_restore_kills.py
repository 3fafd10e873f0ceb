"""A supervisor killed with -9 before and after every step of a restore is noted: the next run goes on, and nothing of it is left."""

from __future__ import annotations

import contextlib
import signal
import sqlite3

import pytest
from supervised import LIMIT_S, Site, descendants, lines, wait_for

from perdure.checkpoint.machine import State
from perdure.supervisor import lock, repair
from perdure.supervisor import state as database
from perdure.supervisor.folders import Folders
from perdure.supervisor.record import Operation
from perdure.supervisor.voice import Voice

pytestmark = pytest.mark.criu

FATAL = """
import os, signal, sys
from perdure.__main__ import main
from perdure.supervisor import state

state_now, when = os.environ["FATAL"].split()


class Fatal(state.Database):
    def _fatally(self, write, operation, comes_to):
        is_last = operation.kind == "restore" and comes_to == state_now
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = write(operation)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def begin(self, operation):
        return self._fatally(super().begin, operation, operation.state)

    def amend(self, operation):
        return self._fatally(super().amend, operation, operation.state)

    def end(self, operation):
        return self._fatally(super().end, operation, "over")


state.Database = Fatal
sys.exit(main(sys.argv[1:]))
"""
"""A supervisor that kills itself where it notes that a restore comes to the state in FATAL, before or after that is written."""

STATES = ("fetching", "staged", "restored", "verified", "over")
RUN = ("run", "--name", "a", "--every", "never", "--events", "events", "--", "python3", "count.py", "1000000", "0.02")


@pytest.fixture
def site(tmp_path, site):
    site.environment["PERDURE_STAGING"] = str(tmp_path / "staging")
    (tmp_path / "staging").mkdir()
    return site


def noted(site: Site) -> list[bytes]:
    """What the journal holds."""
    with contextlib.closing(sqlite3.connect(site.state / "state.db")) as connection:
        return [row[0] for row in connection.execute("SELECT record FROM journal")]


def said(site: Site) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return (site.work / "events").read_bytes()
    return b""


CLEARING = {
    "rm": ("rm", "a"),
    "another run": ("run", "--name", "b", "--every", "never", "--", "true"),
    "doctor": ("doctor",),
    "gc": ("store", "gc"),
}


@pytest.mark.parametrize("by", CLEARING)
def test_what_a_killed_supervisor_left_is_cleared_although_its_workload_is_never_run_again(site, by):
    first = site.start(*RUN)
    wait_for(lambda: len(site.log("a").splitlines()) > 2)
    assert site.run("checkpoint", "a", "--stop").returncode == 0
    first.communicate(timeout=LIMIT_S)
    killed = site.run(*RUN, by=FATAL, env={"FATAL": "staged after"})
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert list((site.folder / "staging").iterdir())
    done = site.run(*CLEARING[by])
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert list((site.folder / "staging").iterdir()) == []
    assert noted(site) == []


def test_nothing_is_cleared_of_a_workload_that_has_a_supervisor(tmp_path):
    folders = Folders(tmp_path / "state", tmp_path / "run")
    staged = {name: tmp_path / f"perdure-{name}" for name in ("held", "left")}
    with database.opened(tmp_path / "state.db") as known:
        for name, folder in staged.items():
            folder.mkdir()
            folders.make(name)
            known.begin(Operation(number=0, workload=name, kind="restore", began_ns=1, staging=str(folder), state=State.FETCHING))
        with lock.held(folders.lock("held"), "held"):
            repair.sweep(known, folders, Voice(quiet=True, as_json=False))
            assert (staged["held"].is_dir(), staged["left"].is_dir()) == (True, False)
            assert ([len(known.unfinished(name)) for name in staged]) == [1, 0]
        repair.sweep(known, folders, Voice(quiet=True, as_json=False))
        assert not staged["held"].exists()


def test_killed_at_each_step_of_a_restore(site):
    first = site.start(*RUN)
    wait_for(lambda: len(site.log("a").splitlines()) > 20)
    assert site.run("checkpoint", "a", "--stop").returncode == 0
    first.communicate(timeout=LIMIT_S)
    for state in STATES:
        for when in ("before", "after"):
            killed = site.run(*RUN, by=FATAL, env={"FATAL": f"{state} {when}"})
            assert killed.returncode == -signal.SIGKILL, (state, when, killed.stderr.decode())
            left = noted(site)
            # A folder is never made that is not noted, and what is noted says how far it came.
            assert len(left) == (state != "fetching" or when == "after") * (state != "over" or when == "before"), (state, when)
            assert not list((site.folder / "staging").iterdir()) or left, (state, when)
    (site.work / "events").unlink()
    last = site.start(*RUN)
    wait_for(lambda: b'"running"' in said(site) or last.poll() is not None)
    assert b'"text":"a@1.1"' in said(site), last.stderr.read().decode()
    wait_for(lambda: set(site.alive()) <= {last.pid, *descendants(last.pid)})
    # What the restore needed is gone while the workload runs, and not only when it has ended.
    assert list((site.folder / "staging").iterdir()) == []
    assert noted(site) == []
    assert site.ps("a")["state"] == "running"
    assert site.run("stop", "a").returncode == 0
    last.communicate(timeout=LIMIT_S)
    log = site.log("a")
    assert log == lines(len(log.splitlines()))
