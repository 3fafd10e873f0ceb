"""A harness that is killed at random loses no run and leaves no process; one that is asked to stop records what it broke off."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import counting
import evaluations
import pytest

from perdure.base.proc import mounts
from perdure.evaluation import folder as folders
from perdure.evaluation.folder import Folder
from perdure.evaluation.runs import JOURNAL
from perdure.model.evaluation import EventKind

ROOT = Path(__file__).resolve().parent.parent.parent


def start(there: Folder, *arguments: str) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(there.path), "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "perdure", "eval", *arguments, "--dir", str(there.path)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def await_journal(there: Folder, known: frozenset[str], process: subprocess.Popen[str], words: bytes) -> str:
    """Wait until a new run has written `words` in its journal, and return its id."""
    end_s = time.monotonic() + 240
    while time.monotonic() < end_s:
        for run_id in folders.raw_ids(there) - known:
            journal = there.raw / run_id / JOURNAL
            if journal.exists() and words in journal.read_bytes():
                return run_id
        if process.poll() is not None:
            raise AssertionError(process.communicate())
        time.sleep(0.01)
    raise AssertionError("no run began")


@pytest.mark.parametrize(
    ("seed", "kind"), [(1, "kill"), pytest.param(2, "disk-full", marks=pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"))]
)
def test_killed_at_random_it_loses_no_run(tmp_path, seed, kind):
    drawn = random.Random(seed)
    there = counting.begin(
        tmp_path / "trial",
        "--child",
        *(["--write"] if kind == "disk-full" else []),
        steps=12,
        step_s=0.04,
        heartbeat_s=120.0,
        repetitions="repetitions = 2",
        at_progress="at_progress = [6]",
        kinds=f'kinds = ["{kind}"]',
    )
    evaluations.linger(there, "count.py", 6)
    kills = 0
    while True:
        process = start(there, "baseline")
        try:
            if kills < 5:
                # Anywhere: while it begins, makes a folder, starts, watches, breaks, appends; the first before all can be done.
                process.wait(drawn.uniform(0.3, 3.0 if kills else 1.5))
            else:
                process.wait(300)
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        answer = process.communicate(timeout=240)
        counting.await_none(set(folders.raw_ids(there)), limit_s=120.0)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, answer
    assert not any(each.point.startswith(str(tmp_path)) for each in mounts.of(os.getpid()))
    found = folders.read_runs(there).runs
    assert kills >= 1
    # Every run that had begun has its line, once; the broken ones say so and keep what had happened.
    assert {run.id for run in found} == folders.raw_ids(there)
    assert len({run.id for run in found}) == len(found)
    assert sum(run.finished for run in found) == 4
    for run in found:
        journal = (there.raw / run.id / JOURNAL).read_bytes().splitlines()
        assert len(run.events) == len(journal) - 1
        assert any(event.kind is EventKind.ENDED for event in run.events) == run.finished
    disturbed = [any(event.kind is EventKind.FAULT_INJECTED for event in run.events) for run in found if run.finished]
    assert sorted(disturbed) == [False, False, True, True]


@pytest.mark.criu
def test_killed_at_random_both_arms_come_to_their_end(tmp_path):
    """Through the command line, from the baseline over the lock to the last pair."""
    drawn = random.Random(3)
    there = counting.begin(
        tmp_path / "trial",
        "--child",
        steps=30,
        step_s=0.08,
        heartbeat_s=120.0,
        repetitions="repetitions = 2",
        at_progress='at_progress = [18]\n[arms]\nmanaged_options = ["--every", "1s"]',
    )
    evaluations.linger(there, "count.py", 18)
    for arguments in (("baseline", "--no-faults"), ("lock",)):
        done = start(there, *arguments)
        assert done.communicate(timeout=240)[1] is not None
        assert done.returncode == 0
    known = folders.raw_ids(there)
    for wanted in ("managed", "managed", "unmanaged"):
        process = start(there, "run")
        run_id = await_journal(there, known, process, b'"progress"')
        while f"-{wanted}-" not in run_id:
            known |= {run_id}
            run_id = await_journal(there, known, process, b'"progress"')
        known |= {run_id}
        # Somewhere in it: before the fault, in the recovery, after it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(drawn.uniform(0.0, 3.0))
        process.kill()
        process.communicate(timeout=240)
        counting.await_none(set(folders.raw_ids(there)), limit_s=120.0)
        if folders.raw_ids(there) <= {run.id for run in folders.read_runs(there).runs}:
            break  # it was quicker
    process = start(there, "run")
    _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    counting.await_none(set(folders.raw_ids(there)), limit_s=120.0)
    found = folders.read_runs(there).runs
    assert {run.id for run in found} == folders.raw_ids(there)
    made = sorted((run.pair, run.arm.value) for run in found if run.purpose == "arms" and run.finished)
    assert made == [(1, "managed"), (1, "unmanaged"), (2, "managed"), (2, "unmanaged")]
    assert any(not run.finished for run in found)
    assert not list(there.raw.glob("*/state"))
    assert not any((Path("/run") / f"perdure-eval-{run.id}").exists() for run in found)


def test_asked_to_stop_it_records_what_it_broke_off(tmp_path):
    there = counting.begin(tmp_path / "trial", "--child", steps=100_000, heartbeat_s=120.0, repetitions="repetitions = 1")
    process = start(there, "baseline")
    run_id = await_journal(there, frozenset(), process, b'"progress"')
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 3, said
    assert "broken off" in said
    (found,) = folders.read_runs(there).runs
    assert (found.id, found.finished) == (run_id, False)
    assert found.events
    counting.await_none({run_id}, limit_s=120.0)


def test_a_fault_by_hand_is_done_by_the_harness_and_recorded(tmp_path):
    there = counting.begin(tmp_path / "trial", steps=60, heartbeat_s=120.0, repetitions="repetitions = 1")
    evaluations.linger(there, "count.py", 10, by_hand=True)
    process = start(there, "baseline", "--no-faults")
    run_id = await_journal(there, frozenset(), process, b'"progress"')
    asked = start(there, "inject", "kill", "--run", run_id, "--json")
    answer, said = asked.communicate(timeout=240)
    assert asked.returncode == 0, said
    assert json.loads(answer)["kind"] == "kill"
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    (found,) = folders.read_runs(there).runs
    (fault,) = [event for event in found.events if event.kind is EventKind.FAULT_INJECTED]
    assert (fault.data["kind"], fault.data["by_hand"]) == ("kill", True)
    assert counting.steps(there.raw / run_id, 2)[-1] == 60
    late = start(there, "inject", "kill", "--run", run_id)
    _, said = late.communicate(timeout=240)
    assert late.returncode == 21
    assert "no run in progress" in said


def test_a_fault_by_hand_on_any_process(tmp_path):
    there = counting.begin(tmp_path / "trial")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as victim:
        done = start(there, "inject", "kill-tree", "--pid", str(victim.pid))
        _, said = done.communicate(timeout=240)
        victim.kill()
        assert done.returncode == 0, said
        assert victim.wait() == -signal.SIGKILL
    neither = start(there, "inject", "kill")
    assert neither.communicate(timeout=240)[1].startswith("perdure: say what to break")
    assert neither.returncode == 2
