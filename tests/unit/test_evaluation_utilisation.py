"""Utilisation: where each hour of an allocation went, exact on runs whose every second is known."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import Script, play

from perdure.evaluation import course, utilisation
from perdure.model.evaluation import Arm, EventKind, FaultKind, Point

KILL = ((30, FaultKind.KILL),)


def split(run):
    return msgspec.structs.asdict(utilisation.split(course.read(run)))


def point(run):
    (found,) = utilisation.points(course.read(run))
    return found


def test_an_undisturbed_run():
    # 5 s to start, 100 steps of 2 s of which the first has no signal at its begin, 2 s to end.
    assert split(play(Script())) == pytest.approx(
        {"allocated_s": 207, "delivered_s": 198, "recomputed_s": 0, "checkpoints_s": 0, "down_s": 0, "other_s": 9}
    )
    assert point(play(Script())).value == pytest.approx(198 / 207)


def test_recomputation_is_lost_although_the_device_was_busy():
    # Steps 2 to 30 once for nothing; 14 s to be restarted and the 2 s of step 1.
    assert split(play(Script(faults=KILL))) == pytest.approx(
        {"allocated_s": 5 + 60 + 14 + 200 + 2, "delivered_s": 198, "recomputed_s": 58, "checkpoints_s": 0, "down_s": 16, "other_s": 9}
    )


def test_managed_recomputes_only_since_its_checkpoint():
    # Checkpoints of 3 s after steps 12, 24, 36 …, 96; steps 25 to 30 twice, of which step 25 ends the recovery.
    found = split(play(Script(faults=KILL, every=12, stopped_s=3), Arm.MANAGED))
    assert found == pytest.approx(
        {
            "allocated_s": 5 + 200 + 8 * 3 + 14 + 12 + 2,
            "delivered_s": 198,
            "recomputed_s": 10,
            "checkpoints_s": 24,
            "down_s": 16,
            "other_s": 9,
        }
    )


@pytest.mark.parametrize(("arm", "kept"), [(Arm.UNMANAGED, 96), (Arm.MANAGED, 96)])
def test_an_unfinished_job_delivered_what_its_last_checkpoint_keeps(arm, kept):
    found = split(play(Script(every=12, completes=False), arm))
    assert found["delivered_s"] == pytest.approx((kept - 1) * 2)
    assert found["recomputed_s"] == pytest.approx((100 - kept) * 2)


def test_an_unfinished_job_without_a_checkpoint_delivered_nothing():
    assert point(play(Script(completes=False))).value == 0


def test_a_warm_up_is_left_out_of_both():
    found = split(play(Script(), warm_up_s=25.0))
    # 20 s of work within it: ten steps.
    assert found == pytest.approx(
        {"allocated_s": 182, "delivered_s": 180, "recomputed_s": 0, "checkpoints_s": 0, "down_s": 0, "other_s": 2}
    )


def test_a_wait_between_two_allocations_is_not_allocated():
    run = play(Script(faults=KILL, scheduling_s=600))
    events = tuple(
        msgspec.structs.replace(each, data=each.data | {"queued_s": 596.0}) if each.kind is EventKind.RESTARTED else each
        for each in run.events
    )
    assert split(msgspec.structs.replace(run, events=events)) == pytest.approx(split(play(Script(faults=KILL))))


def test_parts_are_hours_of_gpus_or_nodes():
    run = play(Script())
    events = tuple(
        msgspec.structs.replace(each, data=each.data | {"device_utilisation": 0.93}) if each.kind is EventKind.ENDED else each
        for each in run.events
    )
    found = point(msgspec.structs.replace(run, events=events))
    assert found.parts["allocated"] == pytest.approx(4 * 207 / 3600)
    assert found.parts["device"] == 0.93
    assert point(play(Script(), gpus=0, nodes=3)).parts["delivered"] == pytest.approx(3 * 198 / 3600)


def test_runs_without_begin_end_or_progress_have_reasons():
    run = play(Script())
    for kind in (EventKind.LAUNCHED, EventKind.ENDED):
        found = point(msgspec.structs.replace(run, events=tuple(each for each in run.events if each.kind is not kind)))
        assert found.code == "no-end"
    quiet = tuple(each for each in run.events if each.kind is not EventKind.PROGRESS)
    assert point(msgspec.structs.replace(run, events=quiet)).code == "no-progress"
    assert "warm-up" in point(msgspec.structs.replace(run, warm_up_s=1000.0)).reason


def test_two_interruptions_that_overlap_are_down_once():
    run = play(Script(faults=KILL))
    fault = next(each for each in run.events if each.kind is EventKind.FAULT_INJECTED)
    again = msgspec.structs.replace(fault, at_s=fault.at_s + 5)
    assert split(msgspec.structs.replace(run, events=(*run.events, again)))["down_s"] == pytest.approx(16)


@given(
    st.lists(st.integers(1, 99), unique=True, max_size=4),
    st.none() | st.integers(1, 50),
    st.floats(0, 20),
    st.booleans(),
    st.sampled_from(Arm),
    st.floats(0, 150),
)
def test_all_parts_add_up_and_none_is_negative(counters, every, stopped_s, completes, arm, warm_up_s):
    faults = tuple((at, FaultKind.KILL) for at in sorted(counters))
    run = play(Script(faults=faults, every=every, stopped_s=stopped_s, completes=completes), arm, warm_up_s=warm_up_s)
    found = split(run)
    assert sum(value for name, value in found.items() if name != "allocated_s") == pytest.approx(found["allocated_s"])
    assert min(found.values()) >= -1e-6
    value = point(run)
    assert isinstance(value, Point)
    assert 0 <= value.value <= 1


@given(st.integers(1, 99), st.integers(1, 40))
def test_a_checkpoint_that_costs_nothing_never_lowers_utilisation(at, every):
    script = Script(faults=((at, FaultKind.KILL),), warm_up_s=0)
    with_, without = (point(play(changed(script, every=each), Arm.MANAGED)).value for each in (every, None))
    assert with_ >= without - 1e-9


def changed(script, **changes):
    return Script(**({name: getattr(script, name) for name in script.__dataclass_fields__} | changes))
