"""Intervals of a rate: published values, the coverage that defines them, and how they behave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from perdure.stats import poisson


def test_no_event_gives_the_textbook_bounds() -> None:
    low, high = poisson.rate_interval(0, 1.0, level=0.95)
    assert low == 0.0
    assert high == pytest.approx(3.689, abs=0.001)
    # Two-sided 90 % is the one-sided 95 % bound.
    assert poisson.rate_interval(0, 1.0, level=0.90)[1] == pytest.approx(2.996, abs=0.001)


@pytest.mark.parametrize(("events", "low", "high"), [(1, 0.0253, 5.572), (3, 0.619, 8.767), (10, 4.795, 18.39), (100, 81.36, 121.63)])
def test_garwood_1936(events: int, low: float, high: float) -> None:
    found = poisson.rate_interval(events, 1.0, level=0.95)
    assert found[0] == pytest.approx(low, rel=1e-3)
    assert found[1] == pytest.approx(high, rel=1e-3)


@given(st.integers(1, 5000), st.floats(1e-3, 1e9), st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99]))
def test_the_ends_are_the_rates_at_which_the_count_becomes_unlikely(events: int, exposure: float, level: float) -> None:
    low, high = poisson.rate_interval(events, exposure, level=level)
    assert 0 < low < events / exposure < high
    assert reference.poisson.sf(events - 1, low * exposure) == pytest.approx((1 - level) / 2, rel=1e-6)
    assert reference.poisson.cdf(events, high * exposure) == pytest.approx((1 - level) / 2, rel=1e-6)


def test_over_dispersion_makes_the_events_worth_fewer() -> None:
    wide = poisson.rate_interval(90, 1000.0, dispersion=3.0)
    same = poisson.rate_interval(30, 1000.0 / 3)
    assert wide[0] == pytest.approx(float(same[0]))
    assert wide[1] == pytest.approx(float(same[1]))
    # Calmer than chance is chance.
    np.testing.assert_allclose(poisson.rate_interval(90, 1000.0, dispersion=0.3), poisson.rate_interval(90, 1000.0))


def test_few_degrees_of_freedom_widen_and_many_do_not() -> None:
    widths = [float(np.subtract(*poisson.rate_interval(50, 1.0, degrees_of_freedom=nu)[::-1])) for nu in (2, 5, 30, 1e6, np.inf)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 1.5 * widths[-1]
    assert widths[3] == pytest.approx(widths[4], rel=1e-4)


@pytest.mark.parametrize("freedom", [1.0, 4.0, 60.0])
def test_student_quantile(freedom: float) -> None:
    assert poisson.student_quantile(0.90, freedom) == pytest.approx(reference.t.ppf(0.95, freedom))
    assert poisson.student_quantile(0.90, np.inf) == pytest.approx(1.6449, abs=1e-4)


@pytest.mark.parametrize("mean", [4.0, 12.0, 80.0])
def test_gamma_interval_covers_at_its_level_on_average(mean: float) -> None:
    """Summed over all counts, not simulated: Jeffreys' interval covers 90 % of the time, give or take the discreteness."""
    coverage = []
    for truth in np.linspace(mean, mean * 1.3, 40):
        counts = np.arange(1, 400)
        low, high = poisson.gamma_interval(counts, 1 / counts)
        inside = (low <= truth) & (truth <= high)
        coverage.append(float(reference.poisson.pmf(counts, truth)[inside].sum()))
    assert np.mean(coverage) == pytest.approx(0.90, abs=0.02)


def test_gamma_interval_without_variance_is_the_estimate() -> None:
    low, high = poisson.gamma_interval(5.0, 0.0)
    assert low == pytest.approx(5.0, rel=1e-4)
    assert high == pytest.approx(5.0, rel=1e-4)


@given(st.floats(1e-9, 1e3), st.floats(1e-6, 50.0), st.sampled_from([1.0, 3.0, np.inf]))
def test_gamma_interval_holds_its_estimate(rate: float, variance: float, freedom: float) -> None:
    low, high = poisson.gamma_interval(rate, variance, degrees_of_freedom=freedom)
    assert 0 <= low <= rate <= high < np.inf
