"""Schedules of faults: the same from the same seed, spread as a Poisson process is, and a test of that which can fail."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perdure.evaluation import schedule
from perdure.evaluation.plan import Faults
from perdure.evaluation.schedule import Pace, Planned
from perdure.model.evaluation import FaultKind

KINDS = (FaultKind.KILL, FaultKind.HANG, FaultKind.NODE_LOST)


def test_faults_at_counters_come_in_order_and_each_kind_once():
    planned = schedule.draw(Faults(seed=7, kinds=KINDS, at_progress=(30.0, 10.0, 20.0)), pair=1, pace=None)
    assert [each.counter for each in planned] == [10, 20, 30]
    assert {each.kind for each in planned} == set(KINDS)
    assert all(each.drawn_s is None for each in planned)


def test_known_schedule():
    """A later Perdure must draw the same faults from the same plan."""
    planned = schedule.draw(Faults(seed=7, kinds=KINDS, rate_per_hour=60.0), pair=2, pace=Pace(10.0, 3000.0))
    assert [(each.kind.value, round(each.drawn_s or 0, 3)) for each in planned] == KNOWN


KNOWN = [("node-lost", 7.788), ("kill", 134.325), ("hang", 284.335)]


@given(st.integers(0, 1 << 53), st.integers(1, 1000))
def test_the_same_seed_and_pair_draw_the_same(seed, pair):
    faults = Faults(seed=seed, kinds=KINDS, rate_per_hour=50.0)
    pace = Pace(2.0, 5000.0)
    assert schedule.draw(faults, pair=pair, pace=pace) == schedule.draw(faults, pair=pair, pace=pace)


@given(st.integers(0, 1 << 53), st.floats(0.1, 3600), st.floats(0.001, 1e4), st.floats(1, 1e6))
def test_faults_lie_in_the_run_in_order_and_on_the_pace(seed, rate, per_s, last):
    planned = schedule.draw(Faults(seed=seed, kinds=KINDS, rate_per_hour=rate), pair=1, pace=Pace(per_s, last))
    assert len(planned) <= schedule.MOST
    counters = [each.counter for each in planned]
    assert counters == sorted(counters)
    assert all(0 < counter < last for counter in counters)
    assert all(math.isclose(each.counter, each.drawn_s * per_s) for each in planned)
    dealt = Counter(each.kind for each in planned)
    assert max(dealt.values(), default=0) - min((dealt[kind] for kind in KINDS), default=0) <= 1


def test_another_pair_or_seed_draws_others():
    drawn = {
        schedule.draw(Faults(seed=seed, kinds=KINDS, rate_per_hour=50.0), pair=pair, pace=Pace(2.0, 5000.0))
        for seed in range(5)
        for pair in range(1, 6)
    }
    assert len(drawn) == 25


def test_gaps_are_exponential_as_the_rate_says():
    """Of 200 schedules with a true rate, about one in twenty has p < 0.05; binomial bounds at 1e-6."""
    few = 0
    for seed in range(200):
        planned = schedule.draw(Faults(seed=seed, kinds=KINDS, rate_per_hour=30.0), pair=1, pace=Pace(1.0, 360_000.0))
        # The gap that the end of the run cuts off is left out: the first 2000 gaps are complete ones.
        _, probability = schedule.distance(schedule.gaps_s(planned)[:2000], 30.0 / 3600)
        few += probability < 0.05
    assert 0 < few < stats.binom.ppf(1 - 1e-6, 200, 0.05)


@pytest.mark.parametrize(
    "draw", [lambda d: 120.0, lambda d: d.uniform(0, 240), lambda d: d.expovariate(1 / 150)], ids=["even", "uniform", "slower"]
)
def test_gaps_that_are_something_else_are_found(draw):
    drawn = random.Random(1)
    _, probability = schedule.distance([draw(drawn) for _ in range(1000)], 1 / 120)
    assert probability < 1e-4


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=200), st.floats(1e-2, 1e2))
def test_the_distance_is_scipys(gaps, rate):
    """Oracle: scipy.stats.kstest for D, and its exact probability: `test_the_probability_is_near_the_exact_one` says how near."""
    distance, probability = schedule.distance(gaps, rate)
    expected = stats.kstest(gaps, "expon", args=(0, 1 / rate))
    assert distance == pytest.approx(expected.statistic, abs=1e-9)
    if len(gaps) >= 5:
        assert probability == pytest.approx(expected.pvalue, abs=0.023)


@pytest.mark.parametrize("count", [5, 8, 10, 12, 20, 50, 100, 200])
def test_the_probability_is_near_the_exact_one(count):
    """Stephens's correction is off by up to 0.0227, at 10 gaps, where all fits well, and by less than 0.004 where a doubt begins."""
    for step in range(1, 1000):
        gap = step / 1000
        distance, probability = schedule.evenness([gap] * count)
        exact = stats.kstwo.sf(distance, count)
        assert probability == pytest.approx(exact, abs=0.023)
        assert probability > 0.19 or probability == pytest.approx(exact, abs=0.004)


def test_gaps_of_a_schedule():
    planned = (Planned(FaultKind.KILL, 1.0, 2.0), Planned(FaultKind.KILL, 2.0, 5.0))
    assert schedule.gaps_s(planned) == (2.0, 3.0)
    assert schedule.gaps_s((Planned(FaultKind.KILL, 1.0),)) == ()


@pytest.mark.parametrize(
    "faults",
    [Faults(kinds=KINDS, at_progress=(1.0,)), Faults(seed=1, at_progress=(1.0,)), Faults(seed=1, kinds=KINDS, rate_per_hour=1.0)],
)
def test_what_a_schedule_needs(faults):
    with pytest.raises(ValueError, match="needs"):
        schedule.draw(faults, pair=1, pace=None)
    with pytest.raises(ValueError, match="no gaps"):
        schedule.distance([], 1.0)
