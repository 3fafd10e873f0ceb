"""Both arms with a real CRIU: killed at the same step, and the work lost agrees with what the workloads themselves printed."""

from __future__ import annotations

import threading

import counting
import pytest

from perdure.evaluation import course, harness, loss
from perdure.evaluation import folder as folders
from perdure.evaluation import plan as plans
from perdure.model.evaluation import Arm, EventKind, Point, Run

pytestmark = pytest.mark.criu

STEPS, AT = 40, 25


def lost_steps(raw) -> int:
    """What a fault destroyed, from the program's own log: steps that were made before it and had to be made again."""
    before, after = counting.steps(raw, 1), counting.steps(raw, 2)
    assert before == list(range(1, before[-1] + 1))
    assert after == list(range(after[0], STEPS + 1))
    return before[-1] - (after[0] - 1)


def make(tmp_path, **replaced: str) -> tuple[folders.Folder, tuple[Run, ...]]:
    there = counting.begin(
        tmp_path / "trial",
        "--child",
        steps=STEPS,
        step_s=0.1,
        heartbeat_s=20.0,
        repetitions="repetitions = 2",
        at_progress=f'at_progress = [{AT}]\n[arms]\nmanaged_options = ["--every", "1s"]\n' + replaced.pop("arms", ""),
        **replaced,
    )
    harness.arms(there, plans.load(there.plan), say=lambda _step: None, stop=threading.Event())
    found = folders.read_runs(there).runs
    counting.await_none({run.id for run in found})
    assert all(run.finished for run in found)
    return there, found


def test_killed_at_the_same_step_the_work_lost_is_what_the_logs_say(tmp_path):
    there, found = make(tmp_path)
    assert [(run.pair, run.arm) for run in found] == [(1, Arm.UNMANAGED), (1, Arm.MANAGED), (2, Arm.MANAGED), (2, Arm.UNMANAGED)]
    for run in found:
        raw = there.raw / run.id
        (point,) = loss.points(course.read(run))
        assert isinstance(point, Point)
        assert abs(point.parts["at_fault"] - counting.steps(raw, 1)[-1]) <= 1
        assert abs(point.parts["at_fault"] - AT) <= 1
        assert abs(point.parts["at_fault"] - point.parts["recoverable"] - lost_steps(raw)) <= 1
        assert "claimed" not in point.parts  # what was said to be recoverable was recovered
        kinds = [event.kind for event in run.events]
        order = [EventKind.LAUNCHED, EventKind.FAULT_INJECTED, EventKind.DETECTED, EventKind.RESTARTED, EventKind.USEFUL, EventKind.ENDED]
        assert [kind for kind in kinds if kind in order] == order
        assert run.events[-1].data["completed"] is True
        how = next(event.data["how"] for event in run.events if event.kind is EventKind.RESTARTED)
        assert how == ("restore" if run.arm is Arm.MANAGED else "start")
        assert (EventKind.RESTORED in kinds) == (run.arm is Arm.MANAGED)
        assert not (raw / "state").exists()
    managed = [run for run in found if run.arm is Arm.MANAGED]
    assert all(lost_steps(there.raw / run.id) < AT for run in managed)
    assert all(lost_steps(there.raw / run.id) >= AT for run in found if run.arm is Arm.UNMANAGED)
    done = [event.data for run in managed for event in run.events if event.kind is EventKind.CHECKPOINT_DONE and "failed" not in event.data]
    assert done
    assert all(0 < data["stopped_s"] < 5 and 0 < data["new_bytes"] <= data["stored_bytes"] <= data["logical_bytes"] for data in done)


def test_side_by_side(tmp_path):
    """Both runs of a pair at once, by one clock."""
    _, found = make(tmp_path, arms='order = "side-by-side"\n')
    for pair in (1, 2):
        one, other = (run for run in found if run.pair == pair)
        assert {one.arm, other.arm} == set(Arm)
        assert max(one.events[0].at_s, other.events[0].at_s) < min(one.events[-1].at_s, other.events[-1].at_s)
