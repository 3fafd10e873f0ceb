"""Recovery time: exact on runs whose every second is known, in parts that add up, and a reason where there was none."""

from __future__ import annotations

import evaluations
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import Script, play

from perdure.evaluation import course, loss, recovery, rto
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind, Point, Unmeasured

KILL = ((30, FaultKind.KILL),)


def points(run):
    return list(recovery.points(course.read(run)))


@pytest.mark.parametrize("arm", Arm)
def test_the_parts_are_those_that_were_played(arm):
    (found,) = points(play(Script(faults=KILL, every=20, restart_s=6, warm_up_s=1), arm))
    assert found.value == pytest.approx(3 + 4 + 6 + 1 + 2)
    assert found.fault is FaultKind.KILL
    if arm is Arm.MANAGED:
        assert found.parts == pytest.approx({"detection": 3, "scheduling": 4, "restart": 6, "warm_up": 3})
    else:
        # Nobody says when an unmanaged workload is up but its first signal.
        assert found.parts == pytest.approx({"detection": 3, "scheduling": 4, "restart": 9, "warm_up": 0})


def test_every_interruption_has_its_own_point():
    found = points(play(Script(faults=((10, FaultKind.KILL), (40, FaultKind.HANG), (70, FaultKind.NODE_LOST)))))
    assert [(each.index, each.fault) for each in found] == [(0, FaultKind.KILL), (1, FaultKind.HANG), (2, FaultKind.NODE_LOST)]


def test_without_a_fault_there_is_a_reason():
    run = play(Script())
    assert points(run) == [Unmeasured(run.id, run.arm, 0, "no-fault", "no fault was injected")]


def drop(run, *kinds, after_s=0.0):
    return msgspec.structs.replace(run, events=tuple(each for each in run.events if each.kind not in kinds or each.at_s < after_s))


def cut(run, kind):
    """The run up to its last event of a kind."""
    last = max(place for place, each in enumerate(run.events) if each.kind is kind)
    return msgspec.structs.replace(run, events=run.events[: last + 1])


def test_a_workload_that_does_not_come_back_has_no_number():
    (found,) = points(cut(play(Script(faults=KILL)), EventKind.RESTARTED))
    assert isinstance(found, Unmeasured)
    assert found.code == "never-recovered"
    assert "did not come back" in found.reason


def test_without_a_recorded_end_the_first_signal_of_the_new_life_ends_it():
    run = play(Script(faults=KILL), Arm.MANAGED)
    assert points(drop(run, EventKind.USEFUL)) == points(run)


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ((EventKind.DETECTED,), {"detection+scheduling": 7, "restart": 6, "warm_up": 3}),
        ((EventKind.RESTORED, EventKind.READY), {"detection": 3, "scheduling": 4, "restart+warm_up": 9}),
        ((EventKind.DETECTED, EventKind.RESTARTED), {"detection+scheduling+restart": 13, "warm_up": 3}),
    ],
)
def test_what_nobody_recorded_leaves_its_parts_together(missing, names):
    (found,) = points(drop(play(Script(faults=KILL), Arm.MANAGED), *missing, after_s=0))
    assert found.parts == pytest.approx(names)
    assert sum(found.parts.values()) == pytest.approx(found.value)


def test_failed_tries_count_as_scheduling():
    run = play(Script(faults=KILL), Arm.MANAGED)
    restarted = next(each for each in run.events if each.kind is EventKind.RESTARTED)
    tried = Event(restarted.at_s - 3.5, EventKind.RESTARTED, None, {"how": "restore"})
    (found,) = points(msgspec.structs.replace(run, events=(*run.events, tried)))
    assert found.parts["scheduling"] == pytest.approx(4)
    assert found.value == pytest.approx(16)


def test_a_fault_within_a_recovery_is_an_interruption_of_its_own():
    run = play(Script(faults=KILL))
    detected = next(each for each in run.events if each.kind is EventKind.DETECTED)
    again = Event(detected.at_s + 1, EventKind.FAULT_INJECTED, None, {"kind": "node-lost"})
    first, second = points(msgspec.structs.replace(run, events=(*run.events, again)))
    assert first.value == pytest.approx(16)
    assert second.value == pytest.approx(16 - 3 - 1)
    assert sum(second.parts.values()) == pytest.approx(second.value)


def strike_softly(kind, *later):
    """A run with a fault after step 30 that may leave the workload alone, and what follows it, in seconds after it."""
    run = play(Script())
    struck_s = next(each.at_s for each in run.events if each.kind is EventKind.PROGRESS and each.value == 30) + 0.5
    fault = Event(struck_s, EventKind.FAULT_INJECTED, 30.0, {"kind": kind.value})
    return msgspec.structs.replace(run, events=(*run.events, fault, *(Event(struck_s + at_s, *rest) for at_s, *rest in later)))


@pytest.mark.parametrize("kind", [FaultKind.AGENT_KILLED, FaultKind.DISK_FULL, FaultKind.PREEMPTION])
def test_a_fault_that_the_workload_survives_is_no_interruption(kind):
    (found,) = points(strike_softly(kind))
    assert found.code == "not-interrupted"


@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("arm", Arm)
def test_a_fault_that_came_when_the_work_was_done_is_no_interruption(kind, arm):
    # It struck between the last step and the end, and the workload ended as it does undisturbed.
    run = play(Script(), arm)
    ended = run.events[-1]
    late = (Event(ended.at_s - 0.2, EventKind.FAULT_INJECTED, 100.0, {"kind": kind.value}), Event(ended.at_s - 0.1, EventKind.DETECTED))
    (found,) = points(msgspec.structs.replace(run, events=(*run.events[:-1], *late, ended)))
    assert (found.code, found.fault) == ("not-interrupted", kind)


def test_a_fault_after_which_a_new_life_did_the_work_in_silence_is_an_interruption():
    run = play(Script(faults=((100, FaultKind.KILL),)))
    struck_s = next(each.at_s for each in run.events if each.kind is EventKind.FAULT_INJECTED)
    (found,) = points(drop(run, EventKind.USEFUL, EventKind.PROGRESS, after_s=struck_s))
    assert found.code == "never-recovered"


def test_a_fault_of_an_unknown_kind_is_timed_all_the_same():
    run = play(Script(faults=KILL))
    changed = tuple(
        msgspec.structs.replace(each, data={"kind": "meteorite"}) if each.kind is EventKind.FAULT_INJECTED else each for each in run.events
    )
    (found,) = points(msgspec.structs.replace(run, events=changed))
    assert found.fault is None
    assert found.value == pytest.approx(16)


@pytest.mark.parametrize("arm", Arm)
def test_a_fault_that_was_another_one_on_the_other_side_is_in_no_comparison(arm):
    run = evaluations.with_faults_marked(play(Script(faults=((30, FaultKind.AGENT_KILLED), (71, FaultKind.KILL)), every=20), arm))
    assert {each.index for each in points(run) if isinstance(each, Point)} == {1}
    for found in (points(run), list(loss.points(course.read(run)))):
        (left_out,) = (each for each in found if isinstance(each, Unmeasured))
        assert (left_out.code, left_out.fault) == ("not-comparable", FaultKind.AGENT_KILLED)
    # Each side's own statement of its recovery holds.
    assert [(each.killed, each.came_back) for each in rto.statements([run])] == [(FaultKind.KILL, 1), (FaultKind.AGENT_KILLED, 1)]
    gone = points(cut(evaluations.with_faults_marked(play(Script(faults=((30, FaultKind.AGENT_KILLED),)), arm)), EventKind.RESTARTED))
    assert [each.code for each in gone] == ["never-recovered"]


@given(
    st.tuples(*[st.floats(0.0, 500.0)] * 4),
    st.sampled_from([FaultKind.KILL, FaultKind.KILL_TREE, FaultKind.NODE_LOST, FaultKind.HANG]),
    st.sampled_from(Arm),
)
def test_parts_always_add_up(durations, kind, arm):
    detection_s, scheduling_s, restart_s, warm_up_s = durations
    script = Script(
        faults=((30, kind),), detection_s=detection_s, scheduling_s=scheduling_s, restart_s=restart_s, warm_up_s=warm_up_s, every=7
    )
    (found,) = points(play(script, arm))
    assert isinstance(found, Point)
    assert found.value == pytest.approx(sum(durations) + script.step_s)
    assert sum(found.parts.values()) == pytest.approx(found.value)
    assert all(part >= 0 for part in found.parts.values())


# The statement ---------------------------------------------------------------------------------------------------


def test_a_statement_says_what_was_killed_and_how_it_came_back():
    runs = [play(Script(faults=KILL, every=20, detection_s=3 + pair), Arm.MANAGED, pair=pair) for pair in range(5)]
    (found,) = rto.statements(runs)
    assert (found.arm, found.killed) == (Arm.MANAGED, FaultKind.KILL)
    assert (found.runs, found.interruptions, found.came_back) == (5, 5, 5)
    assert (found.median_s, found.percentile_95_s, found.worst_s) == pytest.approx((18, 20, 20))
    assert found.state == (
        "from a checkpoint of Perdure's (5 of 5), 10 units of its counter behind in the middle, 10 at most; 5 of 5 runs finished the work"
    )
    assert "SIGKILL" in found.statement
    assert "median 18.0 s, 95th percentile 20.0 s (with fewer than 20 it is the worst), worst 20.0 s" in found.statement


def test_a_checkpoint_from_which_nothing_came_back_is_not_where_it_came_back_from():
    run = play(Script(faults=KILL))
    claim = Event(next(each.at_s for each in run.events if each.value == 24), EventKind.RECOVERABLE, 24.0, {"source": "perdure"})
    (found,) = rto.statements([msgspec.structs.replace(run, arm=Arm.MANAGED, events=(*run.events, claim))])
    assert found.state.startswith("from the start of the job (1 of 1), 30 units")
    later = play(Script(faults=KILL, every=20), Arm.MANAGED)
    claim = Event(next(each.at_s for each in later.events if each.value == 28), EventKind.RECOVERABLE, 28.0, {"source": "perdure"})
    (found,) = rto.statements([msgspec.structs.replace(later, events=(*later.events, claim))])
    assert found.state.startswith("from further back than its checkpoints said (1 of 1), 10 units")


def test_what_never_came_back_leaves_no_worst():
    runs = [play(Script(faults=KILL), pair=pair) for pair in range(3)]
    runs.append(cut(play(Script(faults=KILL), pair=3), EventKind.DETECTED))
    (found,) = rto.statements(runs)
    assert (found.interruptions, found.came_back) == (4, 3)
    assert found.worst_s is None
    assert found.percentile_95_s is None
    assert found.median_s == pytest.approx(16)
    assert "1 did not come back, so there is no worst" in found.statement
    assert found.state.startswith("from the start of the job (3 of 4)")


def test_one_of_many_that_never_came_back_leaves_a_percentile():
    runs = [play(Script(faults=KILL), pair=pair) for pair in range(39)]
    runs.append(cut(play(Script(faults=KILL), pair=39), EventKind.DETECTED))
    (found,) = rto.statements(runs)
    assert found.percentile_95_s == pytest.approx(16)
    assert found.worst_s is None


def test_statements_are_by_arm_and_kind_and_of_counted_runs():
    faults = ((30, FaultKind.KILL), (60, FaultKind.NODE_LOST))
    runs = [play(Script(faults=faults), arm, pair=pair) for arm in Arm for pair in range(2)]
    runs.append(play(Script(faults=faults), pair=9, excluded="the node was taken away meanwhile"))
    found = rto.statements(runs)
    assert [(each.arm, each.killed, each.interruptions) for each in found] == [
        (arm, kind, 2) for arm in Arm for kind in (FaultKind.KILL, FaultKind.NODE_LOST)
    ]
    assert not rto.statements([play(Script())])


def test_every_kind_of_fault_has_words():
    assert set(rto.KILLED) == set(FaultKind)
