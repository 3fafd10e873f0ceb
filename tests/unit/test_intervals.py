"""Checkpoint intervals against the published table, scipy's Lambert W, and a brute-force minimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import lambertw

from perdure.stats import intervals

# M, C, Young, Daly's higher order, exact; minutes. The rows with C = 5 and M = 1440, 360, 15 are Daly's own examples.
TABLE = [
    (1440, 5, 120.000, 116.690, 116.690),
    (360, 5, 60.000, 56.713, 56.714),
    (60, 5, 24.495, 21.275, 21.281),
    (15, 5, 12.247, 9.141, 9.167),
    (10, 20, 20.000, 10.000, 9.475),
    (10, 25, 22.361, 10.000, 9.688),
    (474, 1, 30.790, 30.127, 30.127),
    (474, 1 / 6, 12.570, 12.459, 12.459),
]


@pytest.mark.parametrize(("mttf", "cost", "young", "daly", "exact"), TABLE)
def test_table(mttf, cost, young, daly, exact):
    assert intervals.young(mttf, cost) == pytest.approx(young, abs=6e-4)
    assert intervals.daly(mttf, cost) == pytest.approx(daly, abs=6e-4)
    assert intervals.exact(mttf, cost) == pytest.approx(exact, abs=6e-4)


def test_arrays_give_what_numbers_give():
    mttf, cost = np.array([row[:2] for row in TABLE], dtype=float).T
    for formula in (intervals.young, intervals.daly, intervals.exact):
        together = formula(mttf, cost)
        assert together.tolist() == [float(formula(*row[:2])) for row in TABLE]


def test_daly_first_order_knows_the_restart():
    assert intervals.daly_first_order(1440, 5) == pytest.approx(115.0)
    assert intervals.daly_first_order(1440, 5, 60) == pytest.approx(np.sqrt(2 * 5 * 1500) - 5)
    assert intervals.daly_first_order(1, 1000) == 0.0


@given(st.floats(1e-4, 30.0))
def test_exact_is_lambert(ratio):
    expected = 1.0 + lambertw(-np.exp(-1.0 - ratio)).real
    # scipy itself has half the digits beside the branch point, where this has all.
    assert intervals.exact(1.0, ratio) == pytest.approx(expected, rel=1e-6)


@given(st.floats(1e-12, 20.0))
def test_exact_solves_its_equation(ratio):
    share = float(intervals.exact(1.0, ratio))
    assert 0 < share < 1
    if share > 1e-3:
        assert -share - np.log1p(-share) == pytest.approx(ratio, rel=1e-6)
    else:
        assert share**2 / 2 + share**3 / 3 == pytest.approx(ratio, rel=1e-5)


@pytest.mark.parametrize(("mttf", "cost"), [(474, 2), (60, 5), (10, 25), (1e6, 1)])
def test_exact_is_the_minimum_of_the_total_time(mttf, cost):
    found = minimize_scalar(
        lambda tau: np.expm1((tau + cost) / mttf) / tau, bounds=(1e-3, 3 * mttf), method="bounded", options={"xatol": 1e-9}
    )
    assert intervals.exact(mttf, cost) == pytest.approx(found.x, rel=1e-4)


def test_both_branches_meet():
    # The series ends at √(2C/M) = 0.1.
    below, above = intervals.exact(1.0, [0.005 * (1 - 1e-9), 0.005 * (1 + 1e-9)])
    assert below == pytest.approx(above, rel=1e-8)


def test_extremes_are_numbers():
    mttf = np.array([np.inf, np.inf, 5.0, 1e-300, 1e300, 1e-300])
    cost = np.array([2.0, 0.0, 0.0, 1e300, 1e-300, 1e-300])
    exact = intervals.exact(mttf, cost)
    assert exact[:3].tolist() == [np.inf, 0.0, 0.0]
    assert exact[3] == 1e-300
    assert exact[4] == pytest.approx(np.sqrt(2.0))
    assert not np.isnan(intervals.young(mttf, cost)).any()
    assert not np.isnan(intervals.daly(mttf, cost)).any()
