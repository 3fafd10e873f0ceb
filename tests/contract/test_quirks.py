"""Every quirk of the shared catalogue is read as it expects. One test a quirk, named by its number."""

from __future__ import annotations

import datetime
import itertools
import json
import math

import pytest
import reading

from perdure import errors
from perdure.history import checks, quantities, sacct_json, table
from perdure.model.attempt import INCLUSIVE, STRICT, Cause, Outcome

pytestmark = pytest.mark.shared

# Those about how sacct is asked (39: a window that is too wide) are tested with `pull`.
ELSEWHERE = {39}


@pytest.fixture(scope="module")
def catalogue(request):
    from conftest import SHARED

    lines = (SHARED / "cases" / "sacct_quirks.jsonl").read_text().splitlines()
    return {quirk["n"]: quirk for quirk in map(json.loads, lines)}


@pytest.fixture
def quirk(catalogue, tmp_path):
    def read(number):
        found = catalogue[number]
        return reading.read_text(tmp_path, "\n".join([found["header"], *found["rows"]]) + "\n")

    return read


def node_hours(rows):
    return sum(row["nodes"] * row["elapsed_s"] for row in rows if row["nodes"]) / 3600


def test_every_quirk_is_tested(catalogue):
    tested = {int(name.removeprefix("test_quirk_").split("_")[0]) for name in globals() if name.startswith("test_quirk_")}
    assert set(catalogue) == tested | ELSEWHERE


def test_quirk_1_delimiter_in_the_last_field(quirk):
    (row,), summary = quirk(1)
    assert row["name"] == "sweep|lr=3e-4|seed7"
    assert summary.repaired == {"delimiter in a field": 1}


def test_quirk_3_trailing_delimiter(quirk):
    (row,), summary = quirk(3)
    assert (row["raw_id"], row["state"], row["elapsed_s"]) == ("910004", "COMPLETED", 60)
    assert summary.files[0].unknown_fields == ()


def test_quirk_4_pending_arrays(quirk, catalogue):
    first, second = catalogue[4]["rows"]
    assert checks.parse_array_id(first.split("|")[0]) == checks.ArrayId(job=910005, tasks=46, throttle=5, truncated=False)
    assert checks.parse_array_id(second.split("|")[0]).truncated
    rows, summary = quirk(4)
    assert [(row["array_job"], row["array_tasks"], row["outcome"]) for row in rows] == [
        (910005, 46, "never_started"),
        (910006, None, "never_started"),
    ]
    assert summary.truncated_arrays == 1


def test_quirk_5_array_task_and_raw_id(quirk):
    (row,), _ = quirk(5)
    assert (row["raw_id"], row["array_job"], row["array_task"]) == ("910101", 910010, 91)


def test_quirk_6_heterogeneous_job(quirk):
    rows, _ = quirk(6)
    assert node_hours(rows) == 10
    assert {row["het_job"] for row in rows} == {910020}
    assert [row["het_offset"] for row in rows] == [0, 1]
    assert {STRICT[Outcome(row["outcome"])] for row in rows} == {Cause.INFRASTRUCTURE}


def test_quirk_7_requeued_runs(quirk):
    rows, summary = quirk(7)
    assert len(rows) == 3
    assert sum(row["elapsed_s"] for row in rows) == 25_200
    assert sum(row["elapsed_s"] for row in rows if Outcome(row["outcome"]) in INCLUSIVE) == 10_800
    assert summary.missing_history == 0


def test_quirk_8_preempted_then_completed(quirk):
    rows, _ = quirk(8)
    assert [row["outcome"] for row in rows] == ["preempted", "success"]
    assert rows[0]["elapsed_s"] == 5400


def test_quirk_10_steps_are_no_jobs(quirk):
    (row,), summary = quirk(10)
    assert row["elapsed_s"] == 7
    assert summary.skipped == {"step": 2}


def test_quirk_11_cancelled_by(quirk):
    rows, _ = quirk(11)
    assert [(row["canceller_uid"], row["outcome"]) for row in rows] == [(70001, "user_cancel"), (0, "operator_cancel")]


def test_quirk_12_table_for_people_is_refused(quirk):
    with pytest.raises(errors.InputFormat, match="OUT_OF_ME") as caught:
        quirk(12)
    assert "-P" in caught.value.hint


def test_quirk_15_cancelled_before_it_started(quirk):
    (row,), _ = quirk(15)
    assert (row["nodes"], row["gpus"], row["outcome"], row["node_list"]) == (0, 0, "never_started", None)


def test_quirk_16_unknown_times(quirk):
    rows, _ = quirk(16)
    running, pending = sorted(rows, key=lambda row: row["raw_id"])
    assert (running["end"], running["elapsed_s"], running["outcome"]) == (None, 43_200, "censored")
    assert (pending["start"], pending["outcome"]) == (None, "never_started")


def test_quirk_18_limits(quirk):
    rows, _ = quirk(18)
    limits = {row["raw_id"]: row["limit_s"] for row in rows}
    assert limits == {"910140": math.inf, "910141": None, "910142": 86_400, "910143": None}


def test_quirk_19_requested_memory(quirk, catalogue):
    totals = []
    for line in catalogue[19]["rows"]:
        _, text, cpus, nodes = line.split("|")
        totals.append(quantities.total_memory_bytes(quantities.parse_memory(text), cpus=int(cpus), nodes=int(nodes)))
    assert totals == [32 << 30, 32 << 30, None, 250 << 30]
    assert len(quirk(19)[0]) == 4


def test_quirk_20_durations(quirk):
    rows, _ = quirk(20)
    assert {row["raw_id"]: row["elapsed_s"] for row in rows} == {"910160": 93_784, "910161": 1200, "910162": None}
    expression = quantities.duration_s("text")
    connection = table.connect()
    for text, seconds in (("3-00:15:10", 260_110), ("12:34.567", 754.567), ("00:00.013", 0.013), ("INVALID", None), ("", None)):
        (found,) = connection.execute(f"SELECT {expression} FROM (SELECT ? AS text)", [text]).fetchone()
        assert found == (seconds if seconds is None else pytest.approx(seconds)), text


def test_quirk_21_states_in_json(catalogue):
    states = [sacct_json.parse_state(json.loads(row)["state"]["current"]) for row in catalogue[21]["rows"]]
    assert states == [("PENDING", ("REQUEUED",)), ("COMPLETED", ())]


def test_quirk_22_wrapped_numbers(catalogue):
    limits = [sacct_json.number(json.loads(row)["time"]["limit"]) for row in catalogue[22]["rows"]]
    assert limits == [math.inf, 1440]


def test_quirk_25_epoch_times(quirk):
    (row,), _ = quirk(25)
    assert row["elapsed_s"] == 7200
    assert row["end"] - row["start"] == datetime.timedelta(hours=2)
    assert row["start"] == datetime.datetime(2026, 1, 5, 8, 0, 30)


def test_quirk_26_overlapping_days(quirk, catalogue, tmp_path):
    (row,), _ = quirk(26)
    assert row["end"].date() == datetime.date(2026, 1, 10)
    day = tmp_path / "again.txt"
    day.write_text("\n".join([catalogue[26]["header"], *catalogue[26]["rows"]]))
    rows, summary = reading.read(tmp_path / "sacct.txt", day)
    assert len(rows) == 1
    assert summary.skipped["duplicate"] == 1


def test_quirk_27_truncated_window(quirk):
    _, summary = quirk(27)
    assert summary.truncated_windows == 1
    assert any("-T" in note for note in summary.notes)


def test_quirk_29_renamed_field(quirk, catalogue, tmp_path):
    assert quirk(29)[0][0]["planned_s"] == 180
    renamed = catalogue[29]["header"].replace("Reserved", "Planned")
    rows, _ = reading.read_text(tmp_path, "\n".join([renamed, *catalogue[29]["rows"]]))
    assert rows[0]["planned_s"] == 180


def test_quirk_30_suspended(quirk):
    (row,), summary = quirk(30)
    assert (row["elapsed_s"], row["suspended_s"]) == (6 * 3600, 4 * 3600)
    assert row["end"] - row["start"] == datetime.timedelta(hours=10)
    assert summary.dst_suspects == 0


def test_quirk_32_at_the_limit(quirk):
    rows, _ = quirk(32)
    assert {row["raw_id"]: row["outcome"] for row in rows} == {"910250": "walltime", "910251": "success", "910252": "walltime"}


def test_quirk_34_exit_codes_that_mean_sigkill(quirk):
    rows, _ = quirk(34)
    assert [row["exit_signal"] for row in rows] == [9, 9, 9]
    assert {row["raw_id"]: row["exit_code"] for row in rows} == {"910270": 9, "910271": 137, "910272": 0}


def test_quirk_36_states_of_tomorrow(quirk):
    rows, summary = quirk(36)
    assert {row["state"]: row["outcome"] for row in rows} == {"LAUNCH_FAILED": "infrastructure", "SPECIAL_EXIT": "other"}
    assert rows[1]["elapsed_s"] == 1800
    assert summary.unknown_states == {"SPECIAL_EXIT": 1}


def test_quirk_38_end_of_the_parent_counts(quirk):
    (row,), _ = quirk(38)
    assert row["end"] == datetime.datetime(2026, 1, 14, 12)


def test_quirk_41_every_state_counts(quirk):
    assert node_hours(quirk(41)[0]) == 28


def test_quirk_42_queue_wait(quirk):
    (row,), _ = quirk(42)
    assert (row["start"] - row["eligible"]).total_seconds() == 1800
    assert (row["eligible"] - row["submit"]).total_seconds() == 72_000


def test_quirk_43_node_failure_then_pending(quirk):
    rows, summary = quirk(43)
    assert [(row["outcome"], row["failed_node"]) for row in rows] == [("infrastructure", "gpu017"), ("never_started", None)]
    assert rows[0]["elapsed_s"] == 9000
    assert "duplicate" not in summary.skipped


def test_quirk_44_restarts_beyond_the_rows(quirk):
    _, summary = quirk(44)
    assert summary.missing_history == 3
    assert any("Restarts" in note for note in summary.notes)


def test_quirk_46_revoked_deadline_boot_fail(quirk):
    rows, summary = quirk(46)
    assert {row["state"]: row["outcome"] for row in rows} == {"DEADLINE": "deadline", "BOOT_FAIL": "infrastructure"}
    assert summary.skipped == {"revoked": 1}


def test_quirk_47_start_after_end(quirk):
    rows, summary = quirk(47)
    assert all(row["start"] == row["end"] and row["elapsed_s"] == 0 for row in rows)
    assert {row["raw_id"]: row["outcome"] for row in rows} == {"910390": "infrastructure", "910391": "user_failure"}
    assert summary.clamped == 1


def test_quirk_49_resubmissions_keep_what_links_them(quirk):
    rows, _ = quirk(49)
    assert [row["outcome"] for row in rows] == ["walltime", "walltime", "success"]
    assert len({(row["user"], row["work_dir"]) for row in rows}) == 1
    assert all(later["submit"] > earlier["end"] for earlier, later in itertools.pairwise(rows))


def test_quirk_50_three_durations(quirk):
    (row,), _ = quirk(50)
    assert row["elapsed_s"] == 3600
    assert (row["end"] - row["submit"]).total_seconds() == 3635
