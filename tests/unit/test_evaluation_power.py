"""Intervals of few pairs, what they say of a threshold, and how many pairs it takes."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.evaluation import paired as pairing
from perdure.evaluation import power
from perdure.evaluation.paired import Pairing
from perdure.evaluation.power import Criterion
from perdure.model.advice import Interval
from perdure.model.evaluation import Arm, Outcome, Threshold
from perdure.stats import paired

LAWS = {
    "normal": (lambda generator, size: generator.normal(size=size), 0.0),
    "lognormal": (lambda generator, size: generator.lognormal(size=size), 1.0),
    "exponential": (lambda generator, size: generator.exponential(size=size), math.log(2)),
    "student of 2 degrees": (lambda generator, size: generator.standard_t(2, size=size), 0.0),
    "uniform": (lambda generator, size: generator.random(size=size), 0.5),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("count", [5, 7, 10, 20])
def test_an_interval_of_90_percent_covers_90_to_95(law, count):
    draw, median = LAWS[law]
    samples = draw(np.random.default_rng(count), (3000, count))
    held = [found.low <= median <= found.high for row in samples if (found := paired.median_interval(row, 0.90))]
    assert len(held) == 3000
    assert 0.90 <= np.mean(held) <= 0.95


def test_the_plain_percentile_bootstrap_covers_less():
    # The reason for the correction: the same simulation, resampled as usual.
    generator = np.random.default_rng(0)
    resamples = generator.integers(0, 9, size=(1000, 9))
    held = []
    for row in generator.normal(size=(1000, 9)):
        low, high = np.quantile(np.median(row[resamples], axis=1), [0.05, 0.95], method="inverted_cdf")
        held.append(low <= 0 <= high)
    assert np.mean(held) < 0.88


def test_with_many_values_it_is_the_percentile_bootstrap():
    generator = np.random.default_rng(1)
    values = generator.normal(size=401)
    medians = np.median(values[generator.integers(0, 401, size=(4000, 401))], axis=1)
    # The level at which it aims.
    low, high = np.quantile(medians, [0.1 / 3, 1 - 0.1 / 3])
    found = paired.median_interval(values, 0.90)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.15 * (high - low))


@pytest.mark.parametrize(("level", "fewest"), [(0.5, 2), (0.75, 3), (0.80, 4), (0.90, 5), (0.95, 6), (0.99, 8), (0.999, 11)])
def test_fewest_values_of_a_level(level, fewest):
    assert paired.fewest(level) == fewest
    assert 1 - 2 * 0.5**fewest >= level
    assert paired.median_interval(range(fewest - 1), level) is None
    found = paired.median_interval(range(fewest), level)
    assert 0 <= found.low <= found.high <= fewest - 1


def test_an_interval_by_hand():
    # n = 10, aim 1 − 0.1·2/3: ranks 2 and 9 cover 1 − 22/1024 = 0.97852, ranks 3 and 8 cover 1 − 112/1024 = 0.89063.
    share = (1002 / 1024 - (1 - 0.1 * 2 / 3)) / (90 / 1024)
    weight = 8 * share / (2 + 6 * share)
    found = paired.median_interval([*range(1, 11)], 0.90)
    assert found == Interval(pytest.approx(2 + weight), pytest.approx(9 - weight), 0.90)


@given(st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=40), st.sampled_from([0.5, 0.8, 0.9]))
def test_an_interval_holds_the_median_and_stays_within_the_values(values, level):
    found = paired.median_interval(values, level)
    middle = statistics.median(values)
    assert min(values) <= found.low <= middle + 1e-6
    assert middle - 1e-6 <= found.high <= max(values)


@given(st.lists(st.floats(-1e3, 1e3), min_size=8, max_size=30))
def test_a_higher_level_is_never_narrower(values):
    narrow, wide = (paired.median_interval(values, level) for level in (0.80, 0.95))
    assert wide.low <= narrow.low + 1e-9
    assert narrow.high <= wide.high + 1e-9


@pytest.mark.parametrize("distance", [2.0, 1.0, 0.6, 0.3])
def test_so_many_pairs_have_the_power(distance):
    needed = paired.pairs_needed(statistics.NormalDist().cdf(distance), 0.90)
    generator = np.random.default_rng(2)
    found = [paired.median_interval(row, 0.90).low > 0 for row in generator.normal(distance, 1, size=(1500, needed))]
    assert 0.75 <= np.mean(found) <= (0.95 if needed < 8 else 0.88)


def test_pairs_needed_at_the_edges():
    assert paired.pairs_needed(1.0, 0.90) == 5
    assert paired.pairs_needed(0.0, 0.90) == 5
    assert paired.pairs_needed(0.5, 0.90) is None
    assert paired.pairs_needed(0.5000001, 0.90) is None
    assert paired.pairs_needed(0.501, 0.90) is None


@pytest.mark.parametrize("share", [0.502, 0.52, 0.6])
def test_pairs_needed_for_a_small_difference_by_noether(share):
    # Noether 1987: n = (z of the error + z of the power)² / (4·(p − 1/2)²), here with the error that is aimed at.
    normal = statistics.NormalDist()
    expected = (normal.inv_cdf(1 - 0.1 / 3) + normal.inv_cdf(0.8)) ** 2 / (4 * (share - 0.5) ** 2)
    assert paired.pairs_needed(share, 0.90) == pytest.approx(expected, rel=0.06)


@given(st.floats(0.55, 0.95), st.floats(0.001, 0.04))
def test_a_clearer_difference_needs_no_more_pairs(share, more):
    # Power has steps in the number of pairs, so that a clearer difference may need one or two more.
    assert paired.pairs_needed(share + more, 0.90) <= paired.pairs_needed(share, 0.90) + 2


def bound(values, below=True, at=10.0, name="at_most"):
    return Criterion(name=name, bound=at, values=tuple(values), below=below)


@pytest.mark.parametrize(
    ("values", "below", "outcome"),
    [
        ([1, 2, 3, 4, 5], True, Outcome.PASS),
        ([10, 10, 10, 10, 10], True, Outcome.PASS),
        ([11, 12, 13, 14, 15], True, Outcome.FAIL),
        ([8, 9, 10, 11, 12], True, Outcome.UNDECIDED),
        ([1, 2, 3, 4], True, Outcome.UNDECIDED),
        ([], True, Outcome.UNDECIDED),
        ([1, 2, 3, 4, 5], False, Outcome.FAIL),
        ([10, 10, 10, 10, 10], False, Outcome.PASS),
        ([11, 12, 13, 14, 15], False, Outcome.PASS),
    ],
)
def test_a_threshold_is_passed_only_by_the_whole_interval(values, below, outcome):
    assert power.judge(bound(values, below), 0.90) is outcome


def test_criteria_of_a_threshold():
    found = Pairing(arms={Arm.MANAGED: (1.0, 2.0), Arm.UNMANAGED: (4.0, 4.0)}, differences=(-3.0, -2.0), ratios=(0.25, 0.5))
    threshold = Threshold(reason="r", at_most=5, ratio_at_most=0.6, at_least=0.1, gain_at_least=-4)
    assert [(each.name, each.values, each.below) for each in power.criteria(threshold, found)] == [
        ("at_most", (1.0, 2.0), True),
        ("ratio_at_most", (0.25, 0.5), True),
        ("at_least", (1.0, 2.0), False),
        ("gain_at_least", (-3.0, -2.0), False),
    ]


def test_runs_needed_by_the_spread_seen():
    values = [8.0, 9.0, 10.0, 11.0, 12.0]
    spread = statistics.stdev(values)
    assert power.runs_needed([bound(values, at=12)], 0.90) == paired.pairs_needed(statistics.NormalDist().cdf(2 / spread), 0.90)
    assert power.runs_needed([bound(values, at=10)], 0.90) is None
    assert power.runs_needed([bound([3.0], at=10)], 0.90) is None
    assert power.runs_needed([bound([3.0, 3.0], at=10)], 0.90) == 5
    # The harder of two bounds decides.
    assert power.runs_needed([bound(values, at=12), bound(values, at=10.5)], 0.90) == power.runs_needed([bound(values, at=10.5)], 0.90)


def test_what_is_extrapolated_shows_its_formula_and_inputs():
    values = [8.0, 9.0, 10.0, 11.0, 12.0]
    share = statistics.NormalDist().cdf(2 / statistics.stdev(values))
    assert power.explain([bound(values, at=12)]) == (
        f"{power.FORMULA}; at_most: median 10, threshold 12, standard deviation 1.581, p = {share:.4f}"
    )
    assert "(all by their logarithms), p = 1.0000" in power.explain([bound([1.0, 1.0], at=2, name="ratio_at_most")])
    assert not power.explain([bound([3.0])])
    assert not power.explain([])


def test_ratios_are_judged_by_their_logarithms():
    ratios = [0.25, 0.5, 1.0, 2.0, 4.0]
    logs = [math.log(each) for each in ratios]
    expected = paired.pairs_needed(statistics.NormalDist().cdf(math.log(2) / statistics.stdev(logs)), 0.90)
    assert power.runs_needed([bound(ratios, at=2.0, name="ratio_at_most")], 0.90) == expected


@given(st.lists(st.integers(0, 100), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_nearest_rank_is_a_value_that_enough_do_not_exceed(values, share):
    found = pairing.nearest_rank(values, share)
    assert found in values
    assert sum(each <= found for each in values) >= share * len(values) - 1e-6
    assert sum(each < found for each in values) < share * len(values) + 1e-6


def test_the_95th_percentile_of_fewer_than_20_is_the_worst():
    assert pairing.nearest_rank(range(19), 0.95) == 18
    assert pairing.nearest_rank(range(20), 0.95) == 18
    assert pairing.nearest_rank(range(100), 0.95) == 94
