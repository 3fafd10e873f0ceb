"""Work lost: exact on runs whose recoverable points are known, and never less for a longer interval between checkpoints."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import Script, play

from perdure.evaluation import course, loss
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind

KILL = ((30, FaultKind.KILL),)


def points(run):
    return list(loss.points(course.read(run)))


def test_unmanaged_loses_all_since_the_start_of_the_job():
    (found,) = points(play(Script(faults=KILL)))
    assert found.parts == pytest.approx(
        {"at_fault": 30, "recoverable": 0, "pace_s": 2, "lost_s": 60, "node_hours": 2 * 60 / 3600, "gpu_hours": 4 * 60 / 3600, "after": 0}
    )
    assert found.value == pytest.approx(4 * 60 / 3600)
    assert found.basis == "measured"


def test_unmanaged_keeps_what_the_application_saves():
    (found,) = points(play(Script(faults=KILL, every=12)))
    assert (found.parts["recoverable"], found.parts["after"]) == (24, 0)
    assert found.value == pytest.approx(4 * 6 * 2 / 3600)


def test_managed_keeps_the_last_checkpoint():
    (found,) = points(play(Script(faults=KILL, every=12, stopped_s=3), Arm.MANAGED))
    assert (found.parts["recoverable"], found.parts["after"]) == (24, 1)
    # The time for which checkpoints stopped it is not part of its pace.
    assert found.parts["pace_s"] == pytest.approx(2)


def test_without_gpus_nodes_are_counted():
    (found,) = points(play(Script(faults=KILL), gpus=0, nodes=3))
    assert found.value == pytest.approx(3 * 60 / 3600)
    assert found.parts["gpu_hours"] == 0


def test_a_checkpoint_that_was_not_committed_before_the_fault_does_not_count():
    run = play(Script(faults=((24, FaultKind.KILL),), every=12, stopped_s=1), Arm.MANAGED)
    fault = next(each for each in run.events if each.kind is EventKind.FAULT_INJECTED)
    late = Event(fault.at_s + 0.5, EventKind.RECOVERABLE, 24.0, {"source": "perdure"})
    (found,) = points(msgspec.structs.replace(run, events=(*run.events, late)))
    assert found.parts["recoverable"] == 12


def test_a_checkpoint_in_the_grace_of_a_preemption_counts():
    run = play(Script(faults=((30, FaultKind.PREEMPTION),), every=12, detection_s=20), Arm.MANAGED)
    fault = next(each for each in run.events if each.kind is EventKind.FAULT_INJECTED)
    grace = (
        Event(fault.at_s + 2, EventKind.PROGRESS, 31.0),
        Event(fault.at_s + 4, EventKind.RECOVERABLE, 31.0, {"source": "perdure"}),
        Event(fault.at_s + 6, EventKind.PROGRESS, 32.0),
    )
    useful = [msgspec.structs.replace(each, value=32.0) if each.kind is EventKind.USEFUL else each for each in run.events]
    later = [each for each in useful if each.kind is not EventKind.PROGRESS or each.at_s < fault.at_s or each.value > 31]
    (found,) = points(msgspec.structs.replace(run, events=(*later, *grace)))
    assert (found.parts["at_fault"], found.parts["recoverable"]) == (32, 31)
    assert found.value == pytest.approx(4 * found.parts["pace_s"] / 3600)


def test_unmanaged_does_not_count_checkpoints_of_perdure():
    run = play(Script(faults=KILL, every=12), Arm.MANAGED)
    (found,) = points(msgspec.structs.replace(run, arm=Arm.UNMANAGED))
    # The run came back to step 24 all the same; what saved it is not the unmanaged workload's own.
    assert found.parts["recoverable"] == 0


def test_a_checkpoint_from_which_nothing_came_back_was_none():
    # It says that step 24 survives, and the workload starts over all the same.
    run = play(Script(faults=KILL))
    claim = Event(next(each.at_s for each in run.events if each.value == 24), EventKind.RECOVERABLE, 24.0, {"source": "perdure"})
    (found,) = points(msgspec.structs.replace(run, arm=Arm.MANAGED, events=(*run.events, claim)))
    assert (found.parts["recoverable"], found.parts["claimed"]) == (0, 24)
    assert found.value == pytest.approx(4 * 60 / 3600)


def test_the_second_fault_loses_since_the_life_that_it_struck():
    first, second = points(play(Script(faults=((30, FaultKind.KILL), (40, FaultKind.KILL)), every=12), Arm.MANAGED))
    assert (first.parts["recoverable"], second.parts["recoverable"]) == (24, 36)
    assert second.value == pytest.approx(4 * 4 * 2 / 3600)


def test_a_fault_before_any_progress_has_a_reason():
    run = play(Script(faults=KILL))
    launched_s = run.events[0].at_s
    early = Event(launched_s + 1, EventKind.FAULT_INJECTED, None, {"kind": "kill"})
    found = points(msgspec.structs.replace(run, events=(*run.events, early, Event(launched_s + 2, EventKind.DETECTED))))
    assert found[0].code == "no-progress"
    assert found[1].parts["at_fault"] == 30


def test_a_run_whose_pace_nobody_can_tell_has_a_reason():
    run = play(Script(steps=2, faults=((1, FaultKind.KILL),)))
    events = tuple(each for each in run.events if each.value != 2)
    (found,) = points(msgspec.structs.replace(run, events=events))
    assert found.code == "no-pace"


def test_a_job_that_starts_at_a_counter_of_its_own():
    run = play(Script(faults=KILL))
    events = tuple(msgspec.structs.replace(each, value=10.0) if each.kind is EventKind.LAUNCHED else each for each in run.events)
    (found,) = points(msgspec.structs.replace(run, events=events))
    # It came back at its first step: what it claimed to start with it did not have.
    assert (found.parts["recoverable"], found.parts["claimed"]) == (0, 10)


def total(every, at):
    (found,) = points(play(Script(faults=((at, FaultKind.KILL),), every=every), Arm.MANAGED))
    return found.value


@given(st.integers(1, 99), st.integers(1, 30), st.integers(2, 5))
def test_a_multiple_of_the_interval_never_loses_less(at, every, times):
    assert total(every, at) <= total(every * times, at) + 1e-12


@given(st.integers(1, 99), st.integers(1, 40), st.floats(0.1, 100), st.integers(1, 64), st.integers(1, 8))
def test_work_lost_is_what_the_counters_say(at, every, step_s, gpus, nodes):
    script = Script(faults=((at, FaultKind.NODE_LOST),), every=every, step_s=step_s)
    (found,) = points(play(script, Arm.MANAGED, gpus=gpus, nodes=nodes))
    # A fault that comes with the end of a step finds the checkpoint of that step not yet begun.
    kept = (at - 1) // every * every
    assert found.parts["at_fault"] - found.parts["recoverable"] == at - kept
    assert found.parts["gpu_hours"] == pytest.approx((at - kept) * step_s * gpus / 3600)
    assert found.parts["node_hours"] == pytest.approx((at - kept) * step_s * nodes / 3600)


def test_a_checkpoint_that_was_told_of_after_the_fault_counts_when_the_restore_went_on_from_it():
    """Durable in the instant before the fault; nobody could say so until after it."""
    events = [
        Event(1.0, EventKind.LAUNCHED, data={"life": 1}),
        Event(2.0, EventKind.PROGRESS, 10.0),
        Event(2.1, EventKind.RECOVERABLE, 10.0, {"source": "perdure", "id": "1.1"}),
        Event(3.0, EventKind.PROGRESS, 25.0),
        Event(3.0, EventKind.FAULT_INJECTED, 25.0, {"kind": "kill"}),
        Event(3.1, EventKind.RECOVERABLE, 23.0, {"source": "perdure", "id": "1.2"}),
        Event(4.0, EventKind.RESTORED, data={"from": "w@1.2"}),
    ]
    run = play(Script(faults=KILL), Arm.MANAGED)
    told = lambda found: msgspec.structs.replace(run, events=tuple(found))  # noqa: E731
    assert course.read(told(events)).recoverable_at(3.0) == (23.0, "perdure")
    older = [*events[:-1], Event(4.0, EventKind.RESTORED, data={"from": "w@1.1"})]
    assert course.read(told(older)).recoverable_at(3.0) == (10.0, "perdure")


def test_a_checkpoint_that_was_taken_before_a_hang_and_durable_after_it_counts():
    """A workload that stands still may be tried to be saved again: that is refused, and changes nothing."""
    events = [
        Event(1.0, EventKind.LAUNCHED, data={"life": 1}),
        Event(2.0, EventKind.PROGRESS, 10.0),
        Event(2.1, EventKind.RECOVERABLE, 10.0, {"source": "perdure", "id": "1.1"}),
        Event(2.9, EventKind.CHECKPOINT_BEGUN),
        Event(3.0, EventKind.PROGRESS, 25.0),
        Event(3.0, EventKind.FAULT_INJECTED, 25.0, {"kind": "hang"}),
        Event(3.5, EventKind.CHECKPOINT_DONE, None, {"id": "1.2"}),
        Event(3.5, EventKind.RECOVERABLE, 23.0, {"source": "perdure", "id": "1.2"}),
        Event(4.0, EventKind.CHECKPOINT_BEGUN),
        Event(4.1, EventKind.CHECKPOINT_DONE, None, {"failed": "every process of it is stopped"}),
        Event(9.0, EventKind.RESTORED, data={"from": "w@1.2"}),
    ]
    run = play(Script(faults=KILL), Arm.MANAGED)
    assert course.read(msgspec.structs.replace(run, events=tuple(events))).recoverable_at(3.0) == (23.0, "perdure")
    # Its begin may be told of late as well, as where output is read now and then.
    late = [Event(3.2, EventKind.CHECKPOINT_BEGUN), *(event for event in events if event.at_s != 2.9)]
    late.sort(key=lambda event: event.at_s)
    assert course.read(msgspec.structs.replace(run, events=tuple(late))).recoverable_at(3.0) == (23.0, "perdure")
    # What a life saves that started anew is no point that the fault before it left.
    events[-1:] = [
        Event(9.0, EventKind.RESTARTED, data={"life": 2, "how": "start"}),
        Event(10.0, EventKind.RECOVERABLE, 1.0, {"source": "perdure", "id": "2.1"}),
        Event(11.0, EventKind.FAULT_INJECTED, 2.0, {"kind": "kill"}),
        Event(12.0, EventKind.RESTORED, data={"from": "w@2.1"}),
    ]
    found = course.read(msgspec.structs.replace(run, events=tuple(events)))
    assert (found.recoverable_at(3.0), found.recoverable_at(11.0)) == ((10.0, "perdure"), (1.0, "perdure"))
