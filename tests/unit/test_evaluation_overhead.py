"""Steady-state overhead and the cost of checkpoints: exact on runs whose pace is known, whatever else happens in them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import Script, play

from perdure.evaluation import course, overhead
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind, Point, Unmeasured

KILL = ((30, FaultKind.KILL),)


def compare(unmanaged, managed):
    (found,) = overhead.points(course.read(play(unmanaged)), course.read(play(managed, Arm.MANAGED)))
    return found


def costs(run):
    return list(overhead.costs(course.read(run)))


def test_the_pace_of_both_sides():
    found = compare(Script(step_s=2.0), Script(step_s=2.1))
    assert found.value == pytest.approx(0.05)
    assert found.parts == pytest.approx({"unmanaged_s": 198, "managed_s": 207.9, "work": 99, "timed": 99})


def test_checkpoints_recoveries_and_starts_are_no_part_of_it():
    found = compare(Script(faults=KILL, start_s=1), Script(step_s=2.1, faults=KILL, every=7, stopped_s=60, start_s=500, end_s=90))
    assert found.value == pytest.approx(0.05)
    assert found.parts["timed"] < found.parts["work"]


def test_only_work_that_both_did_is_compared():
    # The managed run is cut off early, while the unmanaged one grows slow: that is not managed's merit.
    slow = play(Script(steps=100))
    late = tuple(msgspec.structs.replace(each, at_s=each.at_s + max(0.0, (each.value or 0) - 50) * 5) for each in slow.events)
    unmanaged = msgspec.structs.replace(slow, events=late)
    (found,) = overhead.points(course.read(unmanaged), course.read(play(Script(steps=50), Arm.MANAGED)))
    assert found.value == pytest.approx(0)
    assert found.parts["work"] == 49


def test_what_is_computed_again_is_not_timed_again():
    # The second life is slow until it stands where the first one was, as with cold caches.
    run = play(Script(faults=((80, FaultKind.KILL),)), Arm.MANAGED)
    begun_s = next(each.at_s for each in run.events if each.kind is EventKind.RESTARTED)
    slow = tuple(
        msgspec.structs.replace(each, at_s=each.at_s + (10 * min(80, each.value or 80) if each.at_s > begun_s else 0))
        for each in run.events
    )
    (found,) = overhead.points(course.read(play(Script())), course.read(msgspec.structs.replace(run, events=slow)))
    assert found.value == pytest.approx(0)
    assert found.parts["timed"] == 99


def test_a_warm_up_is_left_out():
    runs = [play(Script(), arm, warm_up_s=25.0) for arm in Arm]
    slow = tuple(msgspec.structs.replace(each, at_s=each.at_s if each.at_s < 20 else each.at_s + 3) for each in runs[1].events)
    (found,) = overhead.points(course.read(runs[0]), course.read(msgspec.structs.replace(runs[1], events=slow)))
    assert found.value == pytest.approx(0)


def test_without_an_undisturbed_stretch_there_is_a_reason():
    run = play(Script(), Arm.MANAGED)
    saving = (Event(0.0, EventKind.CHECKPOINT_BEGUN), Event(run.events[-1].at_s, EventKind.CHECKPOINT_DONE, None, {"stopped_s": 1.0}))
    disturbed = msgspec.structs.replace(run, events=(*run.events, *saving))
    (found,) = overhead.points(course.read(play(Script())), course.read(disturbed))
    assert isinstance(found, Unmeasured)
    assert found.code == "no-pace"
    assert "the managed run" in found.reason
    (found,) = overhead.points(course.read(play(Script(steps=1))), course.read(run))
    assert "the unmanaged run" in found.reason


def uneven(arm=Arm.UNMANAGED, *, steps=1000, slower=0.0, saved_at_s=()):
    """A run whose every hundredth step takes 60 times as long as the others; its checkpoints cost nothing and take 10 s."""
    end_s, signals = 5.0, []
    for counter in range(1, steps + 1):
        end_s += (60.0 if counter % 100 == 0 else 1.0) * (1 + slower)
        signals.append(Event(end_s, EventKind.PROGRESS, float(counter)))
    saving = [
        event
        for at_s in saved_at_s
        for event in (Event(at_s, EventKind.CHECKPOINT_BEGUN), Event(at_s + 10, EventKind.CHECKPOINT_DONE, None, {"stopped_s": 0.0}))
    ]
    ended = Event(end_s, EventKind.ENDED, None, {"completed": True})
    return course.read(play(Script(), arm, events=(Event(0.0, EventKind.LAUNCHED), *signals, *saving, ended)))


@pytest.mark.parametrize("slower", [0.0, 0.03])
@pytest.mark.parametrize("first_s", [50, 110, 200, 370])
def test_checkpoints_that_come_by_the_clock_take_no_slow_work_out_of_one_side_alone(slower, first_s):
    # A checkpoint every so often meets a long step more often than a short one.
    managed = uneven(Arm.MANAGED, slower=slower, saved_at_s=range(first_s, 1500, 600))
    (found,) = overhead.points(uneven(), managed)
    assert found.value == pytest.approx(slower, abs=1e-9)


def test_a_range_that_never_was_undisturbed_in_both_has_a_reason():
    run = play(Script(), Arm.MANAGED)
    early = (Event(0.0, EventKind.CHECKPOINT_BEGUN), Event(100.0, EventKind.CHECKPOINT_DONE))
    late = (Event(100.0, EventKind.CHECKPOINT_BEGUN), Event(run.events[-1].at_s, EventKind.CHECKPOINT_DONE))
    one, other = (course.read(msgspec.structs.replace(run, events=(*run.events, *saving))) for saving in (early, late))
    (found,) = overhead.points(one, other)
    assert found.code == "no-pace"
    assert "in both" in found.reason


@given(st.floats(0.1, 50), st.floats(0.1, 50), st.lists(st.integers(1, 99), unique=True, max_size=3), st.integers(3, 50), st.floats(0, 100))
def test_it_is_the_ratio_of_the_paces_whatever_happens(one_s, other_s, counters, every, stopped_s):
    faults = tuple((at, FaultKind.KILL) for at in sorted(counters))
    found = compare(Script(step_s=one_s, faults=faults), Script(step_s=other_s, faults=faults, every=every, stopped_s=stopped_s))
    assert isinstance(found, Point)
    assert found.value == pytest.approx(other_s / one_s - 1, rel=1e-6, abs=1e-6)


# Checkpoints -----------------------------------------------------------------------------------------------------


def test_each_checkpoint_has_its_cost():
    found = costs(play(Script(every=30, stopped_s=1.5), Arm.MANAGED))
    assert [each.value for each in found] == [1.5, 1.5, 1.5]
    assert [each.index for each in found] == [0, 1, 2]
    assert found[1].parts == {"elapsed_s": pytest.approx(1.5), "stored_bytes": 60_000.0}


def test_a_checkpoint_stops_a_workload_for_less_than_it_takes():
    run = play(Script(), Arm.MANAGED)
    begun, done = Event(50.0, EventKind.CHECKPOINT_BEGUN), Event(60.0, EventKind.CHECKPOINT_DONE, None, {"stopped_s": 2.0})
    run = msgspec.structs.replace(run, events=(*run.events, begun, done))
    (found,) = costs(run)
    assert (found.value, found.parts) == (2.0, {"elapsed_s": 10.0})
    read = course.read(run)
    assert sum(each.stopped_s for each in read.stretches) == pytest.approx(2.0)


def test_what_was_never_done_or_does_not_say_has_a_reason():
    run = play(Script(), Arm.MANAGED)
    events = (
        Event(50.0, EventKind.CHECKPOINT_BEGUN),
        Event(60.0, EventKind.CHECKPOINT_BEGUN),
        Event(61.0, EventKind.CHECKPOINT_DONE),
        Event(70.0, EventKind.CHECKPOINT_BEGUN),
    )
    assert [each.code for each in costs(msgspec.structs.replace(run, events=(*run.events, *events)))] == ["not-done", "no-stop", "not-done"]


def test_a_failed_checkpoint_counts_as_standing_still_and_tells_no_pace():
    run = play(Script(), Arm.MANAGED)
    failed = (Event(51.5, EventKind.CHECKPOINT_BEGUN), Event(52.5, EventKind.CHECKPOINT_DONE, None, {"failed": "no space"}))
    run = msgspec.structs.replace(run, events=(*run.events, *failed))
    assert [each.code for each in costs(run)] == ["not-done"]
    read = course.read(run)
    assert sum(each.stopped_s for each in read.stretches) == pytest.approx(1.0)
    assert sum(each.known for each in read.stretches) == 98
    assert read.pace_s() == pytest.approx(2.0)


def test_a_checkpoint_that_a_fault_broke_off_ends_there():
    run = play(Script(faults=KILL), Arm.MANAGED)
    fault_s = next(each.at_s for each in run.events if each.kind is EventKind.FAULT_INJECTED)
    run = msgspec.structs.replace(run, events=(*run.events, Event(fault_s - 1, EventKind.CHECKPOINT_BEGUN)))
    # That it failed is told a moment later.
    run = msgspec.structs.replace(
        run, events=(*run.events, Event(fault_s + 0.1, EventKind.CHECKPOINT_DONE, None, {"failed": "it is gone"}))
    )
    (found,) = course.read(run).checkpoints
    assert (found.done, found.end_s) == (None, fault_s)


def test_a_log_that_tells_only_of_the_end_still_tells_how_long():
    run = play(Script(), Arm.MANAGED)
    run = msgspec.structs.replace(run, events=(*run.events, Event(60.0, EventKind.CHECKPOINT_DONE, None, {"stopped_s": 4.0})))
    (found,) = course.read(run).checkpoints
    assert (found.begun_s, found.end_s) == (56.0, 60.0)
