"""Serving workers: what rebuilding costs, and the verdict, against a simulation of outages."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.decision.serving import ServingQuestion, Sessions, decide_serving, rebuild
from perdure.model.advice import Costs, Interval, Verdict

SESSIONS = Sessions(200, 30_000, 20_000, 25.0)
GROWING = Sessions(200, 30_000, 20_000, 25.0, turns=5, tokens_per_turn=800, turn_every_minutes=2.0)


def question(sessions=SESSIONS, mttf=20 * 1440.0, horizon=30 * 1440.0, **changes) -> ServingQuestion:
    return ServingQuestion(sessions, mttf, horizon, **changes)


def test_rebuilding_is_the_load_and_every_session_through_prefill():
    cost = rebuild(SESSIONS)
    assert cost.context_tokens == 6_000_000
    assert cost.prefill_minutes == pytest.approx(6e6 / 20_000 / 60)
    assert cost.rebuild_minutes == pytest.approx(30.0)
    assert cost.growth_per_minute == 0.0


def test_it_grows_with_each_turn():
    costs = [rebuild(msgspec.structs.replace(GROWING, turns=turns)) for turns in range(4)]
    steps = np.diff([cost.rebuild_minutes for cost in costs])
    assert steps == pytest.approx(200 * 800 / 20_000 / 60)
    assert costs[0].minutes_per_turn == pytest.approx(steps[0])
    assert costs[0].growth_per_minute == pytest.approx(steps[0] / 2.0)


def test_a_slow_start_is_worth_a_checkpoint():
    verdict = decide_serving(question())
    assert verdict.verdict == "RESUME"
    assert verdict.inputs.rebuild.points_to == "resume"
    assert verdict.inputs.rebuild.figure == pytest.approx(30.0)
    assert verdict.retry.expected_minutes > verdict.resume.expected_minutes
    assert verdict.resume.interval_minutes is None  # one checkpoint of the loaded worker


def test_a_quick_start_is_not():
    quick = Sessions(10, 1000, 20_000, 1.0)
    verdict = decide_serving(question(quick))
    assert verdict.verdict == "RETRY"
    assert verdict.inputs.rebuild.points_to == "retry"
    assert verdict.break_even.checkpoint_cost_minutes is None


def test_growing_contexts_want_checkpoints_again_where_those_are_cheap():
    cheap = decide_serving(question(msgspec.structs.replace(GROWING, turn_every_minutes=60.0, turns=100), 2 * 1440.0, costs=Costs(0.1)))
    assert cheap.verdict == "RESUME"
    assert 1 < cheap.resume.interval_minutes < 30 * 1440


def test_a_simulation_of_outages_takes_as_long():
    fresh = decide_serving(question(mttf=300.0, horizon=3000.0)).retry.expected_minutes
    generator = np.random.default_rng(5)
    times = np.zeros(20_000)
    for run in range(len(times)):
        served, clock = 0.0, 0.0
        while True:
            up = generator.exponential(300.0)
            if served + up >= 3000.0:
                clock += 3000.0 - served
                break
            served, clock = served + up, clock + up + 5.0
            while (until := generator.exponential(300.0)) < 30.0:
                clock += until + 5.0
            clock += 30.0
        times[run] = clock
    assert fresh == pytest.approx(times.mean(), abs=4 * times.std() / np.sqrt(len(times)))


def test_an_interval_across_the_break_even_is_open():
    verdict = decide_serving(question(mttf_interval=Interval(5 * 1440.0, math.inf)))
    assert verdict.verdict == "EITHER"
    assert "longer history" in verdict.settle_by


def test_turns_without_their_time_are_warned_of():
    untimed = msgspec.structs.replace(GROWING, turn_every_minutes=None)
    assert any("turn" in warning for warning in decide_serving(question(untimed)).warnings)
    assert not decide_serving(question(GROWING)).warnings


@pytest.mark.parametrize(
    "sessions",
    [
        msgspec.structs.replace(SESSIONS, prefill_tokens_per_s=0.0),
        msgspec.structs.replace(SESSIONS, count=-1.0),
        msgspec.structs.replace(SESSIONS, load_minutes=math.inf),
        msgspec.structs.replace(SESSIONS, context_tokens=math.nan),
        msgspec.structs.replace(GROWING, turn_every_minutes=0.0),
    ],
)
def test_a_figure_out_of_range_is_named(sessions):
    with pytest.raises(errors.QuantityError, match="out of range"):
        rebuild(sessions)


amounts = st.one_of(st.just(0.0), st.floats(1e-3, 1e6))


@given(
    st.builds(Sessions, amounts, amounts, st.floats(1e-3, 1e6), amounts, amounts, amounts, st.one_of(st.none(), st.floats(1e-3, 1e6))),
    st.one_of(st.floats(1e-3, 1e8), st.just(math.inf)),
    st.floats(1e-2, 1e7),
    st.builds(Costs, st.floats(0, 100), st.none(), st.floats(0, 100), st.floats(0, 100), st.floats(0, 100)),
)
def test_any_worker_gets_a_whole_answer(sessions, mttf, horizon, costs):
    verdict = decide_serving(ServingQuestion(sessions, mttf, horizon, costs=costs))
    text = msgspec.json.encode(verdict)
    assert msgspec.json.decode(text, type=Verdict) == verdict
    assert "nan" not in text.decode()
