"""The answer as one flat table, a row a workload: CSV for spreadsheets, Parquet for programs. Called by the command line.

In both an empty field means *not known* or *does not apply*, and ``inf`` is without bound. CSV is RFC 4180 in UTF-8; since
spreadsheets run text that begins like a formula, such text is given a leading apostrophe there (see `neutral`), and only
there: Parquet holds the names as they were. Text that is not valid Unicode has its bad bytes written as escapes.
"""

from __future__ import annotations

import csv
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from perdure.base import files
from perdure.model.advice import Advice, WorkloadAdvice

Value = str | int | float | bool | None


class TableColumn(msgspec.Struct, frozen=True):
    """One column of the flat table; `sql` is its DuckDB type."""

    name: str
    sql: str
    doc: str
    value: Callable[[WorkloadAdvice], Value]


_KNOWN = ("infrastructure", "preemption", "operator", "walltime", "user_failure")


def _interval(end: str) -> Callable[[WorkloadAdvice], Value]:
    return lambda row: None if row.mttf.interval is None else float(getattr(row.mttf.interval, end))


def _other(hours: Mapping[str, float]) -> float:
    return sum((value for cause, value in hours.items() if cause not in _KNOWN), 0.0)


def _interrupted(cause: str) -> Callable[[WorkloadAdvice], Value]:
    return lambda row: row.evidence.interruptions.get(cause, 0)


def _lost(cause: str) -> Callable[[WorkloadAdvice], Value]:
    return lambda row: row.evidence.lost_by_cause.get(cause, 0.0)


COLUMNS: tuple[TableColumn, ...] = (
    TableColumn("cluster", "VARCHAR", "cluster name", lambda row: row.evidence.key.cluster),
    TableColumn("user", "VARCHAR", "user name: untrusted text", lambda row: row.evidence.key.user),
    TableColumn("account", "VARCHAR", "account charged: untrusted text", lambda row: row.evidence.key.account),
    TableColumn("name", "VARCHAR", "job name, counters replaced by #: untrusted text", lambda row: row.evidence.key.name),
    TableColumn("size", "DOUBLE", "GPUs, or nodes for work without GPUs", lambda row: row.evidence.key.size.count),
    TableColumn("size_unit", "VARCHAR", "gpu or node; hours below are of this unit", lambda row: row.evidence.key.size.unit),
    TableColumn("verdict", "VARCHAR", "RETRY, RESUME, RESUME-REQUIRED, EITHER or NEITHER", lambda row: row.verdict.verdict.value),
    TableColumn("reason", "VARCHAR", "the verdict's reason", lambda row: row.verdict.reason),
    TableColumn("interval_minutes", "DOUBLE", "work between checkpoints when resuming", lambda row: row.verdict.resume.interval_minutes),
    TableColumn("jobs", "BIGINT", "jobs", lambda row: row.evidence.jobs),
    TableColumn("attempts", "BIGINT", "attempts", lambda row: row.evidence.attempts),
    TableColumn("interrupted_infrastructure", "BIGINT", "attempts ended by infrastructure", _interrupted("infrastructure")),
    TableColumn("interrupted_preemption", "BIGINT", "attempts ended by preemption", _interrupted("preemption")),
    TableColumn("interrupted_operator", "BIGINT", "attempts ended by an operator", _interrupted("operator")),
    TableColumn("interrupted_walltime", "BIGINT", "attempts ended by the wall-time limit", _interrupted("walltime")),
    TableColumn("interrupted_other", "BIGINT", "attempts ended by any other cause", lambda row: round(_other(row.evidence.interruptions))),
    TableColumn("mttf_minutes", "DOUBLE", "mean time to interruption of one job; inf: none seen", lambda row: row.mttf.minutes),
    TableColumn("mttf_low_minutes", "DOUBLE", "lower end of its interval", _interval("low")),
    TableColumn("mttf_high_minutes", "DOUBLE", "upper end of its interval", _interval("high")),
    TableColumn("mttf_level", "DOUBLE", "level of that interval, 0 to 1", _interval("level")),
    TableColumn("mttf_source", "VARCHAR", "bin, fit, prior or given", lambda row: row.mttf.source),
    TableColumn("mttf_extrapolated", "BOOLEAN", "no work of this size was observed", lambda row: row.mttf.extrapolated),
    TableColumn("allocated_hours", "DOUBLE", "hours allocated by all attempts", lambda row: row.evidence.gpu_hours),
    TableColumn("delivered_hours", "DOUBLE", "hours that ended in success", lambda row: row.evidence.delivered_gpu_hours),
    TableColumn(
        "destroyed_low_hours", "DOUBLE", "hours interruptions destroyed, at least", lambda row: row.evidence.destroyed_gpu_hours.low
    ),
    TableColumn(
        "destroyed_high_hours", "DOUBLE", "hours interruptions destroyed, at most", lambda row: row.evidence.destroyed_gpu_hours.high
    ),
    TableColumn("lost_infrastructure_hours", "DOUBLE", "hours of attempts ended by infrastructure", _lost("infrastructure")),
    TableColumn("lost_preemption_hours", "DOUBLE", "hours of attempts ended by preemption", _lost("preemption")),
    TableColumn("lost_operator_hours", "DOUBLE", "hours of attempts ended by an operator", _lost("operator")),
    TableColumn("lost_walltime_hours", "DOUBLE", "hours of attempts ended by the wall-time limit", _lost("walltime")),
    TableColumn("lost_user_failure_hours", "DOUBLE", "hours of attempts ended by the job's own failure", _lost("user_failure")),
    TableColumn("lost_other_hours", "DOUBLE", "hours of attempts ended by any other cause", lambda row: _other(row.evidence.lost_by_cause)),
    TableColumn("work_minutes", "DOUBLE", "W: uninterrupted run time of one job", lambda row: row.question.work_minutes),
    TableColumn("work_source", "VARCHAR", "completed, chain, limit or longest", lambda row: row.evidence.work_source),
    TableColumn("limit_minutes", "DOUBLE", "wall-time limit; inf: unlimited", lambda row: row.evidence.limit_minutes),
    TableColumn("queue_minutes", "DOUBLE", "median wait once eligible", lambda row: row.evidence.queue_minutes),
    TableColumn("deadline_minutes", "DOUBLE", "deadline", lambda row: row.question.deadline_minutes),
    TableColumn("user_failure_share", "DOUBLE", "share that ended by its own failure, 0 to 1", lambda row: row.evidence.user_failure_share),
    TableColumn("resubmissions", "BIGINT", "jobs that repeat an earlier one", lambda row: row.evidence.resubmissions),
    TableColumn("segments_at_limit", "BIGINT", "attempts at the limit that were continued", lambda row: row.evidence.segments_at_limit),
    TableColumn("resumes_itself", "BOOLEAN", "the application seems to checkpoint", lambda row: row.evidence.resumes_itself),
    TableColumn("checkpoint_cost_minutes", "DOUBLE", "C: assumed", lambda row: row.question.costs.checkpoint_cost_minutes),
    TableColumn("restore_cost_minutes", "DOUBLE", "R: assumed", lambda row: row.question.costs.restore_cost_minutes),
    TableColumn("fresh_cost_minutes", "DOUBLE", "R0: assumed", lambda row: row.question.costs.fresh_cost_minutes),
    TableColumn("downtime_minutes", "DOUBLE", "D: assumed, or read from the history", lambda row: row.question.costs.downtime_minutes),
    TableColumn(
        "retry_expected_minutes", "DOUBLE", "expected completion of one job; empty: never", lambda row: row.verdict.retry.expected_minutes
    ),
    TableColumn("retry_never_finishes", "BOOLEAN", "retrying never finishes", lambda row: row.verdict.retry.never_finishes),
    TableColumn(
        "resume_expected_minutes", "DOUBLE", "expected completion of one job; empty: never", lambda row: row.verdict.resume.expected_minutes
    ),
    TableColumn("resume_never_finishes", "BOOLEAN", "resuming never finishes", lambda row: row.verdict.resume.never_finishes),
    TableColumn("resume_chunks", "BIGINT", "K: pieces between which checkpoints are taken", lambda row: row.verdict.resume.chunks),
    TableColumn("retry_meets_deadline", "DOUBLE", "probability, 0 to 1", lambda row: row.verdict.retry.meets_deadline),
    TableColumn("resume_meets_deadline", "DOUBLE", "probability, 0 to 1", lambda row: row.verdict.resume.meets_deadline),
    TableColumn(
        "break_even_work_minutes", "DOUBLE", "W*: longer work pays for a checkpoint", lambda row: row.verdict.break_even.work_minutes
    ),
    TableColumn(
        "break_even_checkpoint_cost_minutes",
        "DOUBLE",
        "C_max: dearest checkpoint with which resuming wins",
        lambda row: row.verdict.break_even.checkpoint_cost_minutes,
    ),
    TableColumn(
        "break_even_mttf_minutes", "DOUBLE", "MTTF at which both ways cost the same", lambda row: row.verdict.break_even.mttf_minutes
    ),
    TableColumn("retry_lost_hours", "DOUBLE", "expected hours beyond the bare work, retrying", lambda row: row.retry_lost_gpu_hours),
    TableColumn("resume_lost_hours", "DOUBLE", "expected hours beyond the bare work, resuming", lambda row: row.resume_lost_gpu_hours),
    TableColumn("saved_hours", "DOUBLE", "retry_lost_hours − resume_lost_hours", lambda row: row.saved_gpu_hours),
    TableColumn("saved_money", "DOUBLE", "in the site's currency", lambda row: row.saved_money),
    TableColumn("settle_by", "VARCHAR", "with EITHER: the measurement that would settle it", lambda row: row.verdict.settle_by),
    TableColumn("warnings", "VARCHAR", "warnings, separated by ' | '", lambda row: " | ".join(row.verdict.warnings)),
)
"""The columns, in order; the documentation is generated from them. Hours are GPU-hours, or node-hours where `size_unit` is node."""

# What a spreadsheet takes for a formula: at the start of a field, and after a character at which a spreadsheet of
# another locale would split the line. Full-width forms count too (OWASP, "CSV Injection").
_STARTS = frozenset("=+-@\t\r\n＝＋－＠")
_SPLITS = re.compile(r"[;\t\r\n]")
_FORMULA = re.compile(r"(\A|[;\t\r\n])(?=[=+\-@\t\r\n＝＋－＠])")


def rows(advice: Advice) -> Iterator[dict[str, Value]]:
    """Yield one mapping a workload, in the advice's order, with exactly the names of `COLUMNS`; text is as it was in the history."""
    for workload in advice.workloads:
        yield {column.name: _plain(column.value(workload)) for column in COLUMNS}


def neutral(text: str) -> str:
    """Return `text` with an apostrophe before whatever a spreadsheet would run as a formula: a leading = + - @, tab or line end."""
    if text[:1] not in _STARTS and not _SPLITS.search(text):
        return text
    return _FORMULA.sub(r"\1'", text)


def write_csv(advice: Advice, path: str | os.PathLike[str]) -> None:
    """Write the table as CSV (RFC 4180, UTF-8, header line, CRLF), atomically, readable by its owner alone.

    Text that a spreadsheet would run is neutralised by `neutral`; numbers stay numbers. Raises `errors.OutputError`.
    """
    with files.replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\r\n")
        writer.writerow(column.name for column in COLUMNS)
        writer.writerows([_csv_field(value) for value in row.values()] for row in rows(advice))


def write_parquet(advice: Advice, path: str | os.PathLike[str]) -> None:
    """Write the table as Parquet with the types of `COLUMNS`, atomically, readable by its owner alone.

    Raises `errors.OutputError`, and `errors.MissingExtra` when DuckDB is not installed.
    """
    from perdure.history import table

    connection = table.connect()
    shape = ", ".join(f"\"{column.name}\": '{column.sql}'" for column in COLUMNS)
    with connection, files.replacing(path) as temporary, tempfile.TemporaryDirectory(prefix="perdure-") as folder:
        lines = Path(folder) / "rows.ndjson"
        with open(lines, "wb") as handle:
            handle.writelines(
                msgspec.json.encode({name: _json_value(value) for name, value in row.items()}) + b"\n" for row in rows(advice)
            )
        connection.execute("SET preserve_insertion_order = true")
        with table.os_errors():
            connection.execute(
                f"COPY (FROM read_json({_literal(lines, reading=True)}, format = 'newline_delimited', columns = {{{shape}}}))"
                f" TO {_literal(temporary)} (FORMAT parquet, COMPRESSION zstd)"
            )


def _plain(value: Value) -> Value:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    return None if isinstance(value, float) and math.isnan(value) else value


def _csv_field(value: Value) -> Value:
    if isinstance(value, str):
        return neutral(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def _json_value(value: Value) -> Value:
    """JSON has no infinity: DuckDB reads the word into a DOUBLE."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _literal(path: Path, *, reading: bool = False) -> str:
    """A path as an SQL string; where DuckDB reads, glob characters are escaped."""
    text = re.sub(r"([\[*?])", r"[\1]", str(path)) if reading else str(path)
    return "'" + text.replace("'", "''") + "'"
