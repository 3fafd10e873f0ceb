"""Nine years of failures at Los Alamos (LA-UR-05-7318): published figures, and what our dispersion test says of them."""

from __future__ import annotations

import csv
import datetime
import lzma
from pathlib import Path

import numpy as np
import pytest

from perdure.model.attempt import Cause
from perdure.stats import dispersion, published, rates

pytestmark = pytest.mark.shared

NODES = {"18": 1024, "19": 1024, "20": 512, "8": 164}
VARIATION = {"18": 1.71, "19": 1.52, "20": 1.99, "8": 1.45}
RATE = {"18": 3.20, "19": 3.04, "20": 3.56, "8": 1.82}


@pytest.fixture(scope="module")
def failures() -> dict[str, np.ndarray]:
    from conftest import SHARED

    times: dict[str, list[float]] = {}
    with lzma.open(SHARED / "traces" / "lanl_la-ur-05-7318_failures_1996-2005.csv.xz", "rt", encoding="utf-8", errors="replace") as handle:
        for row in csv.DictReader(handle):
            if row["System"] in NODES:
                begun = datetime.datetime.strptime(row["Prob Started"], "%m/%d/%Y %H:%M")
                times.setdefault(row["System"], []).append((begun - datetime.datetime(1996, 1, 1)).total_seconds() / 3600)
    return {system: np.sort(hours) for system, hours in times.items()}


@pytest.mark.parametrize("system", NODES)
def test_times_between_failures_vary_as_published(failures: dict[str, np.ndarray], system: str, shared: Path) -> None:
    assert dispersion.coefficient_of_variation(failures[system]) == pytest.approx(VARIATION[system], abs=0.005)


@pytest.mark.parametrize("system", NODES)
def test_a_whole_machine_as_one_job_gives_the_published_rate_with_bootstrap_intervals(failures: dict[str, np.ndarray], system: str) -> None:
    hours = failures[system]
    first_day = int(hours[0] // 24)
    days = int(hours[-1] // 24) - first_day + 1
    exposed = np.full(days, 24.0)
    exposed[0] = 24 - (hours[0] - 24 * first_day)
    exposed[-1] = hours[-1] - 24 * (first_day + days - 1)
    size = NODES[system]
    cells = rates.ExposureCells(
        size=np.full(days, float(size)),
        block=np.arange(days),
        attempts=np.ones(days, int),
        events=np.bincount((hours // 24).astype(int) - first_day, minlength=days),
        job_hours=exposed,
        node_hours=exposed * size,
        gpu_hours=np.zeros(days),
    )
    found = rates.estimate_rates(
        cells, hours, cause=Cause.INFRASTRUCTURE, classification="strict", unit="node", generator=np.random.default_rng(1)
    )
    (only,) = found.bins
    assert only.rate_per_1000_node_days == pytest.approx(RATE[system], abs=0.006)
    assert found.dispersion.over_dispersed
    assert found.dispersion.index > 1.2
    assert found.interval_method == "bootstrap"
    poisson_width = 2 * 1.645 * np.sqrt(only.events) / only.job_hours
    assert only.interval.high - only.interval.low > 1.2 * poisson_width
    # A single size says nothing of the exponent.
    assert found.fit.exponent_interval is None
    assert found.fit.exponent == pytest.approx(1.0)


def test_the_published_table_quotes_the_same_rates() -> None:
    table = {one.system: one.rate_per_1000_node_days for one in published.PUBLISHED}
    for system, rate in RATE.items():
        assert table[f"LANL system {system}"] == rate
