"""The replay of a history: walks worked out by hand, in hours here and seconds there."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest
from factories import fill, row

from perdure.advisor import advise as advisor
from perdure.advisor.walk import Terms, Walk
from perdure.decision.policy import Policy
from perdure.history import table
from perdure.model import advice

H = 3600.0
NEVER = np.inf


def walk(
    *, work: float, limit: float = NEVER, interval: float = NEVER, checkpoint: float = 0.1, restore: float = 0.5, durable: float = 0.0
) -> Walk:
    values = (work, limit, interval, checkpoint, restore)
    return Walk.of(Terms(*(np.array([value * H]) for value in values), np.array([durable])))


def meet(one: Walk, *after_h: float) -> tuple[float, bool]:
    """Let it meet interruptions; return the hours lost and whether it never ends."""
    for hours in after_h:
        one.interrupt(np.array([0]), np.array([hours * H]))
    never = one.finish()
    return float(one.lost[0]) / H, bool(never[0])


def test_retrying_loses_all_that_was_done() -> None:
    assert meet(walk(work=10), 6) == (pytest.approx(6), False)
    assert meet(walk(work=10), 6, 9) == (pytest.approx(15), False)


def test_undisturbed_work_loses_nothing_without_checkpoints_and_their_cost_with_them() -> None:
    assert meet(walk(work=10)) == (0, False)
    assert meet(walk(work=10, interval=1)) == (pytest.approx(9 * 0.1), False)  # none after the last hour


def test_resuming_loses_what_was_done_since_the_last_checkpoint() -> None:
    # 6 h hold 5 checkpoints (5.5 h), so that 1 h of them is lost; then a restore, 5 h of work and 4 checkpoints.
    assert meet(walk(work=10, interval=1), 6) == (pytest.approx(1 + 0.5 + 0.4), False)


def test_an_interruption_before_the_first_checkpoint_needs_no_restore() -> None:
    assert meet(walk(work=10, interval=2), 1.5) == (pytest.approx(1.5 + 4 * 0.1), False)


def test_an_interruption_at_the_very_end_is_met() -> None:
    assert meet(walk(work=10), 10) == (pytest.approx(10), False)
    assert meet(walk(work=10, limit=10), 10) == (pytest.approx(10), False)
    # 10 h hold 9 checkpoints (9.9 h), so that 1 h is lost; then a restore and the last hour.
    assert meet(walk(work=10, interval=1), 10) == (pytest.approx(1 + 0.5), False)
    assert meet(walk(work=10, interval=1, checkpoint=0.0), 10) == (pytest.approx(0.5), False)  # all of it was saved


def test_interruptions_after_the_end_are_not_met() -> None:
    # 5 h are safe after the first one; 0.5 + 5 + 0.4 = 5.9 h later it is done, before the second.
    assert meet(walk(work=10, interval=1), 6, 8) == (pytest.approx(1.9), False)
    # An earlier one is met: 0.5 h restore and one checkpoint of 1.1 h in 2 h: 1 h kept, 1 h lost; then 0.5 + 4 + 0.3.
    assert meet(walk(work=10, interval=1), 6, 2) == (pytest.approx(1 + 1 + 0.8), False)


def test_work_beyond_its_limit_never_ends_unless_it_resumes() -> None:
    assert meet(walk(work=30, limit=24))[1]
    # 30 h and 29 checkpoints; one attempt more: 32.9 − 24 h fit into one with room for 24 − 0.6 h; it costs 0.6 h.
    assert meet(walk(work=30, limit=24, interval=1)) == (pytest.approx(2.9 + 0.6), False)
    assert meet(walk(work=30, limit=0.5, interval=0.1))[1]  # no room beside a restore and a checkpoint


def test_what_an_application_keeps_by_itself_is_not_lost() -> None:
    assert meet(walk(work=10, durable=0.75), 6) == (pytest.approx(1.5), False)
    # Half of each attempt at the limit is kept: 6 h are missing, one more attempt keeps 12 of its 24 h.
    assert meet(walk(work=30, limit=24, durable=0.5)) == (pytest.approx(12), False)


def test_many_stories_are_walked_as_each_alone() -> None:
    alone = [meet(walk(work=work, interval=interval), 6, 3) for work, interval in ((10, 1), (20, NEVER), (4, 0.5))]
    together = Walk.of(
        Terms(
            np.array([10, 20, 4]) * H,
            np.full(3, NEVER),
            np.array([1 * H, NEVER, 0.5 * H]),
            np.full(3, 0.1 * H),
            np.full(3, 0.5 * H),
            np.zeros(3),
        )
    )
    for hours in (6.0, 3.0):
        together.interrupt(np.array([2, 0, 1]), np.full(3, hours * H))
    together.finish()
    assert (together.lost / H).tolist() == pytest.approx([lost for lost, _ in alone])


def replay(rows: list[dict[str, Any]], **costs: float) -> dict[str, advice.PolicyReplay]:
    connection = table.connect(threads=1)
    fill(connection, rows)
    policy = Policy().override(costs, lambda _name: "test")
    return {one.policy: one for one in advisor.advise(connection.table("attempts"), policy, what_if=True, threads=1).replay}


def test_a_history_of_one_interrupted_job() -> None:
    found = replay([row(0, 6, outcome="infrastructure"), row(7, 10)])
    assert found["retry-all"] == advice.PolicyReplay("retry-all", 48, 80 / 128, 1, 1, 0)
    assert found["as-advised"].lost_gpu_hours in (found["retry-all"].lost_gpu_hours, found["resume-all"].lost_gpu_hours)
    assert found["resume-all"].lost_gpu_hours < 48


@pytest.mark.parametrize("cut_h", [9.0, 10.0, 11.0])
def test_retrying_loses_what_was_destroyed(cut_h: float) -> None:
    rows = [row(30 * index, 10, job_id=str(index)) for index in range(6)]
    rows += [row(30 * index, cut_h, job_id=str(index), outcome="infrastructure", work_dir=f"/{index}") for index in range(6, 11)]
    connection = table.connect(threads=1)
    fill(connection, rows)
    found = advisor.advise(connection.table("attempts"), what_if=True, threads=1)
    assert found.replay[0].policy == "retry-all"
    assert found.replay[0].lost_gpu_hours == pytest.approx(5 * cut_h * 8)
    assert found.replay[0].lost_gpu_hours == pytest.approx(found.exposure.destroyed_gpu_hours.high)


def test_a_job_in_vain_is_left_undone_by_retrying_and_done_by_resuming() -> None:
    found = replay([row(25 * index, 24.01, job_id=str(index), outcome="walltime") for index in range(4)])
    assert (found["retry-all"].jobs, found["retry-all"].unfinished_jobs, found["retry-all"].delivered_share) == (1, 1, 0)
    assert found["retry-all"].lost_gpu_hours == pytest.approx(4 * 24.01 * 8, rel=1e-4)
    assert (found["resume-all"].unfinished_jobs, found["as-advised"].unfinished_jobs) == (0, 0)
    assert found["resume-all"].jobs_meeting_limit == 0
    assert found["resume-all"].delivered_share > 0.9


def test_own_failures_use_hours_but_are_not_to_be_delivered() -> None:
    found = replay(
        [row(0, 1, job_id="1", outcome="user_failure"), row(99, 3, job_id="2"), row(200, 1, job_id="3", outcome="censored", end=None)]
    )
    assert found["retry-all"] == advice.PolicyReplay("retry-all", 0, 24 / 32, 1, 1, 0)


def test_the_replay_can_do_without_numbers_of_limits() -> None:
    found = replay([row(0, 6, outcome="infrastructure", limit_s=None), row(7, 10, limit_s=None)])
    assert found["retry-all"].jobs_meeting_limit == 1


def test_relations_of_other_connections_are_read() -> None:
    other = duckdb.connect()
    fill(other, [row(0, 1)])
    assert advisor.advise(other.table("attempts"), threads=1).exposure.attempts == 1
