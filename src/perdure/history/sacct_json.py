"""`sacct --json` into attempts: data parsers 0.0.38 to 0.0.45, one job at a time in bounded memory. Called by `importer`.

A job becomes the same canonical texts that sacct prints, and goes through the same conversion. Documents may follow each other
in one file, as day pulls that were concatenated do; a bare array of jobs and one job a line are read too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perdure import errors
from perdure.history import classify, convert, rows
from perdure.history.json_stream import JsonStream
from perdure.history.sources import Source
from perdure.history.summary import FileSummary, Tally

if TYPE_CHECKING:
    import duckdb

FIELDS = (
    "cluster", "jobid", "jobidraw", "user", "account", "partition", "qos", "submit", "eligible", "start", "end", "elapsedraw", "suspended",
    "timelimitraw", "state", "stateflags", "exitcode", "allocnodes", "alloccpus", "alloctres", "reqtres", "nodelist", "failednode",
    "restarts", "planned", "workdir", "submitline", "jobname",
)  # fmt: skip
_PARSERS = range(38, 46)
_NO_VALUE = 2**63
"""Counts from here on mean that Slurm has no value (NO_VAL64)."""
_PROGRESS_EVERY = 1000


def read(
    connection: duckdb.DuckDBPyConnection, source: Source, options: convert.Options, *, progress: Callable[[int], None] | None = None
) -> FileSummary:
    """Append the attempts of one JSON file to the table ``attempts``. Raises `errors.InputFormat` for JSON that is not sacct's."""
    tally = Tally()
    with source.path.open("rb") as handle:
        stream = JsonStream(handle, source.name)
        records = _records(stream, tally, progress)
        rows.append(connection, records, FIELDS, options, source=source.name, tally=tally)
    if tally.lines == 0 and not stream.saw_jobs:
        raise errors.InputFormat(
            f"{source.name}: JSON, but not of sacct: it has no jobs", hint="write it with: sacct -a -D --json > jobs.json"
        )
    for meta in stream.others:
        tally.notes += [note for note in _notes(meta) if note not in tally.notes]
    tally.bad_utf8 = stream.bad_utf8
    return FileSummary.of(source.name, "sacct json", tally)


def _records(stream: JsonStream, tally: Tally, progress: Callable[[int], None] | None) -> Iterator[rows.Record]:
    for number, job in enumerate(stream.jobs(), 1):
        tally.lines += 1
        if progress is not None and number % _PROGRESS_EVERY == 0:
            progress(stream.bytes_read)
        yield number, canonical(job) if isinstance(job, dict) else {}


def canonical(job: Mapping[str, Any]) -> dict[str, str]:
    """Turn one job of any data parser into canonical texts. Keys that are missing, null or of another type are blank."""
    times = _dict(job, "time")
    tres = _dict(job, "tres")
    base, flags = _stored_state(*parse_state(_dict(job, "state").get("current")), times)
    allocated = _tres(tres.get("allocated"))
    canceller = _text(job.get("kill_request_user"))
    limit = number(times.get("limit"))
    return {
        "cluster": _text(job.get("cluster")),
        "jobid": _job_id(job),
        "jobidraw": _count(job.get("job_id")),
        "user": _text(job.get("user")) or _text(_dict(job, "association").get("user")),
        "account": _text(job.get("account")) or _text(_dict(job, "association").get("account")),
        "partition": _text(job.get("partition")),
        "qos": _text(job.get("qos")),
        **{
            field: _count(times.get(key))
            for field, key in (("submit", "submission"), ("eligible", "eligible"), ("start", "start"), ("end", "end"))
        },
        "elapsedraw": _count(times.get("elapsed")),
        "suspended": _count(times.get("suspended")),
        "timelimitraw": "UNLIMITED" if limit == float("inf") else "" if limit is None else f"{limit:g}" if limit % 1 else str(int(limit)),
        "state": f"CANCELLED by {canceller}" if base == "CANCELLED" and canceller else base,
        "stateflags": ",".join(flags),
        "exitcode": _exit(_dict(job, "exit_code")),
        "allocnodes": _count(job.get("allocation_nodes")),
        "alloccpus": allocated.get("cpu", ""),
        "alloctres": ",".join(f"{name}={count}" for name, count in allocated.items()),
        "reqtres": ",".join(f"{name}={count}" for name, count in _tres(tres.get("requested")).items()),
        "nodelist": _text(job.get("nodes")),
        "failednode": _text(job.get("failed_node")),
        "restarts": _count(job.get("restart_cnt")),
        "planned": _count(times.get("planned")),
        "workdir": _text(job.get("working_directory")),
        "submitline": _text(job.get("submit_line")),
        "jobname": _text(job.get("name")),
    }


def number(value: Any) -> float | None:
    """Read a number in any data parser's form: plain, or ``{set, infinite, number}``. None when it is not set, inf when infinite."""
    if isinstance(value, dict):
        if value.get("infinite"):
            return float("inf")
        return number(value.get("number")) if value.get("set", True) else None
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _NO_VALUE else None


def parse_state(current: Any) -> tuple[str, tuple[str, ...]]:
    """Split a state, text or list, into the base state and its flags: ``["PENDING", "REQUEUED"]`` → PENDING and REQUEUED."""
    words = [word for word in (current if isinstance(current, list) else [current]) if isinstance(word, str) and word]
    base = next((word for word in words if word in _BASE_STATES), words[0] if words else "")
    return base, tuple(word for word in words if word != base)


def _stored_state(base: str, flags: tuple[str, ...], times: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The state that slurmdbd stored: for a run that was requeued or resized, and for a revoked sibling, it is the flag alone.

    Such a record has no base state, which data parsers from 0.0.40 on show as PENDING. A job that waits for its next run has the
    flag too, and has not run.
    """
    if base != "PENDING":
        return base, flags
    has_run = bool(number(times.get("elapsed")) or (number(times.get("start")) and number(times.get("end"))))
    stored = next((flag for flag in flags if flag == classify.DROPPED or (has_run and flag in _RUN_ENDS)), None)
    return (base, flags) if stored is None else (stored, tuple(flag for flag in flags if flag != stored))


_RUN_ENDS = frozenset({"REQUEUED", "RESIZING"})
"""Flags with which slurmdbd ends the record of a run whose job goes on."""

_BASE_STATES = frozenset(classify.CLASS_OF) - {
    "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "STAGE_OUT",
    "STOPPED", "LAUNCH_FAILED", "RECONFIG_FAIL",
}  # fmt: skip


def _job_id(job: Mapping[str, Any]) -> str:
    own = _count(job.get("job_id"))
    array, het = _dict(job, "array"), _dict(job, "het")
    leader = number(array.get("job_id"))
    if leader:
        task = number(array.get("task_id"))
        pending = _text(array.get("task"))
        if task is not None:
            return f"{leader:.0f}_{task:.0f}"
        if pending:
            return f"{leader:.0f}_[{pending}]"
    first = number(het.get("job_id"))
    if first:
        return f"{first:.0f}+{number(het.get('job_offset')) or 0:.0f}"
    return own


def _exit(code: Mapping[str, Any]) -> str:
    signal = _dict(code, "signal")
    sent = number(signal.get("id", signal.get("signal_id"))) or 0
    return f"{number(code.get('return_code')) or 0:.0f}:{sent:.0f}"


def _tres(items: Any) -> dict[str, str]:
    """A TRES list as type[/name] → count; counts without a value are left out."""
    found = {}
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, dict):
            continue
        count = number(item.get("count"))
        name = _text(item.get("name"))
        if count is not None and 0 <= count < _NO_VALUE:
            found[f"{_text(item.get('type'))}/{name}" if name else _text(item.get("type"))] = f"{count:.0f}"
    return found


def _dict(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> str:
    found = number(value)
    return "" if found is None or found == float("inf") else f"{found:.0f}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _notes(meta: Mapping[str, Any]) -> Iterator[str]:
    plugin = _dict(_dict(meta, "meta"), "plugin")
    found = re.search(r"v0\.0\.(\d+)", f"{plugin.get('data_parser', '')} {plugin.get('type', '')}", re.ASCII)
    if found and int(found[1]) not in _PARSERS:
        yield f"data parser v0.0.{found[1]} is not one that this version knows; what it renamed is blank"
    for error in meta.get("errors") or []:
        text = error.get("description") or error.get("error") if isinstance(error, dict) else error
        yield f"sacct reported an error: {str(text)[:200]}"
