"""The exposure table and the cells of the rates: everything that ran is counted, once."""

from __future__ import annotations

import math
from typing import Any

import pytest
from factories import EPOCH, fill, row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import errors
from perdure.history import cells, chains, exposure, table, workloads
from perdure.model import advice
from perdure.model.attempt import Cause, Outcome


def measure(rows: list[dict[str, Any]], *, cluster: str | None = None) -> advice.Exposure:
    connection = table.connect(threads=1)
    fill(connection, rows)
    chains.build(connection, cluster=cluster)
    return exposure.measure(connection, workloads.build(connection))


def read_cells(rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], cells.CauseCells]:
    connection = table.connect(threads=1)
    fill(connection, rows)
    chains.build(connection)
    return {(one.cause.value, one.classification, one.unit): one for one in cells.read_cells(connection)}


def test_quirk_41_every_state_counts() -> None:
    no_gpus = {"nodes": 8, "gpus": 0.0}
    seen = measure(
        [
            row(0, 2, job_id="1", outcome="requeued", state="REQUEUED", **no_gpus),
            row(3, 1, job_id="2", outcome="infrastructure", state="NODE_FAIL", **no_gpus),
            row(5, 0.5, job_id="3", outcome="user_cancel", state="CANCELLED", **no_gpus),
        ]
    )
    assert seen.node_hours == 16 + 8 + 4
    assert seen.gpu_hours == 0
    assert {(one.outcome, one.size_low, one.unit): one.node_hours for one in seen.rows} == {
        ("requeued", 8, "node"): 16,
        ("infrastructure", 8, "node"): 8,
        ("user_cancel", 8, "node"): 4,
    }


def test_quirk_6_a_heterogeneous_group_is_one_event_of_ten_node_hours() -> None:
    parts = [
        row(
            0,
            2,
            job_id=f"20+{index}",
            raw_id=str(20 + index),
            het_job=20,
            het_offset=index,
            nodes=nodes,
            gpus=0.0,
            outcome="infrastructure",
        )
        for index, nodes in enumerate((4, 1))
    ]
    seen = measure(parts)
    assert (seen.attempts, seen.node_hours) == (1, 10)
    assert seen.destroyed_gpu_hours == advice.Bounds(10, 10)
    found = read_cells(parts)["infrastructure", "strict", "node"]
    assert found.cells.events.sum() == 1
    assert found.cells.node_hours.sum() == pytest.approx(10)
    assert found.cells.job_hours.sum() == 2


def test_quirk_15_what_never_started_has_no_hours_whatever_its_request() -> None:
    never = row(0, 0, outcome="never_started", nodes=64, start=None)
    seen = measure([never, row(0, 1, job_id="2")])
    assert seen.node_hours == 1
    assert seen.attempts == 2


def test_quirk_30_hours_run_count_not_hours_held() -> None:
    suspended = row(0, 10, elapsed_s=21600, suspended_s=14400)
    assert measure([suspended]).node_hours == 6


def test_quirk_47_a_failure_at_once_is_an_event_without_loss() -> None:
    rows = [row(0, 0, job_id="1", outcome="infrastructure", state="NODE_FAIL"), row(0, 1, job_id="2")]
    assert measure(rows).destroyed_gpu_hours == advice.Bounds(0, 0)
    assert sum(one.attempts for one in measure([*rows, row(2, 0, job_id="3")]).rows if one.outcome == "infrastructure") == 1
    # It interrupted no work and follows starts, not hours: no part of a rate per hour.
    assert read_cells(rows)["infrastructure", "strict", "gpu"].cells.events.sum() == 0


def test_only_runs_where_preemption_was_seen_are_exposed_to_it() -> None:
    rows = [
        row(0, 4, job_id="1", outcome="preempted", state="PREEMPTED", qos="scavenger"),
        row(0, 6, job_id="2", qos="scavenger"),
        row(0, 100, job_id="3", qos="normal"),
        row(0, 1000, job_id="4", qos="scavenger", partition="cpu"),
    ]
    found = read_cells(rows)
    assert found["preemption", "strict", "gpu"].cells.job_hours.sum() == pytest.approx(10)
    assert found["preemption", "strict", "gpu"].cells.events.sum() == 1
    assert found["operator", "strict", "gpu"].cells.job_hours.sum() == pytest.approx(1110)


def test_quirk_46_nodes_that_never_came_up_destroyed_nothing() -> None:
    rows = [row(0, 0.1, outcome="infrastructure", state="BOOT_FAIL")]
    assert measure(rows).destroyed_gpu_hours == advice.Bounds(0, 0)
    assert read_cells(rows)["infrastructure", "strict", "gpu"].cells.events.sum() == 1


def test_shares_by_jobs_and_by_gpu_hours_differ() -> None:
    # Nine short jobs, and a large one of two attempts of which the first met a failure: 1 of 10 jobs, 160 of 169 GPU-hours.
    rows = [row(index, 1, job_id=str(index), gpus=1.0) for index in range(9)]
    rows += [row(0, 4, job_id="large", gpus=32.0, outcome="infrastructure"), row(5, 1, job_id="large", gpus=32.0)]
    shares = measure(rows).shares
    assert shares.infrastructure_jobs == pytest.approx(0.1)
    assert shares.infrastructure_gpu_hours == pytest.approx(160 / 169)
    assert shares.walltime_jobs == 0


def test_hours_exposed_to_the_limit_are_those_that_came_within_a_twentieth_of_it() -> None:
    rows = [
        row(0, 24.01, job_id="1", outcome="walltime", gpus=1.0),
        row(0, 23, job_id="2", gpus=1.0),
        row(0, 22.5, job_id="3", gpus=1.0),
        row(0, 500, job_id="4", gpus=1.0, limit_s=math.inf),
    ]
    assert measure(rows).walltime_exposed_gpu_hours == pytest.approx(24.01 + 23, abs=0.01)


def test_window_and_days() -> None:
    seen = measure([row(0, 1), row(47, 1, job_id="2")])
    assert (seen.start, seen.end, seen.days) == ("2026-01-05T00:00:00Z", "2026-01-07T00:00:00Z", 2)


def test_resubmissions_are_a_share_of_the_jobs() -> None:
    assert measure([row(0, 1, job_id="1", outcome="user_failure"), row(1.1, 2, job_id="2")]).shares.resubmitted_jobs == 0.5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outcome": "walltime"}, "Not every job that hit its limit lost all its work"),
        ({"outcome": "requeued", "elapsed_s": 60}, "requeued is not recorded"),
        ({"outcome": "suspected_infrastructure"}, "may have been the infrastructure's doing"),
        ({"restarts": 3}, "restarted more often than the history holds attempts"),
        ({"gpus": 0.0}, "No attempt has a GPU count"),
        ({"gpus": 0.0, "cpus": 1}, "2 attempts ran without GPUs on one node: each counts as a whole node"),
        ({"nodes": None}, "no node count"),
        ({"limit_s": None}, "no known wall-time limit"),
        ({"outcome": "censored", "end": None}, "still running"),
        ({}, "All jobs belong to one user"),
        ({}, "no submit lines"),
        ({"name": None}, "no job names"),
    ],
)
def test_what_cannot_be_told_is_said(changes: dict[str, Any], words: str) -> None:
    rows = [
        row(0, 24.01, job_id="1", **changes),
        row(30, 1, job_id="2", **{key: value for key, value in changes.items() if key == "name" or key == "gpus"}),
    ]
    assert any(words in sentence for sentence in measure(rows).cannot_tell)


def test_what_does_not_apply_is_not_said() -> None:
    rows = [row(0, 1, job_id="1", submit_line="sbatch x"), row(30, 1, job_id="2", user="bob", submit_line="sbatch x")]
    assert len(measure(rows).cannot_tell) == 1


@pytest.mark.parametrize("size", [{"gpus": 1.0}, {"gpus": 0.0, "nodes": 2}], ids=["gpu", "two-nodes"])
def test_what_has_gpus_or_several_nodes_is_not_taken_for_a_part_of_one(size: dict[str, Any]) -> None:
    assert not any("whole node" in sentence for sentence in measure([row(**size)]).cannot_tell)


def test_a_window_that_cuts_its_jobs_is_noticed() -> None:
    rows = [row(0, 1, job_id=str(index)) for index in range(20)] + [row(1, 1, job_id="later")]
    assert any("sacct -T" in sentence for sentence in measure(rows).cannot_tell)


def test_one_cluster_at_a_time() -> None:
    rows = [row(0, 1, job_id="1"), row(0, 3, job_id="2", cluster="other")]
    assert measure(rows, cluster="other").node_hours == 3
    with pytest.raises(errors.InputEmpty, match="no attempts of cluster 'third'") as caught:
        measure(rows, cluster="third")
    assert caught.value.hint == "it has: other, test"
    with pytest.raises(errors.InputEmpty, match="holds no attempts"):
        measure([])


def test_a_run_counts_on_the_days_on_which_it_ran_and_its_event_on_the_last() -> None:
    found = read_cells([row(18, 48, outcome="infrastructure")])["infrastructure", "strict", "gpu"].cells
    first = int((EPOCH.replace(tzinfo=None) - EPOCH.replace(year=1970, month=1, day=1)).days)
    order = found.block.argsort()
    assert (found.block[order] - first).tolist() == [0, 1, 2]
    assert found.job_hours[order].tolist() == [6, 24, 18]
    assert found.gpu_hours[order].tolist() == [48, 192, 144]
    assert found.events[order].tolist() == [0, 0, 1]
    assert found.attempts[order].tolist() == [0, 0, 1]


def test_causes_are_kept_apart_and_user_failures_are_none() -> None:
    outcomes = [
        "infrastructure",
        "suspected_infrastructure",
        "requeued",
        "preempted",
        "operator_cancel",
        "user_failure",
        "walltime",
        "user_cancel",
    ]
    found = read_cells([row(index, 1, job_id=str(index), outcome=outcome) for index, outcome in enumerate(outcomes)])
    events = {key[:2]: int(one.cells.events.sum()) for key, one in found.items()}
    assert events == {
        ("infrastructure", "strict"): 1,
        ("infrastructure", "inclusive"): 3,
        ("preemption", "strict"): 1,
        ("preemption", "inclusive"): 1,
        ("operator", "strict"): 1,
        ("operator", "inclusive"): 1,
    }
    assert all(one.cause is not Cause.WALLTIME for one in found.values())
    assert found["infrastructure", "inclusive", "gpu"].event_times_h.size == 3


ATTEMPTS = st.builds(
    lambda index, start, seconds, gpus, nodes, outcome, limit, user: (
        row(start, 0, job_id=str(index), elapsed_s=seconds, gpus=gpus, nodes=nodes, outcome=outcome, limit_s=limit, user=user)
        | {"end": None if outcome == "censored" else row(start, seconds / 3600)["end"]}
    ),
    index=st.integers(0, 5),
    start=st.floats(0, 200).map(lambda hours: round(hours * 60) / 60),
    seconds=st.integers(0, 400_000),
    gpus=st.sampled_from([0.0, 0.5, 1.0, 8.0, 512.0]),
    nodes=st.integers(1, 64),
    outcome=st.sampled_from([outcome.value for outcome in Outcome]),
    limit=st.sampled_from([None, 3600.0, 86400.0, math.inf]),
    user=st.sampled_from(["alice", "bob", None]),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ATTEMPTS, min_size=1, max_size=12))
def test_totals_are_the_plain_sums(rows: list[dict[str, Any]]) -> None:
    seen = measure(rows)
    node_hours = sum(one["elapsed_s"] * one["nodes"] for one in rows) / 3600
    gpu_hours = sum(one["elapsed_s"] * one["gpus"] for one in rows) / 3600
    assert seen.attempts == len(rows) == sum(one.attempts for one in seen.rows)
    assert seen.node_hours == pytest.approx(node_hours) == pytest.approx(sum(one.node_hours for one in seen.rows))
    assert seen.gpu_hours == pytest.approx(gpu_hours) == pytest.approx(sum(one.gpu_hours for one in seen.rows))
    assert 0 <= seen.destroyed_gpu_hours.low <= seen.destroyed_gpu_hours.high
    found = read_cells(rows)
    for unit in ("gpu", "node"):
        one = found.get(("infrastructure", "strict", unit))
        ran = [attempt for attempt in rows if attempt["elapsed_s"] > 0 and (attempt["gpus"] > 0) == (unit == "gpu")]
        if one is None:
            assert not ran
            continue
        assert one.cells.job_hours.sum() == pytest.approx(sum(attempt["elapsed_s"] for attempt in ran) / 3600)
        assert one.cells.gpu_hours.sum() == pytest.approx(sum(attempt["elapsed_s"] * attempt["gpus"] for attempt in ran) / 3600)
