"""What in a simulated history breaks careless readers, counted. Called by `ledger`."""

from __future__ import annotations

from collections.abc import Callable

from perdure.history.simulate.jobs import Row

_TESTS: dict[str, Callable[[Row], bool]] = {
    "delimiter_in_name": lambda row: "|" in row.job.name,
    "bad_utf8": lambda row: "\udce9" in row.job.name,
    "unicode_name": lambda row: "训练" in row.job.name,
    "markup_name": lambda row: "<script>" in row.job.name,
    "formula_name": lambda row: row.job.name.startswith("="),
    "newline_in_submit_line": lambda row: "\n" in row.job.submit_line,
    "pending_array_summary": lambda row: bool(row.pending_tasks),
    "heterogeneous_component": lambda row: row.het_offset is not None,
    "array_task": lambda row: row.job.array_job is not None and not row.pending_tasks,
    "unlimited": lambda row: row.job.work.workload.limit_word == "UNLIMITED",
    "partition_limit": lambda row: row.job.work.workload.limit_word == "Partition_Limit",
    "suspended": lambda row: row.suspended_s > 0,
    "zero_elapsed_start": lambda row: row.start is not None and row.elapsed_s == 0,
    "never_started": lambda row: row.start is None,
    "cancelled_by": lambda row: row.canceller is not None,
    "requeued_attempt": lambda row: row.restarts > 0,
    "dependency": lambda row: row.job.depends_on is not None,
}


def count(rows: list[Row]) -> dict[str, int]:
    """Count the rows that show each quirk, planted or come about."""
    return {name: sum(map(test, rows)) for name, test in _TESTS.items()}
