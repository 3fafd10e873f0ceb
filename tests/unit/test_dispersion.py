"""The test for bunching: it finds bursts, and cries wolf no more often than it says."""

from __future__ import annotations

import numpy as np
import pytest

from perdure.stats import dispersion


def test_even_gaps_have_no_variation_and_exponential_ones_have_one() -> None:
    assert dispersion.coefficient_of_variation(np.arange(50.0)) == pytest.approx(0.0)
    times = np.cumsum(np.random.default_rng(0).exponential(size=20_000))
    assert dispersion.coefficient_of_variation(times) == pytest.approx(1.0, abs=0.02)
    # Sorting is ours, and an instant counts once.
    assert dispersion.coefficient_of_variation(np.array([3.0, 0.0, 1.0, 1.0])) == pytest.approx(np.std([1, 2], ddof=1) / 1.5)


@pytest.mark.parametrize("times", [[], [1.0], [1.0, 2.0], [4.0, 4.0, 4.0, 4.0]])
def test_too_few_instants_have_no_variation(times: list[float]) -> None:
    assert dispersion.coefficient_of_variation(np.array(times)) is None


def test_index_is_pearsons_over_its_freedom() -> None:
    events, exposure = np.array([4.0, 0, 1, 3]), np.array([1.0, 1, 1, 1])
    found = dispersion.measure(np.arange(8.0), events, exposure, np.random.default_rng(0))
    assert found.index == pytest.approx(((4 - 2) ** 2 + 4 + 1 + 1) / 2 / 3)


def test_false_alarms_are_as_rare_as_stated() -> None:
    alarms = 0
    for seed in range(200):
        generator = np.random.default_rng([1, seed])
        exposure = generator.lognormal(0, 0.8, 90)
        events = generator.poisson(0.4 * exposure)
        times = np.repeat(np.arange(90) * 24.0, events) + generator.uniform(0, 24, events.sum())
        alarms += dispersion.measure(times, events.astype(float), exposure, generator).over_dispersed
    # 10 % by the daily counts and 1 % by the gaps, although an exposure as uneven as this makes the gaps vary.
    assert 10 <= alarms <= 35


def test_bursts_are_found() -> None:
    found = []
    for seed in range(50):
        generator = np.random.default_rng([2, seed])
        events = generator.poisson(2 * generator.gamma(0.5, 2.0, 90))
        times = np.repeat(np.arange(90) * 24.0, events) + generator.uniform(0, 24, events.sum())
        found.append(dispersion.measure(times, events.astype(float), np.ones(90), generator))
    assert all(one.over_dispersed for one in found)
    assert all(one.p_value < 0.01 and one.index > 1.5 for one in found)


def test_uneven_exposure_alone_is_not_bunching() -> None:
    exposure = np.where(np.arange(90) % 7 < 5, 10.0, 0.5)
    events = exposure.copy()
    events[exposure < 1] = 0
    found = dispersion.measure(np.empty(0), events, exposure, np.random.default_rng(0))
    assert found.index < 1
    assert not found.over_dispersed


def test_bursts_that_come_every_day_are_found_by_their_gaps() -> None:
    """Six events within minutes at each midnight: every day's count is the same, and only the gaps tell."""
    generator = np.random.default_rng(7)
    events = np.full(60, 6.0)
    bunched = np.repeat(np.arange(60) * 24.0, 6) + np.tile(np.arange(6) * 0.05, 60)
    spread = np.repeat(np.arange(60) * 24.0, 6) + np.tile(np.arange(6) * 4.0, 60)
    found = dispersion.measure(bunched, events, np.ones(60), generator)
    assert found.p_value > 0.9
    assert found.coefficient_of_variation > 2
    assert found.over_dispersed
    assert not dispersion.measure(spread, events, np.ones(60), generator).over_dispersed


def test_five_events_are_the_least_that_says_anything() -> None:
    few = dispersion.measure(np.arange(4.0), np.array([4.0, 0, 0]), np.ones(3), np.random.default_rng(0))
    assert (few.index, few.p_value, few.over_dispersed) == (None, None, False)
