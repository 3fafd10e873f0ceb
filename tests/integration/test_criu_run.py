"""Starting a real CRIU: dump and restore, other users' tasks, and what is left when it is killed at any instant."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import criu_tree
import msgspec
import pytest
from engine import Workload
from supervised import KILLED_ON_TRIAL, LIMIT_S, is_zombie, wait_for

from perdure import errors
from perdure.base import privileges
from perdure.checkpoint.criu import locate, netlock, run

pytestmark = pytest.mark.criu

CONNECTED = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
memory = bytearray(os.urandom(1 << 20)) * 64
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o666)
os.pwrite(out, bytes(8), 0)
rounds = 0
while True:
    client.send(b".")
    rounds += len(server.recv(1))
    os.pwrite(out, rounds.to_bytes(8, "little"), 0)
    time.sleep(0.005)
"""
LARGE = criu_tree.COUNT.replace("rounds = 0", "memory = bytearray(os.urandom(1 << 20)) * 64\nrounds = 0")


@pytest.fixture(scope="module")
def criu() -> run.Criu:
    return locate.find(criu_tree.places())


def _own_children() -> set[int]:
    return {int(word) for task in Path("/proc/self/task").iterdir() for word in (task / "children").read_text().split()}


def test_a_tree_is_dumped_killed_and_restored_three_times_over(criu, tmp_path):
    with criu_tree.Tree(tmp_path) as tree:
        for _ in range(3):
            dumped = run.run(criu, tree.call(run.Action.DUMP))
            assert dumped.explanation is None, dumped
            assert dumped.run_id
            assert tree.goes_on()
        tree.end()
        reached = tree.count()
        began = time.monotonic()
        restored = tree.restore(criu)
        assert restored.explanation is None, restored
        assert Path(f"/proc/{restored.root_pid}/comm").read_text().strip() == "tini-static"
        assert tree.goes_on()
        # From where it was: it may have made no more rounds than the time allows.
        assert 0 < tree.count() <= reached + (time.monotonic() - began) / criu_tree.ROUND_S
    assert Path(restored.log_path).stat().st_mode & 0o077 == 0


def test_a_failure_is_explained_and_leaves_no_child_behind(criu, tmp_path):
    before = _own_children()
    with criu_tree.Tree(tmp_path) as tree:
        assert run.run(criu, tree.call(run.Action.DUMP)).succeeded
        tree.end()
        tree.counter.unlink()
        result = tree.restore(criu)
        assert not result.succeeded
        assert result.explanation is not None
        assert (result.explanation.code, result.explanation.path) == ("restore-file-missing", str(tree.counter))
    assert _own_children() <= before


@pytest.mark.skipif(not privileges.missing(["CAP_SYS_RESOURCE"]), reason="this root has CAP_SYS_RESOURCE: nothing is to be cured")
def test_a_task_of_another_user_needs_the_prlimit_library(criu, tmp_path):
    if criu.preload is None:
        pytest.skip("no C compiler for the prlimit library")
    os.chmod(tmp_path, 0o777)
    # PR_SET_DUMPABLE is lost with the change of user; the process reads its code from the command line, so that it needs no files.
    other = "os.setgroups([]); os.setgid(65534); os.setuid(65534)"
    with criu_tree.Tree(tmp_path, code=criu_tree.COUNT.replace("rounds = 0", other + "\nrounds = 0")) as tree:
        without = run.run(msgspec.structs.replace(criu, preload=None), tree.call(run.Action.DUMP))
        assert without.explanation is not None
        assert without.explanation.code == "host-prlimit"
        assert tree.goes_on()
        dumped = run.run(criu, tree.call(run.Action.DUMP))
        assert dumped.explanation is None, dumped
        tree.end()
        assert tree.restore(criu).succeeded
        assert tree.goes_on()


@pytest.mark.parametrize("seed", range(12))
def test_a_dump_that_is_cancelled_at_any_instant_leaves_the_tree_running_and_its_connection_open(criu, tmp_path, seed, monkeypatch):
    monkeypatch.setattr(run, "GRACE_S", 120.0)  # to give up takes moments, and more of them on a busy machine
    delay_s = random.Random(seed).uniform(0.0, 0.25)
    with criu_tree.Tree(tmp_path, code=CONNECTED) as tree:
        running = run.start(criu, tree.call(run.Action.DUMP, "--tcp-established"))
        timer = threading.Timer(delay_s, running.cancel)
        timer.start()
        result = running.wait()
        timer.join()
        assert tree.goes_on(), f"cancelled after {delay_s:.3f} s: {result}"
        if not result.succeeded:
            assert result.cancelled
            assert result.explanation is not None
            assert result.explanation.code == "criu-cancelled"
        assert not [name for name in netlock.tables() if f"CRIU-{result.run_id}".startswith(name)]


@pytest.mark.parametrize("seed", range(6))
def test_a_restore_that_is_cancelled_leaves_nothing(criu, tmp_path, seed):
    before = _own_children()
    with criu_tree.Tree(tmp_path, code=LARGE) as tree:
        assert run.run(criu, tree.call(run.Action.DUMP)).succeeded
        tree.end()
        running = run.start(criu, tree.call(run.Action.RESTORE))
        timer = threading.Timer(random.Random(seed).uniform(0.0, 0.06), running.cancel)
        timer.start()
        result = running.wait()
        timer.join()
        if result.root_pid is not None:
            tree._restored.append(result.root_pid)  # it was faster
        else:
            assert _own_children() <= before


def test_a_restore_that_hangs_is_ended_and_leaves_nothing(criu, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "GRACE_S", 0.5)
    before = _own_children()
    with criu_tree.Tree(tmp_path, code=LARGE) as tree:
        assert run.run(criu, tree.call(run.Action.DUMP)).succeeded
        tree.end()
        # CRIU waits for ever for pages that are not there.
        for pages in tree.images.glob("pages-*.img"):
            os.truncate(pages, 4096)
        result = tree.restore(criu, timeout_s=1.0)
        assert result.timed_out
        assert result.explanation is not None
        assert result.explanation.code == "criu-timeout"
        assert _own_children() <= before


@pytest.mark.parametrize("action", [run.Action.DUMP, run.Action.RESTORE, run.Action.CHECK])
def test_a_criu_that_is_killed_leaves_no_trial_of_its_own_behind(tmp_path, action):
    (tmp_path / "criu.py").write_text(KILLED_ON_TRIAL)
    killed = run.Criu(argv=(sys.executable, str(tmp_path / "criu.py"), str(tmp_path)), version="4.2.1", origin="a stand-in")
    call = run.Call(action=action, images=str(tmp_path), work=str(tmp_path), timeout_s=LIMIT_S)
    assert run.run(killed, call).returncode == -signal.SIGKILL
    trial = int((tmp_path / "trial").read_text())
    try:
        wait_for(lambda: is_zombie(trial), what="for the end of the trial")
        assert trial not in _own_children()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(trial, signal.SIGKILL)


def test_tables_that_hold_connections_are_released_by_the_run_that_left_them(criu, tmp_path):
    if criu.network_lock != "nftables":
        pytest.skip("this kernel has no nftables")
    with criu_tree.Tree(tmp_path, code=CONNECTED) as tree:
        call = tree.call(run.Action.DUMP, "--tcp-established", "--leave-stopped")
        # Without --leave-running CRIU keeps the connection still for the restore to come.
        call = msgspec.structs.replace(call, options=tuple(option for option in call.options if option != "--leave-running"))
        dumped = run.run(criu, call)
        assert dumped.explanation is None, dumped
        held = [name for name in netlock.tables() if f"CRIU-{dumped.run_id}".startswith(name)]
        assert len(held) == 1
        assert run.read_run_id(dumped.log_path) == dumped.run_id
        assert netlock.release(dumped.run_id) == tuple(held)
        assert not [name for name in netlock.tables() if name in held]
        assert netlock.release(dumped.run_id) == ()


def test_a_tree_that_ended_before_criu_was_started_inside_is_said_to_have_ended(tmp_path: Path):
    with Workload(tmp_path, "sleep", "1000") as workload:
        os.kill(workload.tree.pid, signal.SIGKILL)
        os.waitid(os.P_PID, workload.tree.pid, os.WEXITED | os.WNOWAIT)
        call = run.Call(
            action=run.Action.DUMP, images=str(tmp_path), work=str(tmp_path), timeout_s=9, root=workload.tree.pid, is_inside=True
        )
        with pytest.raises(errors.ProcessGone, match="ended while it was saved"):
            run.start(workload.criu, call)
