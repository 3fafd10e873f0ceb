"""When a checkpoint is due: long lists of events replayed against a clock that the test holds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model.checkpoint import Trigger
from perdure.supervisor import interval
from perdure.supervisor.record import Options
from perdure.supervisor.triggers import Due, Triggers

STOP = Due(Trigger.STOP, "SIGTERM", stop=True)
ASKED = Due(Trigger.REQUEST, "perdure checkpoint")


def test_an_interval_counts_from_the_end_of_the_checkpoint_before():
    triggers = Triggers(Options(every=10.0), now_s=100.0)
    assert triggers.due(109.9) is None
    assert triggers.next_s() == 110.0
    assert triggers.due(110.0).trigger is Trigger.INTERVAL
    triggers.committed(113.0, stopped_s=0.5, whole_s=3.0)
    assert triggers.due(122.9) is None
    assert triggers.due(123.0) is not None


def test_the_clock_stands_still_while_the_workload_does_on_purpose():
    triggers = Triggers(Options(every=10.0, before_end=5.0), now_s=0.0)
    triggers.ends(1000.0, now_s=0.0)
    triggers.pause()
    assert triggers.due(500.0) is None
    assert triggers.next_s() == 995.0
    triggers.ask(ASKED)
    assert triggers.due(500.0) == ASKED
    triggers.committed(501.0, stopped_s=0.1, whole_s=1.0)
    assert triggers.due(600.0) is None
    triggers.go_on(600.0)
    triggers.go_on(605.0)
    assert triggers.next_s() == 610.0
    assert triggers.due(610.0).trigger is Trigger.INTERVAL
    triggers.pause()
    assert triggers.due(996.0).trigger is Trigger.END


def test_never_is_never_and_asking_still_works():
    triggers = Triggers(Options(every="never"), now_s=0.0)
    assert triggers.next_s() == math.inf
    assert triggers.due(1e9) is None
    triggers.ask(ASKED)
    assert triggers.due(0.0) == ASKED
    assert triggers.due(0.0) is None


def test_what_is_asked_for_meanwhile_is_one_checkpoint_and_stopping_wins():
    triggers = Triggers(Options(every="never"), now_s=0.0)
    for due in (ASKED, STOP, ASKED):
        triggers.ask(due)
    assert triggers.due(0.0) == STOP
    assert triggers.due(0.0) is None


def test_auto_follows_the_measured_cost():
    triggers = Triggers(Options(every="auto", mttf_s=36000.0), now_s=0.0)
    assert triggers.interval_s == interval.best_s(36000.0, interval.ASSUMED_COST_S)
    triggers.committed(10.0, stopped_s=20.0, whole_s=60.0)
    assert triggers.interval_s == interval.best_s(36000.0, 20.0)
    assert triggers.next_s() == 10.0 + triggers.interval_s


def test_failures_make_longer_pauses_and_a_success_ends_them():
    triggers = Triggers(Options(every=5.0), now_s=0.0)
    now_s, pauses = 5.0, []
    for _ in range(9):
        assert triggers.due(now_s) is not None
        pauses.append(triggers.failed(now_s))
        assert triggers.due(now_s + pauses[-1] - 0.1) is None
        now_s += pauses[-1]
    assert pauses[:3] == [30.0, 60.0, 120.0]
    assert pauses[-1] == 1800.0
    assert triggers.due(now_s) is not None
    triggers.committed(now_s, stopped_s=0.1, whole_s=1.0)
    assert triggers.due(now_s + 5.0) is not None


def test_what_is_put_off_is_tried_again_as_often_however_long_that_goes_on():
    triggers = Triggers(Options(every=5.0), now_s=0.0)
    now_s = 5.0
    for _ in range(9):
        assert triggers.due(now_s) is not None
        assert triggers.put_off(now_s) == 30.0
        assert triggers.due(now_s + 29.9) is None
        now_s += 30.0
    assert Triggers(Options(every=300.0), now_s=0.0).put_off(300.0) == 300.0


def test_asking_does_not_wait_for_the_pause():
    triggers = Triggers(Options(every=5.0), now_s=0.0)
    triggers.failed(5.0)
    triggers.ask(ASKED)
    assert triggers.due(5.1) == ASKED


def test_before_the_end_it_saves_once_and_stops():
    triggers = Triggers(Options(every="never", before_end=300.0), now_s=0.0)
    triggers.ends(1000.0, now_s=0.0)
    assert triggers.next_s() == 700.0
    assert triggers.due(699.0) is None
    due = triggers.due(700.0)
    assert (due.trigger, due.stop) == (Trigger.END, True)
    assert triggers.due(800.0) is None


def test_before_the_end_auto_leaves_twice_what_the_last_one_took():
    triggers = Triggers(Options(every="never", before_end="auto"), now_s=0.0)
    triggers.ends(10_000.0, now_s=0.0)
    assert triggers.next_s() == pytest.approx(10_000.0 - 150.0)
    triggers.committed(10.0, stopped_s=1.0, whole_s=200.0)
    assert triggers.next_s() == pytest.approx(10_000.0 - 430.0)


def test_an_end_without_before_end_does_nothing():
    triggers = Triggers(Options(every="never"), now_s=0.0)
    triggers.ends(10.0, now_s=0.0)
    assert triggers.due(20.0) is None


def test_before_the_end_auto_leaves_half_of_a_short_time_for_work():
    triggers = Triggers(Options(every="never", before_end="auto"), now_s=100.0)
    triggers.ends(160.0, now_s=100.0)
    assert triggers.next_s() == pytest.approx(130.0)
    assert triggers.due(129.0) is None
    assert triggers.due(130.0).trigger is Trigger.END


def test_a_lead_that_was_asked_for_is_kept_however_short_the_time():
    triggers = Triggers(Options(every="never", before_end=50.0), now_s=100.0)
    triggers.ends(160.0, now_s=100.0)
    assert triggers.due(110.0).trigger is Trigger.END


def test_an_end_that_moves_away_counts_again_and_one_that_jitters_does_not():
    triggers = Triggers(Options(every="never", before_end=10.0), now_s=0.0)
    triggers.ends(100.0, now_s=0.0)
    assert triggers.due(90.0) is not None
    triggers.ends(101.0, now_s=90.0)
    assert triggers.due(95.0) is None
    triggers.ends(200.0, now_s=95.0)
    assert triggers.due(189.0) is None
    assert triggers.due(190.0).trigger is Trigger.END


def test_an_end_that_comes_closer_is_the_one_that_holds():
    triggers = Triggers(Options(every="never", before_end=10.0), now_s=0.0)
    triggers.ends(1000.0, now_s=0.0)
    triggers.ends(50.0, now_s=20.0)
    assert triggers.next_s() == 40.0


@given(
    every=st.one_of(st.just("never"), st.just("auto"), st.floats(1.0, 1e5)),
    steps=st.lists(st.tuples(st.sampled_from(["wait", "ask", "commit", "fail", "put off"]), st.floats(0.0, 1e4)), max_size=60),
)
def test_next_says_when_due_will_answer(every, steps):
    """Whatever happened: nothing is due before `next_s` unless asked for, and something is due then."""
    triggers, now_s = Triggers(Options(every=every), now_s=0.0), 0.0
    for what, amount in steps:
        now_s += amount
        match what:
            case "ask":
                triggers.ask(ASKED)
                assert triggers.due(now_s) == ASKED
            case "commit":
                triggers.committed(now_s, stopped_s=amount / 100, whole_s=amount / 10)
            case "fail":
                assert triggers.failed(now_s) > 0
            case "put off":
                assert triggers.put_off(now_s) > 0
            case _:
                next_s = triggers.next_s()
                assert (triggers.due(now_s) is not None) == (now_s >= next_s)
