"""Each fault, done for real to a small program, and what the record then says. No checkpoints here: the unmanaged arm alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import counting
import evaluations
import pytest
import tracing

from perdure import errors
from perdure.base.proc import process
from perdure.evaluation import agenda, faults, harness, local
from perdure.evaluation import folder as folders
from perdure.evaluation import plan as plans
from perdure.model.evaluation import Arm, EventKind, FaultKind, Run

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces, disks and memory cgroups need root")

HEARTBEAT_S = 5.0
GONE_BY_SIGNAL = {FaultKind.KILL, FaultKind.KILL_TREE, FaultKind.AGENT_KILLED}


def run(there, plan) -> Run:
    """Make one run of the baseline with the plan's faults: the harness makes those after the undisturbed one."""
    harness.baseline(there, plan, with_faults=True, say=lambda _step: None, stop=threading.Event())
    found = folders.read_runs(there).runs
    assert [each.finished for each in found] == [True, True]
    counting.await_none({each.id for each in found}, limit_s=120.0)
    assert not any((there.raw / each.id / "disk").is_mount() for each in found)
    return found[1]


def the(found: Run, kind: EventKind):
    events = [event for event in found.events if event.kind is kind]
    assert len(events) == 1, (kind, events)
    return events[0]


@needs_root
@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_fault_and_what_follows(tmp_path, kind):
    there = counting.begin(
        tmp_path / "trial",
        "--child",
        *(["--write"] if kind is FaultKind.DISK_FULL else []),
        heartbeat_s=HEARTBEAT_S if kind is FaultKind.HANG else 120.0,
        repetitions="repetitions = 1",
        kinds=f'kinds = ["{kind}"]\ngrace_s = 1.0\ntime_limit_s = 5.0',
        at_progress="at_progress = [20]",
    )
    evaluations.linger(there, "count.py", 20)
    plan = plans.load(there.plan)
    found = run(there, plan)
    raw = there.raw / found.id
    fault, detected, restarted = the(found, EventKind.FAULT_INJECTED), the(found, EventKind.DETECTED), the(found, EventKind.RESTARTED)
    useful, ended = the(found, EventKind.USEFUL), the(found, EventKind.ENDED)
    assert fault.at_s <= detected.at_s <= restarted.at_s < useful.at_s < ended.at_s
    assert fault.data["kind"] == kind.value
    assert fault.data["way"]
    assert (fault.data.get("comparable") is False) == (kind is FaultKind.AGENT_KILLED)
    assert the(found, EventKind.FAULT_PLANNED).data["kind"] == kind.value
    assert restarted.data["how"] == "start"
    assert ended.data["completed"] is True
    # What the record says agrees with what the program printed, step by step.
    first, second = counting.steps(raw, 1), counting.steps(raw, 2)
    assert second == list(range(1, 31))
    assert useful.value == 1
    at_fault = [event.value for event in found.events if event.kind is EventKind.PROGRESS and event.at_s <= fault.at_s][-1]
    assert abs(at_fault - first[-1]) <= (1 if kind not in (FaultKind.OUT_OF_MEMORY, FaultKind.DISK_FULL) else 3)
    if kind is not FaultKind.TIME_LIMIT:
        assert fault.value == 20
        assert 20 <= first[-1] <= 23
    if kind in GONE_BY_SIGNAL:
        assert detected.data["exit_status"] == -9
    if kind is FaultKind.HANG:
        assert detected.data["how"] == "missing heartbeat"
        (last,) = [event for event in found.events if (event.kind, event.value) == (EventKind.PROGRESS, 20) and event.at_s <= fault.at_s]
        assert detected.at_s - last.at_s >= HEARTBEAT_S
    if kind is FaultKind.NODE_LOST:
        assert detected.data == {"how": "loss of its node", "exit_status": None}
    if kind is FaultKind.DISK_FULL:
        assert detected.data["exit_status"] == 1
        assert "No space left on device" in (raw / "life-1-output.log").read_text()


def test_the_requeue_delay_and_own_checkpoints(tmp_path):
    there = counting.begin(
        tmp_path / "trial",
        "--resume",
        heartbeat_s=120.0,
        kind="kind = 'file'\nglob = 'saved/step-*'\npattern = 'step-([0-9]+)'",
        repetitions="repetitions = 1",
        seed="seed = 1\ngrace_s = 1.0",
        at_progress="at_progress = [15, 25]\n[arms]\nrequeue_delay_s = 0.4",
        owner='owner = "speech group"\nsetup = ["sh", "-c", "rm -f saved/*"]',
    )
    evaluations.linger(there, "count.py", 15, 25)
    plan = plans.load(there.plan)
    found = run(there, plan)
    recoverable = [(event.value, event.data["source"]) for event in found.events if event.kind is EventKind.RECOVERABLE]
    assert recoverable == [(10, "own"), (20, "own"), (30, "own")]
    delays = [
        later.at_s - event.at_s
        for event, later in zip(found.events, found.events[1:], strict=False)
        if (event.kind, later.kind) == (EventKind.DETECTED, EventKind.RESTARTED)
    ]
    assert len(delays) == 2
    assert all(delay >= 0.4 for delay in delays)
    assert [event.value for event in found.events if event.kind is EventKind.USEFUL] == [11, 21]
    assert [counting.steps(there.raw / found.id, life)[0] for life in (1, 2, 3)] == [1, 11, 21]


def test_a_workload_that_fails_by_itself_is_not_started_again(tmp_path):
    there = counting.begin(tmp_path / "trial", repetitions="repetitions = 1", command='command = ["sh", "-c", "echo step 1; exit 3"]')
    with pytest.raises(errors.PartialResult, match="ended with 3"):
        harness.baseline(there, plans.load(there.plan), with_faults=False, say=lambda _step: None, stop=threading.Event())
    (found,) = folders.read_runs(there).runs
    assert the(found, EventKind.ENDED).data == {"exit_status": 3, "completed": False, "lives": 1}


def test_a_target_ends_a_workload_that_would_go_on(tmp_path):
    there = counting.begin(
        tmp_path / "trial",
        repetitions="repetitions = 1",
        steps=100_000,
        step_s=1.0,
        pattern="pattern = 'step ([0-9]+)'\nheartbeat_s = 120.0\ntarget = 3",
    )
    harness.baseline(there, plans.load(there.plan), with_faults=False, say=lambda _step: None, stop=threading.Event())
    (found,) = folders.read_runs(there).runs
    assert the(found, EventKind.ENDED).data["completed"] is True
    assert 3 <= counting.steps(there.raw / found.id, 1)[-1] <= 5
    counting.await_none({found.id}, limit_s=120.0)


SERVER = """
import http.server, itertools, sys
served = itertools.count(1)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"# TYPE served_total counter\\nserved_total %d\\n" % next(served))
http.server.HTTPServer(("127.0.0.1", 8471), Handler).serve_forever()
"""


@needs_root
def test_a_server_on_a_node_of_its_own_is_asked_there(tmp_path):
    there = counting.begin(
        tmp_path / "trial",
        repetitions="repetitions = 1",
        command=f'command = ["{sys.executable}", "server.py"]',
        pattern='kind = "metrics"\nurl = "http://127.0.0.1:8471/metrics"\nmetric = "served_total"\nheartbeat_s = 120.0\ntarget = 8',
        kinds='kinds = ["node-lost"]',
        at_progress="at_progress = [4]",
    )
    (there.path / "server.py").write_text(SERVER)
    found = run(there, plans.load(there.plan))
    assert the(found, EventKind.DETECTED).data["how"] == "loss of its node"
    assert the(found, EventKind.USEFUL).value == 1
    assert the(found, EventKind.ENDED).data["reason"] == "the target was reached"


def test_a_run_that_never_did_anything_is_no_run_of_an_arm(tmp_path):
    there = counting.begin(tmp_path / "trial", command='command = ["sh", "-c", "exit 2"]')
    plan = plans.load(there.plan)
    with pytest.raises(errors.PartialResult, match="no progress at all"):
        harness.arms(there, plan, say=lambda _step: None, stop=threading.Event())
    log = folders.read_runs(there)
    (found,) = log.runs
    assert found.finished
    assert found.excluded is not None
    assert agenda.missing(plan, log)[0][0] == 1


def test_a_run_ends_with_the_window(tmp_path):
    there = counting.begin(tmp_path / "trial", steps=100_000, heartbeat_s=120.0, duration_s="duration_s = 5")
    plan = plans.load(there.plan)
    with pytest.raises(errors.PartialResult, match="window closed with 3 pairs missing"):
        harness.arms(there, plan, say=lambda _step: None, stop=threading.Event())
    (first,) = folders.read_runs(there).runs
    assert first.finished
    ended = the(first, EventKind.ENDED)
    assert ended.data["completed"] is False
    assert ended.data["reason"] == "the window closed"
    counting.await_none({run.id for run in folders.read_runs(there).runs}, limit_s=120.0)


GROWING = "kept = []\nwhile True: kept.append(bytearray(1 << 20)); time.sleep(0.01)"


@pytest.mark.parametrize(("program", "status", "words"), [(GROWING, 1, "ended"), ("time.sleep(600)", -9, "survived")])
def test_memory_that_runs_out_without_a_memory_cgroup(monkeypatch, program, status, words):
    if status == 1:
        monkeypatch.setattr(faults, "_STOPPED_S", 120.0)  # it ends by itself as soon as it is its turn
    command = [sys.executable, "-c", f"import time; print(flush=True); {program}"]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as victim:
        try:
            victim.stdout.readline()
            way = faults.limit_memory(local.find(victim.pid, Arm.UNMANAGED))
        finally:
            victim.kill()
        assert words in way
        assert victim.wait() == status


def test_a_workload_that_is_being_saved_hangs_all_the_same():
    """Whoever saves it traces it: the first signal to stop is taken by the tracer."""
    with subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=subprocess.PIPE) as victim:
        try:
            victim.stdout.readline()
            tracing.seize(victim.pid)
            found = local.find(victim.pid, Arm.UNMANAGED)
            with ThreadPoolExecutor(1) as pool:
                striking = pool.submit(faults.inject, FaultKind.HANG, found, node=lambda: 0, disk=None)
                tracing.let_go(victim.pid, without=signal.SIGSTOP)
                assert striking.result(timeout=120)["way"] == "SIGSTOP to all 1 processes"
            assert process.stat(victim.pid).state == "T"
        finally:
            victim.kill()
