"""Trees that somebody else started: saved where they are, and ordinary ones from their first return on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from engine import ON, WAIT_S, Workload, working_criu

from perdure import errors
from perdure.base.proc import process
from perdure.checkpoint import adopt, dump, tree
from perdure.checkpoint.restore import RestoreOptions

pytestmark = pytest.mark.criu

COUNTER = """
import os, sys, time
if os.fork() == 0:
    while True:
        time.sleep(0.01)
for number in range(1, 201):
    print(number, os.getpid(), flush=True)
    time.sleep(0.01)
    while number == 120 and not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
sys.exit(5)
"""


LED = """
import subprocess, sys
started = subprocess.Popen(sys.argv[2:])
with open(sys.argv[1], "w") as told:
    told.write(f"{started.pid}\\n")
sys.exit(started.wait())
"""
"""Leads a session, and starts in it what is to be found. The session of the test itself may have no leader that can be seen."""


class Found(Workload):
    """A tree that is started by any program in any session, with our pipes; then kept as a `Workload` is."""

    def __init__(self, folder: Path, *, own_session: bool) -> None:
        path = folder / "program.py"
        path.write_text(textwrap.dedent(COUNTER))
        super().__init__(folder, sys.executable, "-u", str(path), str(folder / ON), criu=working_criu())
        self.own_session = own_session

    def __enter__(self) -> Found:
        theirs = self._streams()
        told = self.folder / "led"
        argv = self.argv if self.own_session else (sys.executable, "-c", LED, str(told), *self.argv)
        try:
            self.child = subprocess.Popen(argv, stdin=theirs[0], stdout=theirs[1], stderr=theirs[2], start_new_session=True)
        finally:
            self._release(theirs)
        self.found = self.child.pid if self.own_session else self._led(told)
        self.tree = adopt.find(self.found)
        return self

    def _led(self, told: Path) -> int:
        limit = time.monotonic() + WAIT_S
        while not (told.exists() and told.read_text().endswith("\n")):
            assert time.monotonic() < limit
            time.sleep(0.01)
        return int(told.read_text())

    def end_found(self) -> None:
        adopt.end(self.tree)
        self.child.wait()

    def __exit__(self, *arguments: object) -> None:
        if self.child.returncode is None:
            self.end_found()
        super().__exit__(*arguments)

    def bring_back(self, dumped: dump.Dumped) -> None:
        self._close()
        theirs = self._streams()
        work = dumped.images.parent / "restore"
        work.mkdir(mode=0o700)
        try:
            options = RestoreOptions(streams=dumped.streams, descriptors=dict(enumerate(theirs)), expected_bytes=1 << 26)
            self.tree = adopt.bring_back(dumped.images, work, options, self.criu).tree
        finally:
            self._release(theirs)


@pytest.mark.parametrize("own_session", [True, False])
def test_an_adopted_tree_goes_through_three_lives_and_ends_with_its_own_status(tmp_path: Path, own_session: bool):
    with Found(tmp_path, own_session=own_session) as workload:
        workload.wait_for("\n20 ")
        at_freeze: list[int] = []

        def hook() -> None:
            workload.drain()
            at_freeze.append(len(workload.output))

        dumped = workload.dump(hook)
        assert not adopt.is_whole(dumped.images)
        # The source runs on.
        workload.wait_for("\n40 ")
        workload.end_found()
        workload.output = workload.output[: at_freeze[0]]
        workload.bring_back(dumped)
        workload.wait_for("\n60 ")
        assert process.status(workload.tree.pid).inner_pid == 1
        assert {found.parent for found in tree.members(workload.tree)[:1]} == {os.getpid()}
        for at in (80, 100):
            assert tree.facts(workload.tree)[1].pid == workload.found
            workload.wait_for(f"\n{at} ")
            again = workload.cycle()
            assert adopt.is_whole(again.images)
        workload.let_end()
        assert workload.status() == 5
        assert workload.lines() == [f"{number} {workload.found}" for number in range(1, 201)]


def test_signals_reach_an_adopted_tree_and_it_ends_with_its_supervisors_word(tmp_path: Path):
    with Found(tmp_path, own_session=True) as workload:
        workload.wait_for("\n5 ")
        dumped = workload.dump(leave="stopped")
        assert {state for found in tree.members(workload.tree) for state in found.states.values()} == {"T"}
        workload.end_found()
        workload.bring_back(dumped)
        workload.wait_for("\n20 ")
        workload.cycle()
        members = tree.members(workload.tree)
        assert tree.send(workload.tree, signal.SIGTERM)
        assert workload.status() == 128 + signal.SIGTERM
        assert not [found.pid for found in members if os.path.exists(f"/proc/{found.pid}")]


def test_a_thread_of_the_kernel_cannot_be_adopted(monkeypatch: pytest.MonkeyPatch):
    # As kthreadd shows itself. In a PID namespace there is none to be seen, and process 2 is anybody's.
    shown = process.parse_stat(b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 4 0 0 20 0 1 0 0 0 0")
    monkeypatch.setattr(process, "stat", lambda _: shown)
    with pytest.raises(errors.UsageError, match="kernel's own"):
        adopt.find(2)


def test_what_cannot_be_adopted_is_told():
    with pytest.raises(errors.UsageError, match="itself runs below"):
        adopt.find(os.getppid())
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(errors.ProcessGone, match="has ended"):
            adopt.find(ended.pid)
