"""What the history says of a workload: length of its work, what befell it, whether it resumes by itself. Figures worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from factories import fill, row

from perdure.history import chains, table, workloads
from perdure.model import advice

LIMIT_H = 24.0


def build(rows: list[dict[str, Any]], **options: Any) -> tuple[workloads.Workloads, Any]:
    connection = table.connect(threads=1)
    fill(connection, rows)
    chains.build(connection)
    return workloads.build(connection, **options), connection


def only(rows: list[dict[str, Any]], **options: Any) -> advice.WorkloadEvidence:
    (one,) = build(rows, **options)[0].evidence()
    return one


def siblings(*hours: float, start_h: float = 1000.0, **changes: Any) -> list[dict[str, Any]]:
    """Jobs that ended well, far from each other."""
    return [row(start_h + 100 * index, one, job_id=f"sibling{index}", **changes) for index, one in enumerate(hours)]


def test_counts_and_hours() -> None:
    one = only(
        [
            row(0, 2, job_id="1", outcome="infrastructure", state="NODE_FAIL"),
            row(3, 10, job_id="1"),
            row(50, 1, job_id="2", outcome="user_failure"),
            row(90, 3, job_id="3", outcome="preempted"),
        ]
    )
    assert one.key == advice.WorkloadKey("test", "alice", "physics", "train", advice.Size(8, "gpu"))
    assert (one.jobs, one.attempts) == (3, 4)
    assert (one.gpu_hours, one.delivered_gpu_hours) == (16 * 8, 80)
    assert one.lost_by_cause == {"infrastructure": 16, "preemption": 24, "user_failure": 8}
    assert one.interruptions == {"infrastructure": 1, "preemption": 1}
    assert one.user_failure_share == pytest.approx(1 / 16)
    assert one.destroyed_gpu_hours == advice.Bounds(40, 40)
    assert (one.work_minutes, one.work_source, one.limit_minutes) == (600, "completed", 1440)


def test_the_classification_decides_what_is_an_interruption_and_the_bounds_hold_both() -> None:
    rows = [row(0, 2, job_id="1", outcome="suspected_infrastructure"), *siblings(1)]
    strict, inclusive = only(rows), only(rows, classification="inclusive")
    assert strict.interruptions == {}
    assert inclusive.interruptions == {"infrastructure": 1}
    assert strict.destroyed_gpu_hours == inclusive.destroyed_gpu_hours == advice.Bounds(0, 16)


def test_names_that_differ_in_counters_are_one_workload_and_sizes_are_not() -> None:
    rows = [row(0, 1, job_id="1", name="a1"), row(5, 1, job_id="2", name="a2"), row(9, 1, job_id="3", name="a1", gpus=16.0)]
    keys = build(rows)[0].keys()
    assert [(key.name, key.size.count) for key in keys] == [("a#", 8), ("a#", 16)]


def test_work_without_gpus_is_counted_in_nodes() -> None:
    one = only([row(0, 2, gpus=0.0, nodes=4)])
    assert (one.key.size, one.gpu_hours) == (advice.Size(4, "node"), 8)


# Length of the work ----------------------------------------------------------------------------------------------


def test_work_is_the_median_of_completed_siblings() -> None:
    one = only(siblings(4, 5, 9))
    assert (one.work_minutes, one.work_source) == (300, "completed")


def test_a_run_again_after_an_interruption_counts_by_its_last_run() -> None:
    # 5 h and, after 3 h were lost, 7 h: the median of 5 and 7.
    one = only([row(0, 3, job_id="1", outcome="infrastructure"), row(4, 7, job_id="1"), *siblings(5)])
    assert (one.work_minutes, one.resumes_itself) == (360, False)


def test_half_cut_off_means_at_least_the_limit() -> None:
    cut = [row(200 * index, 24.01, job_id=f"cut{index}", outcome="walltime") for index in range(3)]
    one = only([*cut, *siblings(5, 6)])
    assert (one.work_minutes, one.work_source) == (1440, "limit")


def test_a_hung_run_that_was_repeated_says_nothing_of_the_work() -> None:
    hung = [row(0, 24.01, job_id="hung", outcome="walltime"), row(24.1, 5, job_id="again")]
    one = only([*hung, *siblings(5, 5.5, 6)])
    assert (one.work_source, one.resumes_itself, one.segments_at_limit) == ("completed", False, 1)
    assert one.work_minutes == 330


def test_segments_that_ended_well_together_are_one_work() -> None:
    segments = [
        row(0, 24.01, job_id="1", name="s1", outcome="walltime"),
        row(24.1, 24.01, job_id="2", name="s2", outcome="walltime"),
        row(48.2, 8, job_id="3", name="s3"),
    ]
    one = only(segments)
    assert (one.work_source, one.resumes_itself, one.segments_at_limit, one.resubmissions) == ("chain", True, 2, 2)
    assert one.work_minutes == pytest.approx((24.01 * 2 + 8) * 60, abs=1)


def test_repetitions_in_vain_mean_work_beyond_the_limit() -> None:
    rows = [row(25 * index, 24.01, job_id=str(index), outcome="walltime") for index in range(4)]
    one = only(rows)
    assert (one.work_source, one.resumes_itself, one.segments_at_limit) == ("limit", False, 3)
    assert one.work_minutes == pytest.approx(1.05 * 1440)


def test_nothing_completed_leaves_the_limit_and_without_one_the_longest() -> None:
    assert only([row(0, 3, outcome="infrastructure")]).work_minutes == 1440
    longest = only(
        [row(0, 3, job_id="1", outcome="infrastructure", limit_s=None), row(9, 5, job_id="2", outcome="user_cancel", limit_s=None)]
    )
    assert (longest.work_minutes, longest.work_source, longest.limit_minutes) == (300, "longest", None)
    unlimited = only([row(0, 3, outcome="infrastructure", limit_s=float("inf"))])
    assert (unlimited.work_minutes, unlimited.work_source) == (180, "longest")


def test_what_never_ran_is_no_workload() -> None:
    assert len(build([row(0, 0), row(5, 0, job_id="2", outcome="infrastructure")])[0]) == 0


# Does it resume by itself? ---------------------------------------------------------------------------------------


def test_asking_for_a_signal_is_a_sign_of_resuming() -> None:
    assert only(siblings(5, submit_line="sbatch --signal=B:USR1@300 run.sh")).resumes_itself
    assert not only(siblings(5, submit_line="sbatch --requeue run.sh")).resumes_itself


def test_short_runs_after_interruptions_are_a_sign_and_tell_what_was_kept() -> None:
    # Siblings need 10 h. Twice 6 h, an interruption, then 5 h: 11 h in all, so that 1 h of the 6 was lost and 5/6 kept.
    interrupted = [
        one
        for index in range(2)
        for one in (row(100 * index, 6, job_id=f"i{index}", outcome="infrastructure"), row(100 * index + 7, 5, job_id=f"i{index}"))
    ]
    found, _ = build([*interrupted, *siblings(10, 10, 10)])
    (one,) = found.evidence()
    assert one.resumes_itself
    assert one.work_minutes == 600
    assert found.durable.tolist() == [pytest.approx(5 / 6)]
    # Since a checkpoint of its own, an hour apart: half an hour of each of the two interrupted runs, on 8 GPUs.
    assert one.destroyed_gpu_hours == advice.Bounds(8, 96)


def test_one_short_run_is_chance() -> None:
    found, _ = build([row(0, 6, job_id="i", outcome="infrastructure"), row(7, 5, job_id="i"), *siblings(10, 10, 10)])
    assert not found.evidence()[0].resumes_itself
    assert np.isnan(found.durable).all()


def test_an_hourly_checkpoint_is_assumed_where_resuming_is_seen_but_not_measured() -> None:
    found, _ = build(siblings(5, submit_line="sbatch --signal=USR1@60 run.sh"))
    assert found.durable_by_convention().tolist() == [pytest.approx(1 - 1 / 5)]
    assert build(siblings(5))[0].durable_by_convention().tolist() == [0]


def test_a_cut_off_session_that_nobody_repeated_may_have_lost_nothing() -> None:
    assert only([row(0, 24, outcome="walltime", limit_s=86400.0)]).destroyed_gpu_hours == advice.Bounds(0, 192)
    again = only([row(0, 24, job_id="1", outcome="walltime"), row(24.1, 24, job_id="2", outcome="walltime")])
    assert again.destroyed_gpu_hours == advice.Bounds(192, 384)


# Waiting ---------------------------------------------------------------------------------------------------------


def test_quirk_42_the_queue_begins_when_a_job_is_eligible() -> None:
    one = only([row(20.5, 1, submit=row(0)["start"], eligible=row(20)["start"])])
    assert one.queue_minutes == 30


def test_the_wait_for_a_restart_runs_from_the_interruption_to_the_next_start() -> None:
    rows = [row(0, 2, job_id="1", outcome="infrastructure"), row(2.5, 1, job_id="1")]
    rows += [row(100, 2, job_id="2", outcome="preempted"), row(103.5, 1, job_id="2")]
    rows += [row(200, 2, job_id="3", outcome="user_failure"), row(250, 1, job_id="3")]
    _, connection = build(rows)
    found = workloads.measure_restarts(connection)
    assert (found.median_s, found.count, found.by_size) == (3600, 2, {})


def test_enough_restarts_of_a_size_have_a_median_of_their_own() -> None:
    rows = []
    for index in range(5):
        rows += [row(100 * index, 2, job_id=str(index), outcome="infrastructure"), row(100 * index + 4, 1, job_id=str(index))]
    found = workloads.measure_restarts(build(rows)[1])
    assert found.by_size == {(True, 2): 7200}
    assert workloads.measure_restarts(build([row(0, 1)])[1]) == workloads.Restarts(None, 0, {})
