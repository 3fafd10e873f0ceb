"""The measures of a whole evaluation: known answers, reasons, outcomes, and nothing found where there is nothing."""

from __future__ import annotations

import functools
import math

import msgspec
import numpy as np
import pytest
from synthetic_runs import Script, noise, pairs, play

from perdure.evaluation import measures, paired, plan, plan_workload
from perdure.evaluation.paired import Definition, Values
from perdure.model.evaluation import Arm, EventKind, FaultKind, MeasureKind, Outcome, Point, Threshold

FAULTS = ((30, FaultKind.KILL), (71, FaultKind.NODE_LOST))
FOUR = (MeasureKind.RECOVERY_TIME, MeasureKind.WORK_LOST, MeasureKind.UTILISATION, MeasureKind.OVERHEAD)
SUCCESS = plan.Success(
    recovery_time=Threshold(reason="as agreed", ratio_at_most=0.9),
    work_lost=Threshold(reason="as agreed", at_most=0.1, ratio_at_most=0.5),
    utilisation=Threshold(reason="as agreed", gain_at_least=0.1),
    overhead=Threshold(reason="as agreed", at_most=0.02),
)


def planned(**changed):
    parts = {"header": plan.Header(name="trial", format=1), "workload": plan_workload.Workload(gpus=4, nodes=2), "success": SUCCESS}
    return plan.Plan(**(parts | changed))


def compute(runs, **changed):
    return {each.kind: each for each in measures.compute(runs, planned(**changed))}


def spread(pair, scale=0.002):
    return noise(pair, scale)


def unmanaged(pair):
    return Script(faults=FAULTS, noise=spread(pair))


def managed(pair):
    return Script(faults=FAULTS, every=20, stopped_s=0.5, restart_s=2.0, noise=spread(1000 + pair))


@functools.cache
def found():
    return compute(pairs(6, unmanaged, managed))


# Known answers ---------------------------------------------------------------------------------------------------


def exact(count=5):
    return pairs(
        count,
        lambda pair: Script(faults=FAULTS),
        lambda pair: Script(faults=FAULTS, every=20, stopped_s=0.5, restart_s=2.0, step_s=2.02),
    )


def test_known_answers():
    got = compute(exact())
    # Recovery: 3 + 4 + 6 + 1 + 2 s unmanaged, 3 + 4 + 2 + 1 + 2.02 s managed.
    recovery = got[MeasureKind.RECOVERY_TIME]
    assert recovery.medians == pytest.approx({Arm.UNMANAGED: 16, Arm.MANAGED: 12.02})
    assert (recovery.difference, recovery.ratio) == pytest.approx((-3.98, 12.02 / 16))
    assert (recovery.worst, recovery.percentile_95, recovery.pairs) == pytest.approx((12.02, 12.02, 5))
    # Work lost: 30 and 71 steps of 2 s unmanaged, 10 and 11 of 2.02 s managed, on 4 GPUs; a run enters by its mean.
    lost = got[MeasureKind.WORK_LOST]
    assert lost.unit == "GPU-hours"
    assert lost.medians == pytest.approx({Arm.UNMANAGED: 4 * 50.5 * 2 / 3600, Arm.MANAGED: 4 * 10.5 * 2.02 / 3600})
    assert lost.ratio == pytest.approx(10.5 * 2.02 / (50.5 * 2))
    assert lost.worst == pytest.approx(4 * 11 * 2.02 / 3600)
    # Utilisation: 99 steps delivered, of the start, 201 and 121 steps, two times down, four checkpoints, and the end.
    use = got[MeasureKind.UTILISATION]
    assert use.medians[Arm.UNMANAGED] == pytest.approx(198 / (5 + 201 * 2 + 2 * 14 + 2))
    assert use.medians[Arm.MANAGED] == pytest.approx(99 * 2.02 / (5 + 121 * 2.02 + 2 * 10 + 5 * 0.5 + 2))
    over = got[MeasureKind.OVERHEAD]
    assert over.medians == {Arm.UNMANAGED: None, Arm.MANAGED: pytest.approx(0.01)}
    assert (over.difference, over.ratio) == pytest.approx((0.01, 1.01))
    cost = got[MeasureKind.CHECKPOINT_COST]
    assert cost.medians[Arm.MANAGED] == pytest.approx(0.5)
    assert (cost.threshold, cost.outcome, cost.runs_needed) == (None, None, None)
    for measure in (recovery, lost, use, over):
        assert measure.outcome is Outcome.PASS
        assert measure.difference_interval.low == pytest.approx(measure.difference)
        assert measure.runs_needed == 5
        assert not measure.unmeasured


def test_every_run_is_listed_and_every_measure_says_what_it_includes():
    for kind, measure in found().items():
        runs = {point.run for point in measure.points}
        sides = ("managed",) if kind in (MeasureKind.OVERHEAD, MeasureKind.CHECKPOINT_COST) else ("managed", "unmanaged")
        assert runs == {f"{side}-{pair}" for side in sides for pair in range(6)}
        assert measure.includes
        assert "Hettmansperger" in measure.method
        assert all(point.basis == "measured" for point in measure.points)
    assert [len(found()[kind].points) for kind in FOUR] == [24, 24, 12, 6]


def test_the_same_runs_give_the_same_results_in_whatever_order():
    runs = pairs(6, unmanaged, managed)
    assert {kind: each.difference_interval for kind, each in compute(runs[::-1]).items()} == {
        kind: each.difference_interval for kind, each in found().items()
    }


def test_results_survive_json():
    for measure in found().values():
        assert msgspec.json.decode(msgspec.json.encode(measure), type=type(measure)) == measure


# Outcomes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "threshold", "outcome"),
    [
        (MeasureKind.RECOVERY_TIME, Threshold(reason="r", at_most=11), Outcome.FAIL),
        (MeasureKind.RECOVERY_TIME, Threshold(reason="r", at_most=13, ratio_at_most=0.5), Outcome.FAIL),
        (MeasureKind.RECOVERY_TIME, Threshold(reason="r", at_most=13), Outcome.PASS),
        (MeasureKind.WORK_LOST, Threshold(reason="r", ratio_at_most=0.1), Outcome.FAIL),
        (MeasureKind.UTILISATION, Threshold(reason="r", at_least=0.9), Outcome.FAIL),
        (MeasureKind.UTILISATION, Threshold(reason="r", at_least=0.5, gain_at_least=0.1), Outcome.PASS),
        (MeasureKind.OVERHEAD, Threshold(reason="r", at_most=0.0), Outcome.UNDECIDED),
    ],
)
def test_outcomes_of_thresholds(kind, threshold, outcome):
    success = plan.Success(**{kind.name.lower(): threshold})
    assert compute(pairs(6, unmanaged, managed), success=success)[kind].outcome is outcome


def test_fewer_pairs_than_any_interval_needs_decide_nothing():
    for kind in FOUR:
        measure = compute(exact(4))[kind]
        assert measure.outcome is Outcome.UNDECIDED
        assert measure.difference_interval is None
        assert measure.difference is not None
        assert measure.runs_needed == 5


def test_what_never_came_back_lets_nothing_pass():
    runs = list(exact(6))
    last = runs[-1]
    restarted = max(place for place, each in enumerate(last.events) if each.kind is EventKind.RESTARTED)
    runs[-1] = msgspec.structs.replace(last, events=last.events[:restarted])
    got = compute(runs)
    for kind in (MeasureKind.RECOVERY_TIME, MeasureKind.WORK_LOST):
        assert got[kind].outcome is Outcome.UNDECIDED
        assert got[kind].worst is None
        assert {each.code for each in got[kind].unmeasured} == {"never-recovered", "no-partner"}
    assert got[MeasureKind.OVERHEAD].outcome is Outcome.PASS
    assert [each.code for each in got[MeasureKind.UTILISATION].unmeasured][:1] == ["no-end"]


def test_only_interruptions_that_both_sides_met_enter_a_difference():
    runs = list(exact(5))
    # The unmanaged run of the first pair was ended before its second, dearer fault.
    first = runs[0]
    cut = [place for place, each in enumerate(first.events) if each.kind is EventKind.FAULT_INJECTED][1] - 1
    runs[0] = msgspec.structs.replace(first, events=first.events[:cut])
    lost = compute(runs)[MeasureKind.WORK_LOST]
    pairing = paired.pair(lost.points)
    assert pairing.differences[0] == pytest.approx(4 * (10 * 2.02 - 30 * 2) / 3600)
    assert pairing.differences[1] == pytest.approx(4 * (10.5 * 2.02 - 50.5 * 2) / 3600)
    assert [each.code for each in lost.unmeasured] == ["no-partner"]


def test_a_ratio_to_nothing_is_none():
    points = [
        Point("a", Arm.UNMANAGED, 0, 0.0),
        Point("b", Arm.MANAGED, 0, 1.0),
        Point("c", Arm.UNMANAGED, 1, 2.0),
        Point("d", Arm.MANAGED, 1, 1.0),
    ]
    result = paired.compare(Definition(kind=MeasureKind.WORK_LOST, unit="h", includes=""), Values(points=tuple(points)), planned())
    assert (result.ratio, result.ratio_interval, result.difference) == (None, None, 0.0)
    assert result.outcome is Outcome.UNDECIDED


def test_runs_that_do_not_count_give_their_reason():
    runs = [
        *exact(5),
        play(Script(faults=FAULTS), pair=8, excluded="the node was rebooted by its owner"),
        play(Script(faults=FAULTS), pair=9, finished=False),
        play(Script(faults=FAULTS), pair=10, purpose="baseline"),
        play(Script(faults=FAULTS), pair=11, gpus=0),
    ]
    got = compute(runs)
    for measure in got.values():
        codes = {each.run: each.code for each in measure.unmeasured}
        assert codes["unmanaged-8"] == "excluded"
        assert codes["unmanaged-9"] == "unfinished"
        assert "unmanaged-10" not in codes
        assert measure.pairs == (0 if measure.kind is MeasureKind.CHECKPOINT_COST else 5)
    assert {each.run: each.code for each in got[MeasureKind.WORK_LOST].unmeasured}["unmanaged-11"] == "other-unit"
    assert {each.run: each.code for each in got[MeasureKind.OVERHEAD].unmeasured}["unmanaged-11"] == "no-other-side"
    assert "rebooted" in next(each.reason for each in got[MeasureKind.OVERHEAD].unmeasured)


def test_no_runs_at_all():
    for measure in compute([]).values():
        assert not measure.points
        assert measure.medians == {Arm.UNMANAGED: None, Arm.MANAGED: None}
        assert measure.outcome in (Outcome.UNDECIDED, None)


def test_a_second_run_of_a_pair_is_averaged_and_not_preferred():
    runs = [*exact(5), play(Script(faults=FAULTS, detection_s=13), pair=0, id="again", repetition=9)]
    recovery = compute(runs)[MeasureKind.RECOVERY_TIME]
    assert paired.pair(recovery.points).arms[Arm.UNMANAGED][0] == pytest.approx(21)
    assert [each.code for each in compute(runs)[MeasureKind.OVERHEAD].unmeasured] == ["no-other-side"]


# A/A -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 10])
@pytest.mark.parametrize("kind", FOUR)
def test_unmanaged_against_unmanaged_finds_no_difference(kind, count):
    assert sum(_differs(seed, count)[kind] for seed in range(100)) <= 10


@functools.cache
def _differs(seed, count):
    """Which measures say that two unmanaged arms differ; faults strike where they like, and every duration varies by a twentieth."""
    where = np.random.default_rng(seed).integers(5, 95, size=count)

    def script(side):
        return lambda pair: Script(
            faults=((int(where[pair]), FaultKind.KILL),), noise=noise(hash((seed, pair, side)) % 2**32, 0.05), every=20
        )

    runs = pairs(count, script(0), script(1), arms=(Arm.UNMANAGED, Arm.UNMANAGED))
    got = compute(runs)
    assert all(got[kind].pairs == count for kind in FOUR)
    return {kind: not got[kind].difference_interval.low <= 0 <= got[kind].difference_interval.high for kind in FOUR}


def test_a_real_difference_is_found():
    # The same noise, and a managed side that is a tenth slower: the test above is able to fail.
    slower = pairs(10, lambda pair: Script(noise=noise(pair, 0.02)), lambda pair: Script(step_s=2.2, noise=noise(99 + pair, 0.02)))
    interval = compute(slower)[MeasureKind.OVERHEAD].difference_interval
    assert 0 < interval.low < 0.1 < interval.high
    assert not math.isclose(interval.low, interval.high)
