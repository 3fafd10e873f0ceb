"""What followed each fault, on runs whose every second is known; and the bars that show it."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from synthetic_runs import Script, play

from perdure.evaluation import bars, timeline
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind

ONE = Script(
    steps=50, step_s=2.0, faults=((25, FaultKind.KILL),), every=10, detection_s=3.0, scheduling_s=4.0, restart_s=6.0, warm_up_s=1.0
)


def test_a_restored_life_goes_on_from_the_checkpoint():
    (one,) = timeline.of_run(play(ONE, Arm.MANAGED))
    assert (one.fault, one.counter, one.recoverable, one.source, one.how) == ("kill", 25, 20, "perdure", "restore")
    assert (one.detected_s, one.restarted_s, one.restored_s) == pytest.approx((3.0, 7.0, 13.0))
    # Ready after 14 s, and the first step takes 2; five were lost, of which the first is already done then.
    assert one.useful_s == pytest.approx(16.0)
    assert one.caught_up_s == pytest.approx(24.0)
    assert one.recomputed_s == pytest.approx(8.0)


def test_an_unmanaged_life_begins_anew_or_from_its_own_checkpoint():
    (anew,) = timeline.of_run(play(dataclasses.replace(ONE, every=None)))
    assert (anew.recoverable, anew.source, anew.how, anew.restored_s) == (0, "start", "start", None)
    assert anew.caught_up_s == pytest.approx(14 + 25 * 2)
    (own,) = timeline.of_run(play(ONE))
    assert (own.recoverable, own.source) == (20, "own")


def test_what_never_came_back_is_said():
    run = play(ONE, Arm.MANAGED)
    hit = next(place for place, event in enumerate(run.events) if event.kind is EventKind.FAULT_INJECTED)
    fault = run.events[hit]
    cut = msgspec.structs.replace(run, events=(*run.events[: hit + 1], Event(fault.at_s + 60, EventKind.ENDED, None, {"completed": False})))
    (one,) = timeline.of_run(cut)
    assert one.useful_s is None
    assert one.observed_s == pytest.approx(60)
    bar = bars.draw((one,), "step").groups[0].bars[0]
    assert "did not come back in the 60.0 s" in bar.words
    assert sum(part.width for part in bar.segments) == pytest.approx(bars.LENGTH)


def test_faults_are_told_apart_and_sides_lie_side_by_side():
    two = dataclasses.replace(ONE, faults=((15, FaultKind.KILL), (35, FaultKind.HANG)))
    found = timeline.of_runs(
        [play(two, Arm.MANAGED, pair=1), play(two, pair=1), play(two, pair=0), play(two, Arm.MANAGED, purpose="baseline")]
    )
    assert [(one.pair, one.number, one.arm.value) for one in found] == [
        (0, 1, "unmanaged"),
        (0, 2, "unmanaged"),
        (1, 1, "unmanaged"),
        (1, 1, "managed"),
        (1, 2, "unmanaged"),
        (1, 2, "managed"),
    ]
    drawn = bars.draw(found, "step")
    assert [group.title for group in drawn.groups] == [
        "Pair 0, fault 1: kill, at step 15",
        "Pair 0, fault 2: hang, at step 35",
        "Pair 1, fault 1: kill, at step 15",
        "Pair 1, fault 2: hang, at step 35",
    ]


def test_the_pieces_of_a_bar_follow_each_other_and_keep_one_scale():
    found = timeline.of_runs([play(ONE), play(ONE, Arm.MANAGED)])
    drawn = bars.draw(found, "step")
    longest = max(one.caught_up_s for one in found)
    for one, bar in zip(found, drawn.groups[0].bars, strict=True):
        at = 0.0
        for piece in bar.segments:
            assert piece.x == pytest.approx(at)
            at += piece.width
        assert at == pytest.approx(one.caught_up_s / longest * bars.LENGTH)
        assert [piece.is_shaded for piece in bar.segments].count(True) == 1
    assert "5 steps again in 8.00 s" in drawn.groups[0].bars[1].words
