"""The probability of meeting a deadline against a simulation, and where it is known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from renewals import simulate, terms

from perdure.stats import completion, deadline

SETTINGS = [
    ({"work": 1440, "mttf": 474}, 34),
    ({"work": 1200, "mttf": 68_688}, 24),
    ({"work": 100, "mttf": 474}, 3),
    ({"work": 100, "mttf": 30}, 20),
    ({"work": 60, "mttf": 60}, 1),
    ({"work": 300, "mttf": 300, "restore": 0, "fresh": 0, "downtime": 0}, 6),
    ({"work": 300, "mttf": 300, "restore": 1, "fresh": 100}, 2),
]


@pytest.mark.parametrize(("quantities", "chunks"), SETTINGS)
def test_a_simulation_is_as_often_in_time(quantities, chunks):
    job = terms(**quantities)
    chunk, cost = job.work[0] / chunks, job.checkpoint[0]
    pieces = [(chunk + (cost if number < chunks - 1 else 0.0), job.restore[0] if number else job.fresh[0]) for number in range(chunks)]
    times = np.sort(simulate(pieces, job.mttf[0], job.downtime[0]))
    asked = np.unique(
        np.concatenate([np.quantile(times, [0.05, 0.3, 0.6, 0.9, 0.99]), job.work[0] * np.array([1.01, 1.1, 1.5, 1.95, 2.5, 4])])
    )
    many = terms(**{name: np.full(len(asked), float(value)) for name, value in quantities.items()})
    found = deadline.resume(many, asked, np.full(len(asked), float(chunks)))
    drawn = np.searchsorted(times, asked, side="right") / len(times)
    # 0.005 for three standard errors of the simulation, 0.005 for the grid.
    assert np.abs(found - drawn).max() < 0.01
    assert (np.diff(found) >= -2e-3).all()


def test_retry_is_resume_in_one_chunk():
    job, due = terms(60, [30, 60, 600]), np.array([70.0, 130.0, 65.0])
    assert deadline.retry(job, due).tolist() == deadline.resume(job, due, np.ones(3)).tolist()


def test_without_time_for_a_restart_it_is_the_calm_run():
    job = terms(100, 500)
    assert deadline.retry(job, np.array([109.0]))[0] == pytest.approx(np.exp(-100 / 500), rel=1e-12)
    assert deadline.retry(job, np.array([99.9]))[0] == 0.0
    assert deadline.resume(job, np.array([101.0]), np.array([2.0]))[0] == 0.0


def test_ends_of_the_scale():
    job = terms([100, 100, 100], [np.inf, 1e-3, 500.0])
    assert deadline.retry(job, np.array([100.0, 1e6, 1e9])) == pytest.approx([1.0, 0.0, 1.0], abs=1e-6)
    over = terms(100, 500, limit=50.0)
    assert deadline.retry(over, np.array([1e6]))[0] == 0.0
    assert deadline.resume(over, np.array([1e6]), completion.best_chunks(over))[0] == pytest.approx(1.0, abs=1e-6)


def test_durable_state_helps_and_is_interpolated():
    job = terms(100, 80, durable=[0.0, 0.3, 0.5, 0.9])
    found = deadline.retry(job, np.full(4, 160.0))
    assert (np.diff(found) > 0).all()
    # Half survives: two pieces, both restarting fresh.
    times = simulate([(50.0, 5.0), (50.0, 5.0)], 80.0, 5.0)
    assert found[2] == pytest.approx((times <= 160).mean(), abs=0.01)
