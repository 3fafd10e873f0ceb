"""Expected completion against published figures, a simulation of the process itself, and searches by brute force."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from renewals import simulate, terms
from scipy.optimize import brentq

from perdure.stats import completion

PUBLISHED = [
    # work, mttf, retry, resume, chunks (None: not stated)
    (24 * 60, 474, 9615, 1629, 34),
    (72 * 60, 474, 4.4e6, 4892, None),
    (24 * 60, 8586, 1570, 1472, 8),
    (7 * 1440, 8586, 19211, 10317, None),
    (7 * 1440, 68688, 10859, 10157, 19),
]


@pytest.mark.parametrize(("work", "mttf", "retry", "resume", "chunks"), PUBLISHED)
def test_published_figures(work, mttf, retry, resume, chunks):
    job = terms(work, mttf)
    best = completion.best_chunks(job)
    assert completion.retry(job)[0] == pytest.approx(retry, rel=2e-3 if retry > 1e6 else 1e-4, abs=0.5)
    assert completion.resume(job, best)[0] == pytest.approx(resume, abs=0.5)
    assert chunks is None or best[0] == chunks


@pytest.mark.parametrize(
    ("job", "chunks"),
    [
        (terms(100, 80), 1),
        (terms(100, 80), 4),
        (terms(300, 60, checkpoint=1, restore=3, fresh=20, downtime=2), 9),
        (terms(60, 15, checkpoint=0.5, restore=8, fresh=1, downtime=0), 2),
    ],
)
def test_a_simulation_takes_as_long(job, chunks):
    chunk, cost = job.work[0] / chunks, job.checkpoint[0]
    pieces = [(chunk + (cost if number < chunks - 1 else 0.0), job.restore[0] if number else job.fresh[0]) for number in range(chunks)]
    times = simulate(pieces, job.mttf[0], job.downtime[0])
    expected = completion.resume(job, np.array([float(chunks)]))[0]
    assert expected == pytest.approx(times.mean(), abs=4 * times.std() / np.sqrt(len(times)))


@settings(deadline=None, max_examples=60)
@example(98.0, 20.0, 17.0, 3.0, 1.0, 0.0)
@example(81.86817247018821, 20.690513403084214, 11.73973224518072, 36.90871241736449, 17.66300732506933, 28.0867204123396)
@given(
    st.floats(1, 5000), st.floats(20, 1e5), st.floats(0.1, 30), st.floats(0, 40), st.floats(0, 40), st.floats(0, 30)
)  # fmt: skip
def test_best_chunks_are_as_good_as_a_search(work, mttf, checkpoint, restore, fresh, downtime):
    job = terms(work, mttf, checkpoint=checkpoint, restore=restore, fresh=fresh, downtime=downtime)
    best = completion.best_chunks(job)
    found = completion.resume(job, best)[0]
    numbers = np.arange(1.0, 400.0)
    every = terms(np.full(len(numbers), work), mttf, checkpoint=checkpoint, restore=restore, fresh=fresh, downtime=downtime)
    lowest = np.min(completion.resume(every, numbers))
    if np.isfinite(lowest):
        assert found <= lowest * (1 + 1e-9)
    assert found <= completion.retry(job)[0]


def test_break_even_of_published_sizes():
    mttf = np.array([68_688.0, 8_586.0, 1_073.0, 474.0, 108.0])
    first_order = completion.break_even_work(terms(np.ones(5), mttf))
    assert first_order == pytest.approx([746.3, 267.1, 97.8, 66.8, 34.8], abs=0.06)
    # The exact forms, searched (the published figures in steps of 1 %): the work at which the best number of chunks above one equals retry.
    for m, numeric in zip(mttf, [747.7, 268.3, 98.2, 67.3, 34.9], strict=True):

        def gain(work, m=m):
            numbers = np.arange(2.0, 40.0)
            return completion.retry(terms(work, m))[0] - np.min(completion.resume(terms(np.full(38, work), m), numbers))

        assert brentq(gain, 10, 5000) == pytest.approx(numeric, rel=0.01)


def test_dearest_checkpoint_is_where_two_chunks_cost_what_retry_costs():
    job = terms(1440, 474)
    dearest = completion.break_even_checkpoint(job)
    at_it = dataclasses.replace(job, checkpoint=dearest)
    assert completion.resume(at_it, np.array([2.0]))[0] == pytest.approx(completion.retry(at_it)[0], rel=1e-3)
    rare = terms(1440, 1e6)
    assert completion.break_even_checkpoint(rare) == pytest.approx(completion.break_even_checkpoint_first_order(rare), rel=2e-3)
    assert completion.break_even_checkpoint(terms(60, np.inf))[0] == 0.0


def test_break_even_rate_turns_the_verdict():
    job = terms(2000, 1000)
    turn = completion.break_even_mttf(job)
    for factor, pays in ((0.9, True), (1.1, False)):
        at = job.with_mttf(turn * factor)
        assert (completion.resume(at, np.array([2.0])) < completion.retry(at))[0] == pays


@pytest.mark.parametrize("durable", [0.3, 0.5, 0.9, 0.99])
def test_break_even_work_with_durable_state(durable):
    mttf = 474.0
    turn = completion.break_even_work(terms(1, mttf, durable=durable))[0]
    numbers = np.arange(2.0, 400.0)
    for factor, pays in ((0.97, False), (1.03, True)):
        every = terms(np.full(len(numbers), turn * factor), mttf, durable=durable)
        assert (np.min(completion.resume(every, numbers)) < completion.retry(every)[0]) == pays


def test_durable_state_shrinks_what_is_destroyed():
    durable = np.array([0.0, 0.25, 0.5, 0.9, 1.0])
    job = terms(1440, 474, durable=durable)
    retry = completion.retry(job)
    assert (np.diff(retry) < 0).all()
    # All of it survives: only downtime and restarts are lost, (1 + D/M)·e^{R0/M}.
    assert retry[-1] == pytest.approx(1440 * (1 + 5 / 474) * np.exp(5 / 474), rel=1e-5)
    assert completion.destroyed(terms(10, 1e9, durable=durable)) == pytest.approx(5 * (1 - durable), abs=1e-4)


def test_never_is_said_and_not_computed():
    job = terms([365 * 1440, 60, 1e300, 5], [108, 0.01, 1e-3, np.inf])
    retry, resume = completion.retry(job), completion.resume(job, completion.best_chunks(job))
    assert retry.tolist() == [np.inf, np.inf, np.inf, 5.0]
    assert np.isfinite(resume).tolist() == [True, False, False, True]
    for figure in (completion.break_even_work, completion.break_even_checkpoint, completion.break_even_mttf, completion.destroyed):
        assert not np.isnan(figure(job)).any()


def test_free_checkpoints_have_a_limit():
    job = terms(1440, 474, checkpoint=0.0)
    assert completion.best_chunks(job)[0] == completion.MOST_CHUNKS
    assert completion.break_even_mttf(job)[0] == np.inf


def test_a_limit_is_not_a_rate():
    job = terms(1440, np.inf, limit=[np.inf, 1440.0, 1439.0, 600.0, 12.0])
    assert completion.retry(job).tolist() == [1440.0, 1440.0, np.inf, np.inf, np.inf]
    best = completion.best_chunks(job)
    resume = completion.resume(job, best)
    assert best[:2].tolist() == [1.0, 1.0]
    # 600 minutes hold 588 of progress between a restore and a checkpoint: three attempts, two ends of 5 + 10 + 2 minutes.
    assert best[3] == 3
    assert completion.limit_ends(job, best)[3] == 2
    assert resume[3] == pytest.approx(1440 + 2 * 2 + 2 * (5 + 10 + 2))
    assert resume[4] == np.inf


def test_an_application_that_goes_on_by_itself_outlives_its_limit():
    job = terms(4000, 1e6, durable=[0.0, 0.5, 0.9, 1.0], limit=1440.0)
    assert np.isfinite(completion.retry(job)).tolist() == [False, False, True, True]
    assert completion.exceeds_limit(job).tolist() == [True, True, False, False]


def test_checkpoints_come_before_the_limit_even_of_an_application_that_outlives_it():
    job = terms(842, 55_000, durable=0.93, limit=210.0)
    chunks = completion.best_chunks(job)[0]
    assert chunks > 1
    assert 842 / chunks <= 210 - 10 - 2


def test_the_mean_loss_of_an_interruption():
    generator = np.random.default_rng(3)
    drawn = generator.exponential(474.0, 400_000)
    assert completion.destroyed(terms(1440, 474))[0] == pytest.approx(drawn[drawn < 1440].mean(), rel=5e-3)


def test_both_policies_at_once_are_what_each_is_alone():
    values = (1.0, 60.0, 1440.0, 5e4)
    mttfs, limits, durables = (1e-9, 30.0, 474.0, 1e5, np.inf), (50.0, 1440.0, np.inf), (0.0, 0.5, 1.0)
    rows = np.array(list(itertools.product(values, mttfs, (0.0, 2.0), (0.0, 10.0), (0.0, 15.0), (0.0, 5.0), durables, limits))).T
    jobs = completion.Terms(*rows)
    found = completion.compare(jobs)
    assert np.array_equal(found.retry, completion.retry(jobs))
    assert np.array_equal(found.chunks, completion.best_chunks(jobs))
    assert np.array_equal(found.resume, completion.resume(jobs, found.chunks))
    assert np.array_equal(found.resume[found.chunks == 1], found.retry[found.chunks == 1])
