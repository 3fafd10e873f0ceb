"""The block bootstrap: its variance against closed forms, and blocks as long as the bursts."""

from __future__ import annotations

import numpy as np
import pytest

from perdure.stats import bootstrap


def _moving_average(generator: np.random.Generator, days: int, width: int) -> np.ndarray:
    return np.convolve(generator.normal(size=days + width - 1), np.ones(width), "valid")


def test_independent_days_give_the_sum_of_variances() -> None:
    generator = np.random.default_rng(0)
    daily = generator.normal(size=(900, 2)) * np.array([1.0, 5.0])
    drawn = bootstrap.resample_totals(daily, 1, generator, resamples=4000)
    assert drawn.shape == (4000, 2)
    np.testing.assert_allclose(drawn.mean(axis=0), daily.sum(axis=0), atol=4 * np.sqrt(900 * 25 / 4000))
    np.testing.assert_allclose(drawn.var(axis=0), 900 * daily.var(axis=0), rtol=0.1)


@pytest.mark.parametrize("block_days", [1, 3, 7, 13])
def test_any_block_length_keeps_the_variance_of_independent_days(block_days: int) -> None:
    generator = np.random.default_rng(block_days)
    ratios = []
    for _ in range(150):
        daily = generator.normal(size=(90, 1))
        ratios.append(bootstrap.resample_totals(daily, block_days, generator, resamples=400).var() / 90)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.08)


def test_long_blocks_see_what_single_days_miss() -> None:
    generator = np.random.default_rng(3)
    daily = _moving_average(generator, 3000, 5)[:, None]
    truth = 25 * 3000  # a moving sum of five unit normals: spectral density at zero is 5²
    singles = bootstrap.resample_totals(daily, 1, generator).var()
    blocks = bootstrap.resample_totals(daily, 25, generator).var()
    assert singles < 0.3 * truth
    assert blocks == pytest.approx(truth, rel=0.35)


def test_block_length_follows_the_memory_of_the_days() -> None:
    generator = np.random.default_rng(4)
    independent = [bootstrap.choose_block_length(generator.normal(size=365)) for _ in range(60)]
    lasting = [bootstrap.choose_block_length(_moving_average(generator, 365, 6)) for _ in range(60)]
    assert np.median(independent) == bootstrap.SHORTEST_BLOCK_DAYS
    assert np.median(lasting) >= 8
    assert max(independent + lasting) <= 365 // 6


@pytest.mark.parametrize("days", [0, 1, 5, 6, 12, 17])
def test_short_histories_keep_six_blocks_where_they_can(days: int) -> None:
    length = bootstrap.choose_block_length(np.random.default_rng(0).normal(size=days))
    assert length == max(1, min(3, days // 6))


def test_constant_days_have_no_length_to_find() -> None:
    assert bootstrap.choose_block_length(np.zeros(90)) == bootstrap.SHORTEST_BLOCK_DAYS


def test_degrees_of_freedom() -> None:
    generator = np.random.default_rng(5)
    assert bootstrap.degrees_of_freedom(generator.normal(size=3000), 1) == pytest.approx(3000, rel=0.1)
    one_burst = np.zeros(90)
    one_burst[40] = 25.0
    assert bootstrap.degrees_of_freedom(one_burst, 1) == pytest.approx(2.0, abs=0.2)
    assert bootstrap.degrees_of_freedom(np.ones(1), 1) == 1.0
    assert bootstrap.degrees_of_freedom(np.zeros(30), 3) == 9.0
