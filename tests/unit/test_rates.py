"""Rates by size: recovered from known fleets, covered by their intervals, and turned into the MTTF of a job."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from bench.worlds import cells as worlds
from perdure import errors
from perdure.model.advice import Size
from perdure.model.attempt import Cause
from perdure.stats import powerlaw, rates, shrinkage, size_bins


def _cells(rows: list[tuple[float, int, int, float]]) -> rates.ExposureCells:
    """Cells from (size, day, events, job-hours)."""
    size, day, events, hours = (np.array(column) for column in zip(*rows, strict=True))
    return rates.ExposureCells(
        size=size.astype(float),
        block=day,
        attempts=np.ones(size.size, int),
        events=events,
        job_hours=hours.astype(float),
        node_hours=np.ceil(size / 8) * hours,
        gpu_hours=size * hours,
    )


def _estimate(cells: rates.ExposureCells, cause: Cause = Cause.INFRASTRUCTURE, **options):
    options = {"classification": "strict", "unit": "gpu", "generator": np.random.default_rng(0)} | options
    times = np.repeat(cells.block * 24.0 + 12.0, np.maximum(cells.events, 0))
    return rates.estimate_rates(cells, times, cause=cause, **options)


# Bins ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "low", "high"),
    [
        (0.25, 1, 1),
        (1, 1, 1),
        (2, 2, 7),
        (7, 2, 7),
        (8, 8, 8),
        (9, 9, 63),
        (64, 64, 255),
        (256, 256, 1023),
        (1024, 1024, None),
        (9999, 1024, None),
    ],
)
def test_bins_are_at_their_edges(size: float, low: float, high: float | None) -> None:
    assert size_bins.bounds(int(size_bins.bin_of(size))) == (low, high)


def test_a_bin_holds_the_sums_of_its_attempts_and_its_exact_interval() -> None:
    found = _estimate(_cells([(8, 0, 1, 100.0), (8, 1, 2, 200.0), (16, 1, 0, 50.0), (0.5, 0, 0, 10.0)]))
    assert [(one.low, one.high, one.events, one.job_hours) for one in found.bins] == [(0.5, 1, 0, 10), (8, 8, 3, 300), (9, 63, 0, 50)]
    eight = found.bins[1]
    assert eight.rate_per_job_hour == pytest.approx(0.01)
    assert eight.rate_per_1000_node_days == pytest.approx(3 / 300 * 24_000)
    # Garwood at 90 %: 3 events.
    assert eight.interval.low * 300 == pytest.approx(0.8177, abs=1e-3)
    assert eight.interval.high * 300 == pytest.approx(7.7537, abs=1e-3)
    assert (found.events, found.job_hours, found.gpu_hours) == (3, 360.0, 3205.0)


def test_events_without_exposure_are_shown_and_have_no_rate() -> None:
    found = _estimate(_cells([(8, 0, 2, 100.0), (64, 0, 1, 0.0)]))
    assert found.events == 3
    assert found.bins[1].events == 1
    assert np.isnan(found.bins[1].rate_per_job_hour)
    assert found.bins[1].interval is None
    assert found.fit.observed_high == 8


# The law ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_fit_is_the_maximum_of_the_penalised_likelihood(seed: int) -> None:
    generator = np.random.default_rng(seed)
    sizes = np.unique(generator.integers(1, 2000, 8)).astype(float)
    hours = generator.lognormal(5, 2, sizes.size)
    events = generator.poisson(generator.lognormal(0, 1.5, sizes.size)).astype(float)
    law = powerlaw.fit(sizes, events, hours)
    if events.sum() == 0:
        assert law is None
        return

    def loss(parameters: np.ndarray) -> float:
        expected = hours * np.exp(parameters[0] + parameters[1] * np.log(sizes))
        return float(expected.sum() - events @ np.log(expected) + (parameters[1] - 1) ** 2 / (2 * 0.5**2))

    ours = np.array([law.level - law.exponent * law.centre, law.exponent])
    best = optimize.minimize(loss, ours + 0.05, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10, "maxiter": 4000})
    assert loss(ours) <= best.fun + 1e-6
    np.testing.assert_allclose(ours, best.x, atol=2e-3)


def test_a_known_exponent_is_found_where_there_is_evidence() -> None:
    generator = np.random.default_rng(1)
    sizes = 2.0 ** np.arange(11)
    hours = 1e6 / sizes
    events = generator.poisson(hours * 1e-3 * sizes**0.6)
    found = _estimate(_cells([(size, 0, int(count), hour) for size, count, hour in zip(sizes, events, hours, strict=True)]))
    assert found.fit.exponent == pytest.approx(0.6, abs=0.03)
    assert found.fit.exponent_interval.low < 0.6 < found.fit.exponent_interval.high
    assert found.fit.coefficient == pytest.approx(1e-3, rel=0.15)


def test_two_events_leave_the_exponent_near_its_prior_and_say_so_by_the_interval() -> None:
    found = _estimate(_cells([(1, 0, 0, 9000.0), (8, 0, 0, 4000.0), (64, 3, 2, 100.0)]))
    assert 0.9 < found.fit.exponent < 1.7
    assert found.fit.exponent_interval.high - found.fit.exponent_interval.low > 0.9


@pytest.mark.parametrize("struck", [(3, 5, 9, 14, 11), (0, 0, 0, 2, 9), (0, 0, 0, 0, 12)], ids=["spread", "large", "largest"])
def test_the_exponents_interval_is_what_the_likelihood_ratio_does_not_refute(struck: tuple[int, ...]) -> None:
    """Against a maximiser over both parameters, the determinant of Jeffreys' prior taken from the whole matrix."""
    sizes, events = np.array([1.0, 8.0, 64.0, 256.0, 1024.0]), np.array(struck, float)
    hours = 1e5 / sizes**0.8
    law = powerlaw.fit(sizes, events, hours)
    low, high = powerlaw.exponent_interval(law, sizes, events, hours, scatter=1.0, quantile=1.6448536)

    def best_at(beta: float) -> float:
        def loss(level: np.ndarray) -> float:
            expected = hours * np.exp(level[0]) * sizes**beta
            design = np.column_stack([np.ones(5), np.log(sizes)])
            return float(expected.sum() - events @ np.log(expected) - 0.5 * np.linalg.slogdet(design.T @ (expected[:, None] * design))[1])

        start = [np.log(events.sum() / (hours * sizes**beta).sum())]
        return -optimize.minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-10}).fun

    top = -optimize.minimize_scalar(lambda beta: -best_at(beta), bracket=(0.5, 1.5)).fun
    for end in (low, high):
        assert 2 * (top - best_at(end)) == pytest.approx(1.6448536**2, abs=1e-3)
    assert low < law.exponent < high


def test_what_scatters_more_than_poisson_widens_the_exponents_interval() -> None:
    sizes, events = np.array([1.0, 8.0, 64.0, 512.0]), np.array([20.0, 40.0, 30.0, 60.0])
    hours = 1e5 / sizes
    law = powerlaw.fit(sizes, events, hours)
    inverse = np.linalg.inv(law.information)
    bursty = inverse @ (4.0 * (law.information - law.penalty) + law.penalty) @ inverse
    assert law.beyond_poisson(law.covariance()) == pytest.approx(1.0)
    assert law.beyond_poisson(bursty) == pytest.approx(4.0)
    plain, wide = (powerlaw.exponent_interval(law, sizes, events, hours, scatter=scatter, quantile=1.645) for scatter in (1.0, 4.0))
    assert (wide[1] - wide[0]) / (plain[1] - plain[0]) == pytest.approx(2.0, rel=0.05)


def test_bins_off_the_law_widen_the_exponents_interval() -> None:
    sizes = 2.0 ** np.arange(11)
    on_law = [(size, 0, 100, 1e5 / size) for size in sizes]
    off_law = [(size, 0, 200 if size in (1, 8, 256, 512) else 50, 1e5 / size) for size in sizes]
    widths = []
    for rows in (on_law, off_law):
        interval = _estimate(_cells(rows)).fit.exponent_interval
        widths.append(interval.high - interval.low)
    assert widths[1] > 3 * widths[0]


# Shrinkage -------------------------------------------------------------------------------------------------------


def test_bins_on_the_law_stay_with_the_law_and_far_ones_go_their_own_way() -> None:
    expected = np.array([40.0, 40, 40, 40, 40, 2])
    calm = shrinkage.heterogeneity(expected + np.array([3, -4, 5, -3, 0, 1]), expected, np.ones(6))
    wild = shrinkage.heterogeneity(expected * np.array([0.3, 3, 1, 0.4, 2.5, 1]), expected, np.ones(6))
    assert calm < 0.02
    assert wild > 0.3
    thick_and_thin = shrinkage.shrink(np.array([120.0, 6.0]), np.array([40.0, 2.0]), np.ones(2), wild)
    # Both show three times what is expected; sixty times the evidence counts for more.
    assert 2.8 < thick_and_thin.factor[0] < 3.0
    assert 1.2 < thick_and_thin.factor[1] < 2.6
    assert thick_and_thin.own_weight[0] > 0.9


@given(st.floats(0, 500), st.floats(1e-3, 500), st.floats(1, 20), st.floats(1e-4, 3))
def test_a_shrunk_rate_lies_between_the_law_and_the_bin(events: float, expected: float, phi: float, tau_squared: float) -> None:
    one = shrinkage.shrink(np.array([events]), np.array([expected]), np.array([phi]), tau_squared)
    low, high = sorted([1.0, events / expected])
    assert low - 1e-9 <= one.factor[0] <= high + 1e-9
    assert 0 <= one.own_weight[0] <= 1


def test_excess_variance_is_what_noise_does_not_explain() -> None:
    generator = np.random.default_rng(8)
    expected = np.full(400, 50.0)
    spread = generator.gamma(1 / 0.09, 0.09, 400)
    assert shrinkage.excess_variance(generator.poisson(expected * spread), expected, np.ones(400), parameters=2) == pytest.approx(
        0.09, rel=0.2
    )
    assert shrinkage.excess_variance(generator.poisson(expected), expected, np.ones(400), parameters=2) == 0
    # What over-dispersion explains is not counted twice, and two bins of two parameters have nothing left to show.
    assert shrinkage.excess_variance(generator.poisson(expected * spread), expected, np.full(400, 6.0), parameters=2) == 0
    assert shrinkage.excess_variance(np.array([90.0, 3.0]), np.array([40.0, 40.0]), np.ones(2), parameters=2) == 0


def test_sizes_that_differ_within_their_bin_are_less_sure() -> None:
    alike = _estimate(_cells([(16, day, 1, 20.0) for day in range(40)] + [(32, day, 1, 10.0) for day in range(40)]))
    unlike = _estimate(_cells([(16, day, 0, 20.0) for day in range(40)] + [(32, day, 2, 10.0) for day in range(40)]))
    assert alike.fit.within_bins == 0
    assert unlike.fit.within_bins > 0.1
    narrow, wide = (rates.mttf_for_size([found], Size(16)).interval for found in (alike, unlike))
    assert wide.high / wide.low > narrow.high / narrow.low


# MTTF ------------------------------------------------------------------------------------------------------------


def _fleet(seed: int = 3, **changes) -> worlds.CellWorld:
    return worlds.CellWorld(**({"events": 400.0, "exponent": 1.0, "burst_shape": None, "days": 90} | changes))


def test_mttf_falls_with_size_and_its_interval_holds_it() -> None:
    cells, times, _ = worlds.draw_cells(_fleet(), np.random.default_rng(3))
    found = rates.estimate_rates(
        cells, times, cause=Cause.INFRASTRUCTURE, classification="strict", unit="gpu", generator=np.random.default_rng(0)
    )
    answers = rates.mttf_for_sizes([found], [1, 8, 64, 1024], "gpu")
    minutes = [one.minutes for one in answers]
    assert minutes == sorted(minutes, reverse=True)
    assert all(one.interval.low < one.minutes < one.interval.high for one in answers)
    assert not any(one.extrapolated for one in answers)
    assert rates.mttf_for_size([found], Size(64)) == answers[2]


def test_beyond_the_observed_sizes_is_extrapolated_and_less_sure() -> None:
    cells, times, _ = worlds.draw_cells(_fleet(), np.random.default_rng(3))
    found = rates.estimate_rates(
        cells, times, cause=Cause.INFRASTRUCTURE, classification="strict", unit="gpu", generator=np.random.default_rng(0)
    )
    inside, outside = rates.mttf_for_sizes([found], [1024, 65_536], "gpu")
    assert (inside.extrapolated, outside.extrapolated) == (False, True)
    assert outside.source == "fit"
    assert outside.interval.high / outside.interval.low > inside.interval.high / inside.interval.low


def test_causes_add_up_and_wall_time_is_not_one_of_them() -> None:
    cells = _cells([(8, day, 1, 100.0) for day in range(40)])
    infrastructure, preemption, walltime = (_estimate(cells, cause) for cause in (Cause.INFRASTRUCTURE, Cause.PREEMPTION, Cause.WALLTIME))
    alone = rates.mttf_for_size([infrastructure], Size(8))
    both = rates.mttf_for_size([infrastructure, preemption, walltime], Size(8))
    assert alone.minutes == pytest.approx(6000)
    assert both.minutes == pytest.approx(3000)
    # Two independent causes: less sure than twice the one, more sure than each.
    assert alone.interval.high / alone.interval.low > both.interval.high / both.interval.low
    assert rates.mttf_for_size([walltime], Size(8)).minutes == float("inf")


def test_no_event_bounds_the_rate_by_the_exposure() -> None:
    nothing = _estimate(_cells([(1, 0, 0, 400.0), (8, 1, 0, 100.0)]))
    assert nothing.fit is None
    assert nothing.interval_method == "poisson"
    answer = rates.mttf_for_size([nothing, _estimate(_cells([(1, 0, 0, 400.0), (8, 1, 0, 100.0)]), Cause.PREEMPTION)], Size(8))
    # 1200 GPU-hours without an event: at most 2.996 in them, at 8 GPUs one in 1200/2.996/8 hours.
    assert answer.interval.low == pytest.approx(60 * 1200 / 2.9957 / 8, rel=1e-3)
    assert answer.interval.high == float("inf")
    assert answer.minutes == pytest.approx(60 * 1200 / 0.5 / 8)
    assert (answer.source, answer.events, answer.extrapolated) == ("prior", 0, False)
    eight = nothing.bins[1]
    assert eight.interval.low == 0
    assert eight.interval.high == pytest.approx(2.9957 / 100, rel=1e-3)
    assert 0 < eight.shrunk_rate_per_job_hour < eight.shrunk_interval.high < eight.interval.high


def test_a_cause_never_seen_does_not_blur_one_that_was() -> None:
    seen = _estimate(_cells([(8, day, 1, 100.0) for day in range(40)]))
    unseen = _estimate(_cells([(8, day, 0, 100.0) for day in range(40)]), Cause.OPERATOR)
    assert rates.mttf_for_size([seen, unseen], Size(8)) == rates.mttf_for_size([seen], Size(8))


def test_without_exposure_nothing_is_claimed() -> None:
    empty = _estimate(_cells([(8, 0, 0, 0.0)]))
    for answer in (rates.mttf_for_size([], Size(8)), rates.mttf_for_size([empty], Size(8)), rates.mttf_for_size([empty], Size(8, "node"))):
        assert (answer.minutes, answer.interval, answer.extrapolated) == (float("inf"), None, True)


def test_a_hundred_thousand_workloads_take_well_under_a_second() -> None:
    cells, times, _ = worlds.draw_cells(_fleet(), np.random.default_rng(3))
    found = [
        rates.estimate_rates(cells, times, cause=cause, classification="strict", unit="gpu", generator=np.random.default_rng(0))
        for cause in (Cause.INFRASTRUCTURE, Cause.PREEMPTION, Cause.OPERATOR)
    ]
    sizes = np.random.default_rng(0).integers(1, 2049, 100_000)
    # Processor time, of which others on the machine can only make more, never less: asked one by one, it would be half a minute.
    taken_s = []
    while not taken_s or (taken_s[-1] >= 1.0 and len(taken_s) < 5):
        started = time.process_time()
        answers = rates.mttf_for_sizes(found, sizes, "gpu")
        taken_s.append(time.process_time() - started)
    assert min(taken_s) < 1.0
    assert len(answers) == 100_000
    assert answers[777] == rates.mttf_for_size(found, Size(float(sizes[777])))


# What cannot be asked --------------------------------------------------------------------------------------------


def test_both_classifications_at_once_are_refused() -> None:
    cells = _cells([(8, 0, 1, 100.0)])
    with pytest.raises(errors.UsageError, match="both classifications"):
        rates.mttf_for_size([_estimate(cells), _estimate(cells, classification="inclusive")], Size(8))


@pytest.mark.parametrize("size", [0.0, -8.0, float("nan"), float("inf")])
def test_a_size_that_is_none_is_refused(size: float) -> None:
    with pytest.raises(errors.QuantityError):
        rates.mttf_for_size([], Size(size))


@pytest.mark.parametrize("row", [(0, 0, 0, 1.0), (8, 0, -1, 1.0), (8, 0, 0, -1.0), (8, 0, 0, float("nan"))])
def test_malformed_cells_are_refused(row: tuple[float, int, int, float]) -> None:
    with pytest.raises(errors.QuantityError):
        _estimate(_cells([row]))


def test_columns_of_unequal_length_are_refused() -> None:
    cells = _cells([(8, 0, 1, 1.0)])
    broken = rates.ExposureCells(**{**vars(cells), "events": np.array([1, 2])})
    with pytest.raises(errors.QuantityError, match="length"):
        rates.estimate_rates(
            broken, np.empty(0), cause=Cause.OPERATOR, classification="strict", unit="gpu", generator=np.random.default_rng(0)
        )


def test_one_seed_gives_one_answer() -> None:
    cells, times, _ = worlds.draw_cells(_fleet(burst_shape=0.5), np.random.default_rng(3))
    first, second = (
        rates.estimate_rates(cells, times, cause=Cause.OPERATOR, classification="strict", unit="gpu", generator=np.random.default_rng(5))
        for _ in range(2)
    )
    assert first == second
    assert first.interval_method == "bootstrap"


def test_a_wrong_clock_costs_nothing() -> None:
    rows = [(8, day, 3 * (day % 9 == 0), 100.0) for day in range(90)]
    bursty = _estimate(_cells(rows))
    astray = _estimate(_cells([(8, -20_000_000, 0, 1e-9), *rows]))
    assert bursty.interval_method == astray.interval_method == "bootstrap"
    assert astray.bins[0].interval.high == pytest.approx(bursty.bins[0].interval.high, rel=0.1)


# Coverage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "world",
    [
        _fleet(events=12.0),
        _fleet(events=60.0, exponent=0.8),
        _fleet(events=400.0, exponent=1.2),
        _fleet(events=60.0, burst_shape=0.5),
        _fleet(events=400.0, burst_shape=0.5),
        _fleet(events=400.0, burst_shape=0.5, exponent=0.7),
    ],
    ids=lambda world: f"{world.events:g}-beta{world.exponent:g}-{'bursts' if world.burst_shape else 'poisson'}",
)
def test_intervals_cover_the_truth(world: worlds.CellWorld) -> None:
    """A fast subset of `python -m bench coverage`: 60 fleets a world."""
    hits = worlds.coverage(world, fleets=60)
    assert 0.82 <= hits["bins, shrunk"] <= 0.99
    assert 0.82 <= hits["sizes"] <= 0.99
    assert 0.80 <= hits["exponent"] <= 0.99
    assert hits["bins, unshrunk"] >= 0.84
