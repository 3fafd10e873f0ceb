"""Both arms with a real CRIU: killed at the same step, and the work lost agrees with what the workloads themselves printed."""

from __future__ import annotations

import re
import sys
import threading

import counting
import evaluations
import pytest

from perdure.evaluation import folder as folders
from perdure.evaluation import harness, report
from perdure.evaluation import plan as plans
from perdure.model.evaluation import Arm, EventKind, MeasureKind, Run

pytestmark = pytest.mark.criu

STEPS, AT = 40, 25

TRAINING = """
import random, sys, time
drawn = random.Random(7)
weights = [0.0] * 8
truth = [drawn.uniform(-1, 1) for _ in weights]
for step in range(1, int(sys.argv[1]) + 1):
    batch = [[drawn.gauss(0, 1) for _ in weights] for _ in range(64)]
    errors = [sum((w - t) * x for w, t, x in zip(weights, truth, row)) for row in batch]
    weights = [w - 0.1 * sum(e * row[i] for e, row in zip(errors, batch)) / len(batch) for i, w in enumerate(weights)]
    time.sleep(float(sys.argv[2]))
    print("step", step, flush=True)
print("weights", " ".join(w.hex() for w in weights), flush=True)
"""
"""Fits a linear function by stochastic gradient descent. ARGV = how many steps, seconds of waiting for data a step."""


def make(tmp_path, pairs: int, **replaced: str) -> tuple[folders.Folder, tuple[Run, ...]]:
    there = counting.begin(
        tmp_path / "trial",
        "--child",
        steps=STEPS,
        step_s=0.1,
        heartbeat_s=240.0,
        repetitions=f"repetitions = {pairs}",
        at_progress=f'at_progress = [{AT}]\n[arms]\nmanaged_options = ["--every", "1s"]\n' + replaced.pop("arms", ""),
        **replaced,
    )
    (there.path / "train.py").write_text(TRAINING)
    for program in ("count.py", "train.py"):
        evaluations.linger(there, program, AT, saved=True)
    harness.arms(there, plans.load(there.plan), say=lambda _step: None, stop=threading.Event())
    found = folders.read_runs(there).runs
    counting.await_none({run.id for run in found}, limit_s=120.0)
    assert all(run.finished for run in found)
    return there, found


def lost_steps(raw) -> int:
    """What a fault destroyed, from the program's own log: steps that were made before it and had to be made again."""
    before, after = counting.steps(raw, 1), counting.steps(raw, 2)
    assert before == list(range(1, before[-1] + 1))
    assert after == list(range(after[0], STEPS + 1))
    return before[-1] - (after[0] - 1)


def check_against_logs(there: folders.Folder, found: tuple[Run, ...]) -> None:
    """The report's figures of work lost are those of the logs, to one step."""
    told = report.read(there)
    (measure,) = (one for one in told.measures if one.kind is MeasureKind.WORK_LOST)
    points = {point.run: point for point in measure.points}
    assert points.keys() == {run.id for run in found}
    for run in found:
        raw, parts = there.raw / run.id, points[run.id].parts
        (fault,) = (event for event in run.events if event.kind is EventKind.FAULT_INJECTED)
        assert fault.value == AT
        last = counting.steps(raw, 1)[-1]
        assert last >= AT
        assert abs(parts["at_fault"] - last) <= 1
        assert abs(parts["at_fault"] - parts["recoverable"] - lost_steps(raw)) <= 1
        assert points[run.id].value == pytest.approx((parts["at_fault"] - parts["recoverable"]) * parts["pace_s"] / 3600)
        if run.arm is Arm.UNMANAGED:
            assert parts["recoverable"] == 0
            assert lost_steps(raw) == last
    # What lies behind a checkpoint that was committed before the fault is not computed again.
    kept = [run for run in found if points[run.id].parts["after"]]
    assert kept
    assert all(run.arm is Arm.MANAGED and lost_steps(there.raw / run.id) < counting.steps(there.raw / run.id, 1)[-1] for run in kept)


def test_a_training_killed_at_the_same_step_five_times_a_side(tmp_path):
    command = f'command = ["{sys.executable}", "train.py", "{STEPS}", "0.1"]'
    there, found = make(tmp_path, 5, command=command, arms='order = "side-by-side"\n')
    assert sorted((run.pair, run.arm) for run in found) == [(pair, arm) for pair in range(1, 6) for arm in sorted(Arm)]
    check_against_logs(there, found)
    # Whatever happened to it, each ends with the weights of a training that nothing disturbed.
    weights = {max((there.raw / run.id).glob("life-*-output.log")).read_text().splitlines()[-1] for run in found}
    assert len(weights) == 1
    assert re.fullmatch(r"weights( -?0x\S+){8}", weights.pop())
    for pair in range(1, 6):
        one, other = (run for run in found if run.pair == pair)
        assert max(one.events[0].at_s, other.events[0].at_s) < min(one.events[-1].at_s, other.events[-1].at_s)


def test_in_turns(tmp_path):
    there, found = make(tmp_path, 2)
    assert [(run.pair, run.arm) for run in found] == [(1, Arm.UNMANAGED), (1, Arm.MANAGED), (2, Arm.MANAGED), (2, Arm.UNMANAGED)]
    check_against_logs(there, found)
    for run in found:
        kinds = [event.kind for event in run.events]
        order = [EventKind.LAUNCHED, EventKind.FAULT_INJECTED, EventKind.DETECTED, EventKind.RESTARTED, EventKind.USEFUL, EventKind.ENDED]
        assert [kind for kind in kinds if kind in order] == order
        assert run.events[-1].data["completed"] is True
        how = next(event.data["how"] for event in run.events if event.kind is EventKind.RESTARTED)
        assert (EventKind.RESTORED in kinds) == (how == "restore")
        assert run.arm is Arm.MANAGED or how == "start"
        assert not (there.raw / run.id / "state").exists()
    done = [event.data for run in found for event in run.events if event.kind is EventKind.CHECKPOINT_DONE and "failed" not in event.data]
    assert done
    assert all(data["stopped_s"] > 0 and 0 < data["new_bytes"] <= data["stored_bytes"] <= data["logical_bytes"] for data in done)
