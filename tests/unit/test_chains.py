"""Requeues, recycled ids, resubmissions, segments and pipelines, on histories small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from factories import fill, row
from hypothesis import given
from hypothesis import strategies as st

from perdure.history import chains, table


def build(rows: list[dict[str, Any]]) -> Any:
    connection = table.connect(threads=1)
    fill(connection, rows)
    chains.build(connection)
    return connection


def runs_of(connection: Any) -> list[tuple[Any, ...]]:
    """Jobs by the order of their first submission, and their runs."""
    return connection.execute("""
        SELECT dense_rank() OVER (ORDER BY first_s), no, last, ending
        FROM (SELECT *, min(submit_s) OVER (PARTITION BY job) AS first_s FROM ordered) ORDER BY submit_s, no""").fetchall()


def links_of(connection: Any) -> list[tuple[str, bool, float]]:
    return connection.execute("SELECT kind, undone, round(confidence, 3) FROM links ORDER BY gap_s").fetchall()


def test_a_requeued_job_is_one_job_with_the_outcome_of_its_last_attempt() -> None:
    connection = build(
        [
            row(0, 2, job_id="7", outcome="requeued"),
            row(2.1, 1, job_id="7", outcome="infrastructure"),
            row(3.2, 4, job_id="7", outcome="success"),
        ]
    )
    assert runs_of(connection) == [(1, 1, False, "requeued"), (1, 2, False, "infrastructure"), (1, 3, True, "success")]
    assert connection.execute("SELECT ending, elapsed_s FROM jobs").fetchall() == [("success", 7 * 3600)]
    assert links_of(connection) == []


def test_order_is_by_submission_whatever_the_order_of_the_rows() -> None:
    rows = [row(2.1, 1, job_id="7", outcome="success"), row(0, 2, job_id="7", outcome="preempted")]
    assert runs_of(build(rows)) == [(1, 1, False, "preempted"), (1, 2, True, "success")]


def test_a_job_whose_last_attempt_is_pending_is_open() -> None:
    pending = row(3, 0, job_id="7", outcome="never_started", state="PENDING", start=None, end=None, nodes=0, gpus=0.0)
    connection = build([row(0, 2.5, job_id="7", outcome="infrastructure", state="NODE_FAIL"), pending])
    assert connection.execute("SELECT ending, end_s FROM jobs").fetchall() == [("never_started", None)]


@pytest.mark.parametrize("later", [{"start_h": 24 * 8.0}, {"start_h": 3.0, "user": "bob"}], ids=["eight days later", "of another user"])
def test_a_recycled_id_is_another_job(later: dict[str, Any]) -> None:
    start_h = later.pop("start_h")
    connection = build([row(0, 2, job_id="7", outcome="infrastructure"), row(start_h, 1, job_id="7", **later)])
    assert [run[0] for run in runs_of(connection)] == [1, 2]


def test_same_id_on_two_clusters_is_two_jobs() -> None:
    connection = build([row(0, 1, job_id="7"), row(2, 1, job_id="7", cluster="other")])
    assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (2,)


def test_array_tasks_are_jobs_of_their_own() -> None:
    tasks = [row(0, 1, job_id=f"10_{task}", raw_id=str(10 + task), array_job=10, array_task=task) for task in (1, 2)]
    assert build(tasks).execute("SELECT count(*) FROM jobs").fetchone() == (2,)


def test_components_of_a_heterogeneous_job_are_one_run_with_the_sum_of_their_hours() -> None:
    common = {"het_job": 20, "outcome": "infrastructure", "state": "NODE_FAIL", "gpus": 0.0}
    connection = build(
        [
            row(0, 2, job_id="20+0", raw_id="20", het_offset=0, nodes=4, **common),
            row(0, 2, job_id="20+1", raw_id="21", het_offset=1, nodes=1, **common),
        ]
    )
    found = connection.execute("SELECT ending, node_s, milli_size, elapsed_s FROM ordered").fetchall()
    assert found == [("infrastructure", 5 * 2 * 3600, 5000, 7200)]


def test_one_component_that_failed_fails_the_whole() -> None:
    connection = build(
        [
            row(0, 2, job_id="20+0", raw_id="20", het_job=20, het_offset=0, outcome="user_cancel"),
            row(0, 2, job_id="20+1", raw_id="21", het_job=20, het_offset=1, outcome="infrastructure"),
        ]
    )
    assert connection.execute("SELECT ending, milli_size FROM ordered").fetchall() == [("infrastructure", 16000)]


def test_quirk_49_segments_under_new_ids_are_one_chain() -> None:
    # pretrain_s1, _s2, _s3: submitted two minutes and three minutes after the end of the one before.
    connection = build(
        [
            row(0, 24.1, job_id="1", name="pretrain_s1", outcome="walltime", limit_s=86400.0),
            row(25, 24.1, job_id="2", name="pretrain_s2", outcome="walltime", limit_s=86400.0, submit=_at(24.1 + 1 / 30)),
            row(50, 8, job_id="3", name="pretrain_s3", limit_s=86400.0, submit=_at(49.1 + 0.05)),
        ]
    )
    assert connection.execute("SELECT seq FROM threads ORDER BY seq").fetchall() == [(0,), (1,), (2,)]
    assert [kind for kind, _, _ in links_of(connection)] == ["advanced", "advanced"]


def test_a_failed_job_submitted_again_is_a_repetition() -> None:
    connection = build([row(0, 1, job_id="1", outcome="user_failure"), row(1.1, 2, job_id="2")])
    assert links_of(connection) == [("repeated", True, 0.8)]


def test_a_job_that_still_runs_may_be_a_repetition() -> None:
    running = row(1.1, 2, job_id="2", outcome="censored", state="RUNNING", end=None)
    assert links_of(build([row(0, 1, job_id="1", outcome="user_failure"), running])) == [("repeated", True, 0.8)]


_JOBS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3 * chains.LATE_S), st.integers(0, chains.LATE_S), st.booleans()), min_size=1)


@given(_JOBS)
def test_groups_are_looked_at_where_a_job_came_soon_after_the_end_of_an_undone_one(jobs: list[tuple[int, int, int, bool]]) -> None:
    group, submit_s, elapsed_s, undone = (np.array(column) for column in zip(*jobs, strict=True))
    end_s = submit_s + elapsed_s
    expected = {
        number
        for number, end, its in zip(group.tolist(), end_s.tolist(), undone.tolist(), strict=True)
        if its and ((group == number) & (submit_s >= end) & (submit_s <= end + chains.LATE_S)).any()
    }
    found = chains._groups_with_soon(group.astype(np.uint64) << np.uint64(40), submit_s, end_s, undone)
    assert set(found.tolist()) == expected


@pytest.mark.parametrize(
    "second",
    [
        {"start_h": 1.1, "name": "other"},
        {"start_h": 1.1, "user": "bob"},
        {"start_h": 1.1, "work_dir": "/elsewhere"},
        {"start_h": 1.1, "gpus": 16.0},
        {"start_h": 1.1, "name": "train7"},
        {"start_h": 0.5},
        {"start_h": 30.0},
    ],
    ids=["name", "user", "folder", "size", "unrelated counter", "overlap", "a day later"],
)
def test_what_has_nothing_in_common_with_a_failure_is_not_linked_to_it(second: dict[str, Any]) -> None:
    start_h = second.pop("start_h")
    connection = build([row(0, 1, job_id="1", outcome="user_failure"), row(start_h, 2, job_id="2", **second)])
    assert links_of(connection) == []


def test_a_sweep_fed_one_by_one_is_not_a_chain() -> None:
    rows = [row(2 * index, 1.9, job_id=str(index), name=f"sweep{index}") for index in range(10)]
    rows[4] |= {"outcome": "user_failure"}
    # Nine successes, eight of them followed as soon as the failure was: 0.8 × (1 − 8/9) ≈ 0.09 is no confidence.
    assert links_of(build(rows)) == []


def test_among_many_running_at_once_the_next_submission_is_no_repetition() -> None:
    rows = [row(0, 5, job_id=str(index), name="same") for index in range(5)]
    rows.append(row(0, 1, job_id="failed", name="same", outcome="user_failure"))
    rows.append(row(1.1, 1, job_id="next", name="same"))
    assert links_of(build(rows)) == []  # 0.8 / (1 + 5)


def test_segments_submitted_in_advance_are_linked_by_their_dependencies() -> None:
    at_once = {"submit": _at(0), "eligible": _at(0), "limit_s": 8 * 3600.0}
    withdrawn = row(0, 0, job_id="4", name="seg_s4", depends_on="3", outcome="never_started", nodes=0, gpus=0.0, **at_once)
    connection = build(
        [
            row(0, 8.01, job_id="1", name="seg_s1", outcome="walltime", **at_once),
            row(9, 8.01, job_id="2", name="seg_s2", outcome="walltime", depends_on="1", **at_once),
            row(18, 3, job_id="3", name="seg_s3", depends_on="2", **at_once),
            withdrawn | {"start": None, "end": _at(21)},
            row(21.1, 0.01, job_id="5", name="seg_s5", depends_on="4", **at_once),
        ]
    )
    assert connection.execute("SELECT count(*), count(DISTINCT thread) FROM threads").fetchone() == (5, 1)
    assert sorted(kind for kind, _, _ in links_of(connection)) == ["dependency"] * 4


def test_stages_of_a_pipeline_are_works_of_their_own() -> None:
    stages = [row(2 * index, 1, job_id=str(index), name=f"stage{index}", depends_on=str(index - 1), submit=_at(0)) for index in range(1, 5)]
    assert links_of(build(stages)) == []


def test_a_dependency_on_itself_or_in_a_circle_ends() -> None:
    rows = [
        row(0, 1, job_id="1", depends_on="2", outcome="walltime"),
        row(0, 1, job_id="2", depends_on="1", outcome="walltime"),
        row(0, 1, job_id="3", depends_on="3", outcome="walltime"),
    ]
    assert build(rows).execute("SELECT count(*) FROM threads").fetchone() == (0,)


@pytest.mark.parametrize(
    ("outcome", "hours", "ending"),
    [
        ("walltime", 24.01, "walltime"),
        ("user_failure", 24.01, "walltime"),
        ("user_failure", 23.9, "user_failure"),
        ("requeued", 23.5, "walltime"),
        ("requeued", 20, "requeued"),
        ("success", 24.01, "success"),
        ("infrastructure", 24.01, "infrastructure"),
    ],
)
def test_what_ended_at_its_limit_was_ended_by_it(outcome: str, hours: float, ending: str) -> None:
    assert build([row(0, hours, outcome=outcome)]).execute("SELECT ending FROM ordered").fetchone() == (ending,)


def _at(hours: float) -> Any:
    return row(hours)["start"]
