"""The interval on a node is the one that `perdure interval` shows."""

from __future__ import annotations

import math

import pytest

from perdure.stats import intervals
from perdure.supervisor import interval


@pytest.mark.parametrize("mttf_s", [3600.0, 86400.0, 1e8])
@pytest.mark.parametrize("ratio", [1e-9, 1e-6, 1e-3, 0.01, 0.1, 0.5, 1.0, 10.0])
def test_it_is_the_exact_optimum(mttf_s, ratio):
    cost_s = ratio * mttf_s
    expected = max(float(intervals.exact(mttf_s, cost_s)), interval.LEAST_S)
    assert interval.best_s(mttf_s, cost_s) == pytest.approx(expected, rel=1e-10)


def test_it_is_the_minimum_of_the_expected_time_by_brute_force():
    mttf_s, cost_s = 7200.0, 40.0

    def expected(work_s: float) -> float:
        return math.expm1((work_s + cost_s) / mttf_s) / work_s

    best = min((step / 10 for step in range(10, 100_000)), key=expected)
    assert interval.best_s(mttf_s, cost_s) == pytest.approx(best, abs=0.2)


def test_the_ends():
    assert interval.best_s(math.inf, 1.0) == math.inf
    assert interval.best_s(86400.0, 0.0) == interval.LEAST_S
    assert interval.best_s(0.001, 5.0) == interval.LEAST_S
