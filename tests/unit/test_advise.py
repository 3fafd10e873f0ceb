"""`advise`: verdicts, losses, origins of what was assumed; the same answer whatever the order of the rows and the spelling of names."""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from factories import fill, parquet, row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import perdure
from perdure import errors
from perdure.advisor import advise as advisor
from perdure.advisor import analysis
from perdure.decision.policy import Policy, parse_policy
from perdure.history import table
from perdure.model import advice
from perdure.model.advice import VerdictKind
from perdure.model.attempt import Cause
from perdure.stats import completion, dispersion


def run(rows: list[dict[str, Any]], policy: Policy | None = None, **options: Any) -> advice.Advice:
    connection = table.connect(threads=1)
    fill(connection, rows)
    return advisor.advise(connection.table("attempts"), policy, threads=1, **options)


def fleet(seed: int = 3, jobs: int = 120) -> list[dict[str, Any]]:
    """A small history of three users with interruptions, failures and limits."""
    generator = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for index in range(jobs):
        user = generator.choice(["ann", "ben", "cy"])
        hours = {"ann": 2, "ben": 20, "cy": 6}[user] * generator.uniform(0.8, 1.2)
        common = {
            "job_id": str(index),
            "user": user,
            "name": f"{user}job{generator.randrange(5)}",
            "gpus": {"ann": 1.0, "ben": 512.0, "cy": 8.0}[user],
            "nodes": {"ann": 1, "ben": 64, "cy": 1}[user],
            "work_dir": f"/home/{user}",
        }
        start = generator.uniform(0, 2000)
        if generator.random() < {"ann": 0.02, "ben": 0.5, "cy": 0.1}[user]:
            rows.append(row(start, hours * generator.random(), outcome=generator.choice(["infrastructure", "preempted"]), **common))
            start += hours + generator.random()
        rows.append(row(start, hours, outcome="user_failure" if generator.random() < 0.1 else "success", **common))
    return rows


def test_large_interrupted_work_is_resumed_and_small_is_run_again() -> None:
    answer = run(fleet())
    verdicts = {one.evidence.key.user: one.verdict.verdict for one in answer.workloads}
    assert verdicts["ben"] is VerdictKind.RESUME
    assert verdicts["ann"] is VerdictKind.RETRY
    assert answer.workloads[0].evidence.key.user == "ben"
    assert [one.classification for one in answer.rates] == ["strict", "inclusive"] * 3


def test_work_longer_than_its_limit_must_be_resumed() -> None:
    answer = run([row(25 * index, 24.01, job_id=str(index), outcome="walltime") for index in range(4)])
    assert answer.workloads[0].verdict.verdict is VerdictKind.RESUME_REQUIRED
    assert answer.workloads[0].verdict.retry.never_finishes
    # It can have lost no more than it was given: 4 runs of 24.01 h on 8 GPUs.
    assert answer.workloads[0].retry_lost_gpu_hours == pytest.approx(4 * 24.01 * 8)
    assert 0 < answer.workloads[0].saved_gpu_hours < 4 * 24.01 * 8


def test_normal_work_does_not_inherit_the_preemptions_of_low_priority_work() -> None:
    low = [row(10 * index, 4, job_id=f"l{index}", user="low", qos="scavenger", outcome="preempted") for index in range(20)]
    normal = [row(10 * index, 8, job_id=f"n{index}", user="normal", qos="normal") for index in range(20)]
    mttf = {one.evidence.key.user: one.mttf for one in run(low + normal).workloads}
    assert mttf["low"].minutes == pytest.approx(4 * 60, rel=0.1)
    assert mttf["normal"].minutes > 200 * 60


def test_work_that_was_done_within_its_limit_and_its_grace_fits_it() -> None:
    answer = run([row(100 * index, 24.01, job_id=str(index)) for index in range(4)])
    assert answer.workloads[0].verdict.verdict is not VerdictKind.RESUME_REQUIRED


def test_work_that_fails_by_itself_is_neither() -> None:
    answer = run([row(10 * index, 1, job_id=str(index), outcome="user_failure") for index in range(4)])
    assert answer.workloads[0].verdict.verdict is VerdictKind.NEITHER


def test_a_deadline_without_room_for_a_second_run_demands_resuming() -> None:
    rows = fleet()
    policy = parse_policy('[costs]\ndowntime = "1m"\nrestore_cost = "1m"\n[[workload]]\nuser = "cy"\ndeadline = "7h"\n')
    before, after = (next(one for one in run(rows, chosen).workloads if one.evidence.key.user == "cy") for chosen in (Policy(), policy))
    assert before.question.deadline_minutes is None
    assert after.question.deadline_minutes == 420
    assert after.verdict.verdict is VerdictKind.RESUME_REQUIRED


def test_losses_are_the_expected_hours_beyond_the_work_of_all_jobs_to_be_done() -> None:
    one = next(one for one in run(fleet()).workloads if one.evidence.key.user == "ben")
    question = one.question
    costs = question.costs
    terms = completion.Terms(
        *(
            np.array([value])
            for value in (
                question.work_minutes,
                question.mttf_minutes,
                costs.checkpoint_cost_minutes,
                costs.restore_cost_minutes,
                costs.fresh_cost_minutes,
                0.0,
                0.0,
                question.limit_minutes,
            )
        )
    )
    ben = [attempt for attempt in fleet() if attempt["user"] == "ben"]
    to_be_done = len({attempt["job_id"] for attempt in ben}) - sum(attempt["outcome"] == "user_failure" for attempt in ben)
    beyond = float(completion.retry(terms)[0]) - question.work_minutes
    assert one.retry_lost_gpu_hours == pytest.approx(to_be_done * beyond / 60 * 512)
    assert one.saved_gpu_hours == pytest.approx(one.retry_lost_gpu_hours - one.resume_lost_gpu_hours)
    assert one.saved_money is None


def test_money_is_the_price_of_the_hours_less_that_of_the_storage() -> None:
    base = next(one for one in run(fleet()).workloads if one.evidence.key.user == "ben")
    values = {"gpu_hour_price": 2.0, "storage_price_gb_month": 0.5, "checkpoint_size_gb": 1000.0}
    dear = next(one for one in run(fleet(), Policy().override(values, lambda _name: "--flag")).workloads if one.evidence.key.user == "ben")
    ben = [attempt for attempt in fleet() if attempt["user"] == "ben"]
    jobs = len({attempt["job_id"] for attempt in ben}) - sum(attempt["outcome"] == "user_failure" for attempt in ben)
    stored = jobs * dear.verdict.resume.expected_minutes / 43_830 * 1000 * 0.5
    assert dear.saved_money == pytest.approx(2 * base.saved_gpu_hours - stored)


def test_worst_loss_comes_first() -> None:
    lost = [one.retry_lost_gpu_hours for one in run(fleet()).workloads]
    assert lost == sorted(lost, reverse=True)


# Assumptions -----------------------------------------------------------------------------------------------------


def test_downtime_comes_from_the_policy_else_from_the_history_else_from_the_default() -> None:
    calm, troubled = [row(0, 1)], [row(0, 2, outcome="infrastructure"), row(2.5, 1)]
    assert run(calm).workloads[0].question.costs.downtime_minutes == 5
    assert run(calm).assumptions["downtime_minutes"] == "5m (default)"
    assert run(troubled).workloads[0].question.costs.downtime_minutes == 30
    assert run(troubled).assumptions["downtime_minutes"].startswith("30m (history: median of 1 restarts")
    policy = Policy().override({"downtime_minutes": 7.0}, lambda _name: "--downtime")
    assert run(troubled, policy).workloads[0].question.costs.downtime_minutes == 7
    assert run(troubled, policy).assumptions["downtime_minutes"] == "7m (--downtime)"


def test_rules_of_a_policy_hold_for_the_workloads_they_match() -> None:
    policy = parse_policy(
        '[costs]\ncheckpoint_cost = "3m"\n'
        '[[workload]]\nuser = "ben"\ncheckpoint_cost = "9m"\n'
        '[[workload]]\npartition = "gpu"\nfresh_cost = "1m"\n'
    )
    costs = {one.evidence.key.user: one.question.costs for one in run(fleet(), policy).workloads}
    assert (costs["ben"].checkpoint_cost_minutes, costs["ben"].fresh_cost_minutes) == (9, 5)
    assert (costs["ann"].checkpoint_cost_minutes, costs["ann"].fresh_cost_minutes) == (3, 1)


def test_a_partition_is_known_where_a_workload_has_one_only() -> None:
    policy = parse_policy('[[workload]]\npartition = "gpu"\nfresh_cost = "1m"\n')
    mixed = [row(0, 1, job_id="1"), row(5, 1, job_id="2", partition="other")]
    assert run(mixed, policy).workloads[0].question.costs.fresh_cost_minutes == 5


def test_what_an_application_keeps_is_assumed_where_it_resumes_and_said() -> None:
    signalled = [row(100 * index, 10, job_id=str(index), submit_line="sbatch --signal=USR1@60 x") for index in range(5)]
    one = run(signalled).workloads[0]
    assert one.question.costs.durable_fraction == pytest.approx(0.9)
    assert any("seems to resume by itself" in warning for warning in one.verdict.warnings)
    policy = Policy().override({"durable_fraction": 0.0}, lambda _name: "--durable-fraction")
    assert run(signalled, policy).workloads[0].question.costs.durable_fraction == 0


def test_a_verdict_that_the_other_classification_would_change_says_so() -> None:
    rows = [one for one in fleet() if one["outcome"] not in ("infrastructure", "preempted")]
    suspects = [
        row(3000 + 40 * index, 15, job_id=f"s{index}", user="ben", name="benjob1", gpus=512.0, nodes=64, outcome="suspected_infrastructure")
        for index in range(12)
    ]
    one = next(one for one in run(rows + suspects).workloads if one.evidence.key.user == "ben")
    assert any(warning.startswith("With the inclusive classification") for warning in one.verdict.warnings)
    inclusive = next(one for one in run(rows + suspects, classification="inclusive").workloads if one.evidence.key.user == "ben")
    assert one.verdict.verdict is not inclusive.verdict.verdict


def test_a_history_without_interruptions_says_that_none_were_seen() -> None:
    answer = run([row(10 * index, 1, job_id=str(index)) for index in range(5)])
    assert any("No interruption was seen" in note for note in answer.notes)
    # Five hours without an interruption do not prove much: what would settle it is a longer history.
    assert answer.workloads[0].verdict.verdict is VerdictKind.EITHER
    assert "a longer history" in (answer.workloads[0].verdict.settle_by or "")


def bursts(days: int, quiet: int) -> advice.Advice:
    """Advise on days of three failures within minutes each, and after them on as many `quiet` days."""
    return run(
        [
            row(24 * day, 20 + place * 0.05, job_id=f"{day}-{place}", outcome="infrastructure" if day < days else "success")
            for day in range(days + quiet)
            for place in range(3)
        ]
    )


@pytest.mark.parametrize("quiet", [30, 0], ids=["some-days", "every-day"])
def test_the_figure_by_which_bursts_were_found_is_named(quiet: int) -> None:
    answer = bursts(30, quiet)
    (found,) = (one.dispersion for one in answer.rates if (one.cause, one.classification) == (Cause.INFRASTRUCTURE, "strict"))
    assert found.p_value is not None
    assert (found.p_value < dispersion.SIGNIFICANCE) is (quiet > 0)
    measured = f"daily counts vary {found.index:.1f}" if quiet else f"the times between them vary {found.coefficient_of_variation:.1f}"
    (told,) = (note for note in answer.notes if "in bursts" in note)
    assert f"in bursts ({measured} times as much as chance alone would have them)" in told


# The same question, the same answer ------------------------------------------------------------------------------


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.integers(0, 5))
def test_the_order_of_the_rows_does_not_matter(generator: random.Random, seed: int) -> None:
    rows = fleet(seed, jobs=40)
    shuffled = rows.copy()
    generator.shuffle(shuffled)
    assert run(rows, what_if=True) == run(shuffled, what_if=True)


def test_names_and_dates_do_not_matter_beyond_what_they_group() -> None:
    rows = fleet()
    aliases = {"ann": "zed", "ben": "abe", "cy": "moe"}
    weeks = datetime.timedelta(weeks=11)
    other = [
        one
        | {
            "user": aliases[one["user"]],
            "uid": 7,
            "cluster": "hidden",
            "account": "x",
            "name": one["name"].replace(one["user"], aliases[one["user"]]),
            "work_dir": aliases[one["user"]],
            "job_id": str(int(one["job_id"]) + 9000),
            "raw_id": str(int(one["job_id"]) + 9000),
        }
        | {when: one[when] + weeks for when in ("submit", "eligible", "start", "end")}
        for one in rows
    ]
    plain, hidden = run(rows, what_if=True), run(other, what_if=True)
    assert [_figures(one) for one in plain.workloads] == [_figures(one) for one in hidden.workloads]
    assert (plain.rates, plain.replay) == (hidden.rates, hidden.replay)
    assert plain.exposure.rows == hidden.exposure.rows


def _figures(one: advice.WorkloadAdvice) -> advice.WorkloadAdvice:
    nobody = advice.WorkloadKey("", "", "", "", one.evidence.key.size)
    return msgspec.structs.replace(one, evidence=msgspec.structs.replace(one.evidence, key=nobody))


def test_one_seed_one_answer_and_threads_do_not_matter() -> None:
    rows = fleet()
    assert run(rows, seed=4) == run(rows, seed=4)
    connection = table.connect()
    fill(connection, rows)
    assert advisor.advise(connection.table("attempts"), threads=4) == run(rows)


def test_a_file_and_a_table_give_the_same(tmp_path: Path) -> None:
    rows = fleet()
    answer = perdure.advise(parquet(tmp_path / "attempts.parquet", rows), threads=1)
    assert answer.history == "attempts.parquet"
    assert msgspec.structs.replace(answer, history="") == run(rows)


def test_a_document_can_be_written_and_read() -> None:
    answer = run(fleet(), what_if=True)
    assert msgspec.json.decode(msgspec.json.encode(answer))["schema"] == analysis.SCHEMA


# What cannot be used ---------------------------------------------------------------------------------------------


def test_a_table_without_its_columns_is_refused() -> None:
    connection = table.connect()
    with pytest.raises(errors.InputFormat, match="lacks columns"):
        advisor.advise(connection.sql("SELECT 1 AS job_id"))


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(errors.UsageError, match="cannot read a history from int"):
        advisor.advise(7)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, float("nan")])
def test_a_level_is_between_nothing_and_all(level: float) -> None:
    with pytest.raises(errors.UsageError, match="level"):
        run([row()], level=level)


def test_nothing_that_ran_is_an_advice_without_workloads() -> None:
    answer = run([row(0, 0, outcome="never_started", nodes=0, gpus=0.0, start=None)])
    assert answer.workloads == ()
    assert run([row(0, 0, outcome="never_started", nodes=0, gpus=0.0, start=None)], what_if=True).replay[0].jobs == 0
