"""Each fault done to both arms, at the same point of progress and in the same way, with a real CRIU behind the managed one."""

from __future__ import annotations

import os
import threading

import counting
import evaluations
import pytest

from perdure.evaluation import course, faults, harness, loss, report
from perdure.evaluation import folder as folders
from perdure.evaluation import plan as plans
from perdure.model.evaluation import Arm, EventKind, FaultKind, MeasureKind, Run

pytestmark = [pytest.mark.criu, pytest.mark.skipif(os.geteuid() != 0, reason="namespaces, disks and memory cgroups need root")]

AT = 45
NEEDS_TIME = {FaultKind.OUT_OF_MEMORY, FaultKind.DISK_FULL}
"""The workload may count on for a moment after these."""


def steps_of(kind: FaultKind) -> int:
    """How much work there is: one that is asked to leave must not be done before a busy machine has saved it."""
    return 200 if kind in faults.ASKED_FIRST else 60


def make(tmp_path, kind: FaultKind) -> tuple[folders.Folder, dict[Arm, Run]]:
    there = counting.begin(
        tmp_path / "trial",
        "--child",
        *(["--write"] if kind is FaultKind.DISK_FULL else []),
        steps=steps_of(kind),
        step_s=0.1,
        heartbeat_s=20.0 if kind is FaultKind.HANG else 120.0,
        kinds=f'kinds = ["{kind}"]\ngrace_s = 20.0\ntime_limit_s = 6.0',
        repetitions="repetitions = 1",
        at_progress=f'at_progress = [{AT}]\n[arms]\nmanaged_options = ["--every", "1s"]',
    )
    evaluations.linger(there, "count.py", AT)
    harness.arms(there, plans.load(there.plan), say=lambda _step: None, stop=threading.Event())
    found = folders.read_runs(there).runs
    counting.await_none({run.id for run in found}, limit_s=120.0)
    assert [run.finished for run in found] == [True, True]
    assert [run.excluded for run in found] == [None, None]
    return there, {run.arm: run for run in found}


_SLOW = (FaultKind.NODE_LOST, FaultKind.TIME_LIMIT, FaultKind.PREEMPTION, FaultKind.DISK_FULL)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in _SLOW else []) for kind in FaultKind])
def test_a_fault_in_both_arms(tmp_path, kind):
    there, found = make(tmp_path, kind)
    lost = next(one for one in report.read(there).measures if one.kind is MeasureKind.WORK_LOST)
    assert {point.arm for point in lost.points} == (set() if kind is FaultKind.AGENT_KILLED else set(Arm))
    points = {
        arm: point for arm, run in found.items() for point in loss.points(course.read(evaluations.with_faults_marked(run, comparable=True)))
    }
    for arm, run in found.items():
        (fault,) = [event for event in run.events if event.kind is EventKind.FAULT_INJECTED]
        assert fault.data["kind"] == kind.value
        assert fault.value == AT
        assert run.events[-1].data["completed"] is True, run.events[-1].data
        (met,) = course.read(run).interruptions
        assert met.interrupted
        assert met.useful is not None
        steps = {life: counting.steps(there.raw / run.id, life) for life in range(1, run.events[-1].data["lives"] + 1)}
        before, after = steps[1], next(steps[life] for life in sorted(steps) if life > 1 and steps[life])
        slack = 3 if kind in NEEDS_TIME else 1
        parts = points[arm].parts
        assert abs(parts["at_fault"] - before[-1]) <= slack
        assert abs(parts["at_fault"] - parts["recoverable"] - (before[-1] - (after[0] - 1))) <= slack
        assert after[-1] == steps_of(kind)
        assert (after[0] > 1) == (parts["after"] == 1), (before, after, parts)
        if kind is FaultKind.DISK_FULL:
            assert after[0] == 1, "one that ended by itself starts anew, saved or not"
        else:
            # On a busy machine no checkpoint may be durable in time; what is, is gone on from.
            saved = any(event.kind is EventKind.RECOVERABLE and event.at_s < met.gone_s for event in run.events)
            assert after[0] > 1 or not saved, (before, after)
        assert arm is Arm.MANAGED or after[0] == 1
    # The same thing was done: where the words name a process, it is the one of that arm.
    ways = {"".join(word for word in run_way(run) if not word.isdigit()) for run in found.values()}
    assert len(ways) == (2 if kind is FaultKind.AGENT_KILLED else 1), ways


def run_way(run: Run) -> str:
    way = next(str(event.data["way"]) for event in run.events if event.kind is EventKind.FAULT_INJECTED)
    return way.replace(run.id, "")
