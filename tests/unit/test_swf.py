"""Standard Workload Format: columns, missing values, statuses, comments."""

from __future__ import annotations

import datetime

import pytest
import reading

COMMENTS = "; Version: 2.2\n; UnixStartTime: 1000000000\n; MaxNodes: 128\n; MaxProcs: 128\n"


def line(job=1, *, submit=0, wait=10, run=3600, status=1, limit=7200, preceding=-1):
    return f"{job} {submit} {wait} {run} 16 -1 -1 16 {limit} -1 {status} 3 2 7 1 0 {preceding} -1"


def test_a_job(tmp_path):
    (row,), summary = reading.read_text(tmp_path, f"{COMMENTS}\n   {line()}\n")
    epoch = datetime.datetime(2001, 9, 9, 1, 46, 40)
    assert row["submit"] == epoch
    assert (row["start"], row["end"]) == (epoch + datetime.timedelta(seconds=10), epoch + datetime.timedelta(seconds=3610))
    assert (row["elapsed_s"], row["limit_s"], row["nodes"], row["cpus"]) == (3600, 7200, 16, 16)
    assert (row["user"], row["account"], row["name"], row["outcome"], row["gpus"]) == ("user3", "group2", "executable7", "success", 0)
    assert (summary.files[0].format, summary.files[0].comment, summary.files[0].blank) == ("swf", 4, 1)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(0, "user_failure"), (1, "success"), (2, "requeued"), (3, "success"), (4, "user_failure"), (5, "user_cancel"), (9, "other")],
)
def test_statuses(tmp_path, status, outcome):
    (row,), _ = reading.read_text(tmp_path, COMMENTS + line(status=status) + "\n")
    assert row["outcome"] == outcome


def test_missing_values_and_dependencies(tmp_path):
    content = COMMENTS + line(1, run=-1, wait=-1, status=5, limit=-1) + "\n" + line(2, preceding=1) + "\n"
    rows, _ = reading.read_text(tmp_path, content)
    never, after = sorted(rows, key=lambda row: row["raw_id"])
    assert (never["start"], never["limit_s"], never["outcome"], never["elapsed_s"]) == (None, None, "never_started", 0)
    assert after["depends_on"] == "1"


def test_lines_that_are_none_are_counted_and_a_missing_epoch_is_noted(tmp_path):
    rows, summary = reading.read_text(tmp_path, line() + "\n" * 2 + "\n".join([line(2)] * 24) + "\n1 2 3\n" + line(3) + " 5\n")
    assert len(rows) == 2
    assert summary.unreadable == 2
    assert "UnixStartTime" in summary.files[0].notes[0]
