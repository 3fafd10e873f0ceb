"""The one conversion: canonical text fields → the columns of the attempts table, as an SQL query. Called by every reader.

Built from the fields that a source has: what is absent costs nothing and is NULL. The query has three levels, so that each text is
read once: `_typed` turns texts into values, `_derived` adds what depends on several of them, `_columns` are the attempts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from perdure.history import classify, compact, gpus, quantities, times
from perdure.history.table import Query
from perdure.model import attempt
from perdure.model.attempt import Outcome

CLAMPED = "START_AFTER_END"
"""State flag of an attempt whose start was recorded after its end."""


class Options(msgspec.Struct, frozen=True):
    """What a caller can say about a source that the source does not say itself."""

    cluster: str | None = None
    """Cluster of records that name none."""
    tz: str = "UTC"
    """Zone of times without an offset."""
    outcomes: Mapping[str, Outcome] = {}
    """State → class, stronger than `classify.CLASS_OF`."""
    for_analysis: bool = False
    """Whether compact rows are wanted instead of attempts."""
    slurm_ids: bool = True
    """Whether ids have Slurm's form, in which ``_``, ``+`` and ``.`` mean something."""


def is_attempt(fields: Mapping[str, str], *, slurm_ids: bool = True) -> str:
    """SQL: true for a row that becomes an attempt: a plausible job id that is no step's, a plausible state, not revoked."""
    ids = [fields[name] for name in ("jobid", "jobidraw") if name in fields]
    if not slurm_ids:
        return " AND ".join([*(f"{text} <> ''" for text in ids), *([f"{fields['state']} <> ''"] if "state" in fields else [])])
    # Ids start with a digit. A comparison looks at the first bytes only, a regular expression would cost as much as all the rest.
    # A step's id has a point in it; so has a list of array tasks that was cut off, within its brackets.
    tests = [f"{text} >= '0' AND {text} < ':' AND (NOT contains({text}, '.') OR contains({text}, '['))" for text in ids]
    if "state" in fields:
        state = fields["state"]
        tests.append(f"{state} >= 'A' AND {state} < '[' AND {state} <> '{classify.DROPPED}'")
    return " AND ".join(tests)


def reason(fields: Mapping[str, str], header: Mapping[str, str]) -> str:
    """SQL: why a row that is no attempt is none: ``header``, ``step``, ``revoked`` or ``unreadable``. `header`: field → its text."""
    ids = [name for name in ("jobid", "jobidraw") if name in fields]
    heads = " AND ".join(f"{fields[name]} = '{_quote(header[name])}'" for name in ids if name in header) or "false"
    text = fields[ids[0]]
    revoked = f"WHEN {fields['state']} = '{classify.DROPPED}' THEN 'revoked'" if "state" in fields else ""
    return (
        f"CASE WHEN {heads} THEN 'header' WHEN {text} >= '0' AND {text} < ':' AND contains({text}, '.') THEN 'step'"
        f" {revoked} ELSE 'unreadable' END"
    )


def attempts(
    fields: Mapping[str, str], relation: str, options: Options, *, source: str, line: str | None = None, where: str = "true"
) -> Query:
    """Return a query of those columns of the attempts table that `relation` can fill, or of compact rows (`Options.for_analysis`).

    `fields` maps canonical fields to SQL expressions of type VARCHAR over `relation`, NULL for a blank; `source` and `line` are
    expressions of their own.
    """
    typed = {**_typed(fields, options), "source": source, "line": line or "NULL"}
    wanted = {
        name: expression for name, expression in _columns(fields, options).items() if expression is not None and (name != "line" or line)
    }
    selected = ", ".join(
        f'TRY_CAST({wanted[column.name]} AS {column.sql}) AS "{column.name}"' for column in attempt.COLUMNS if column.name in wanted
    )
    inner = ", ".join(f"{expression} AS {name}" for name, expression in typed.items())
    derived = ", ".join(f"{expression} AS {name}" for name, expression in _derived(fields).items())
    sql = f"SELECT {selected} FROM (SELECT *, {derived} FROM (SELECT {inner} FROM {relation} WHERE {where}))"
    query = Query(tuple(column.name for column in attempt.COLUMNS if column.name in wanted), sql)
    return compact.query(query, tz=options.tz) if options.for_analysis else query


def _typed(fields: Mapping[str, str], options: Options) -> dict[str, str]:
    """First level: name → expression over the source's texts."""
    zone = times.load_zone(options.tz)

    def text(*names: str) -> str:
        """The first of `names` that is there."""
        there = [fields[name] for name in names if name in fields]
        return f"coalesce({', '.join(there)})" if len(there) > 1 else there[0] if there else "NULL::VARCHAR"

    def whole(*names: str) -> str:
        there = [f"try_cast({fields[name]} AS BIGINT)" for name in names if name in fields]
        return f"coalesce({', '.join(there)})" if there else "NULL::BIGINT"

    def moment(name: str) -> str:
        return times.timestamp(fields[name], zone) if name in fields else "NULL::TIMESTAMP"

    state = fields.get("state")
    return {
        "cluster_text": text("cluster"), "db_index": whole("dbindex"), "job_text": text("jobid", "jobidraw"),
        "raw_text": text("jobidraw", "jobid"), "uid_text": text("uid"), '"user"': text("user"), "account": text("account"),
        '"partition"': text("partition"), "qos": text("qos"), "name": text("jobname"), "work_dir": text("workdir"),
        "submit_line": text("submitline"), "submit": moment("submit"), "eligible": moment("eligible"), "start_at": moment("start"),
        "end_at": moment("end"), "elapsed_text_s": _elapsed(fields), "suspended": _suspended(fields),
        "limit_s": quantities.limit_s(fields.get("timelimitraw"), fields.get("timelimit")),
        "nodes_allocated": whole("allocnodes"), "nodes_named": whole("nnodes"), "cpus": whole("alloccpus", "ncpus"),
        "alloc_tres": text("alloctres"), "req_tres": text("reqtres"), "alloc_gres": text("allocgres"), "req_gres": text("reqgres"),
        "gpu_type_text": text("gputype"),
        "gpu_column": f"try_cast({fields['gpus']} AS DOUBLE)" if "gpus" in fields else "NULL::DOUBLE",
        "node_list": text("nodelist"), "state": classify.base_state(state) if state else "NULL::VARCHAR",
        "state_flags": text("stateflags"),
        "canceller": f"CASE WHEN {state} LIKE 'CANCELLED by %' THEN substr({state}, 14) END" if state else "NULL::VARCHAR",
        "exit_code": _exit_part(fields, 1), "signal": _exit_part(fields, 2),
        "failed_node": text("failednode"), "restarts": whole("restarts"), "planned": _planned(fields),
    }  # fmt: skip


def _exit_part(fields: Mapping[str, str], part: int) -> str:
    """ExitCode's code (1) or signal (2)."""
    if "exitcode" not in fields:
        return "NULL::INTEGER"
    text = fields["exitcode"]
    return f"CASE WHEN {text} = '0:0' THEN 0 ELSE try_cast(split_part({text}, ':', {part}) AS INTEGER) END"


def _elapsed(fields: Mapping[str, str]) -> str:
    parts = [f"try_cast({fields['elapsedraw']} AS DOUBLE)"] if "elapsedraw" in fields else []
    if "elapsed" in fields:
        parts.append(quantities.duration_s(fields["elapsed"]))
    return f"coalesce({', '.join(parts)})" if parts else "NULL::DOUBLE"


def _suspended(fields: Mapping[str, str]) -> str:
    if "suspended" not in fields:
        return "NULL::DOUBLE"
    text = fields["suspended"]
    return f"CASE WHEN {text} = '00:00:00' THEN 0 ELSE coalesce({quantities.duration_s(text)}, try_cast({text} AS DOUBLE)) END"


def _planned(fields: Mapping[str, str]) -> str:
    if "planned" not in fields:
        return "NULL::DOUBLE"
    text = fields["planned"]
    return f"coalesce({quantities.duration_s(text)}, try_cast({text} AS DOUBLE))"


def _derived(fields: Collection[str]) -> dict[str, str]:
    """Second level: name → expression over the names of `_typed`. The usual case comes first in each, and is the cheap one."""
    elapsed = "elapsed_text_s"
    if {"start", "end"} <= set(fields):
        span = "greatest(date_diff('second', start_at, end_at) - coalesce(suspended, 0), 0)"
        elapsed = f"CASE WHEN elapsed_text_s >= 0 THEN elapsed_text_s WHEN start_at IS NOT NULL AND end_at IS NOT NULL THEN {span} END"
    # Without Start, time consumed is the evidence of a start; without that too, any state but PENDING is.
    started = "start_at IS NOT NULL" if "start" in fields else f"(coalesce({elapsed}, 1) > 0 AND state IS DISTINCT FROM 'PENDING')"
    nodes = _nodes(fields, started)
    return {
        "elapsed_s": elapsed,
        "started": started,
        "nodes": nodes or "NULL::BIGINT",
        "exit_signal": _signal(),
        "alloc_gpus": gpus.tres_count("alloc_tres"),
    }


def _columns(fields: Collection[str], options: Options) -> dict[str, str | None]:
    """Third level: column of the attempts table → expression over the names of `_typed` and `_derived`, None for what cannot be known."""
    named = f"'{_quote(options.cluster)}'" if options.cluster is not None else None
    count, source, kind = _gpus(fields)
    array = "CASE WHEN contains(job_text, '_') THEN "
    het = "CASE WHEN contains(job_text, '+') THEN "

    def given(expression: str, *names: str) -> str | None:
        return expression if any(name in fields for name in names) else None

    return {
        "cluster": (f"coalesce(cluster_text, {named})" if named else "cluster_text") if "cluster" in fields else named,
        "db_index": given("CASE WHEN db_index > 0 THEN db_index END", "dbindex"),
        "job_id": "job_text",
        "raw_id": "raw_text",
        "array_job": f"{array} try_cast(split_part(job_text, '_', 1) AS BIGINT) END" if options.slurm_ids else None,
        "array_task": f"{array}try_cast(split_part(split_part(job_text, '_', 2), '+', 1) AS BIGINT) END" if options.slurm_ids else None,
        "het_job": f"{het} try_cast(split_part(job_text, '+', 1) AS BIGINT) END" if options.slurm_ids else None,
        "het_offset": f"{het} try_cast(split_part(job_text, '+', 2) AS INTEGER) END" if options.slurm_ids else None,
        "user": given('"user"', "user"),
        "uid": given("try_cast(uid_text AS BIGINT)", "uid"),
        "account": given("account", "account"),
        "partition": given('"partition"', "partition"),
        "qos": given("qos", "qos"),
        "name": given("name", "jobname"),
        "work_dir": given("work_dir", "workdir"),
        "submit_line": given("submit_line", "submitline"),
        "submit": given("submit", "submit"),
        "eligible": given("eligible", "eligible"),
        "start": given("CASE WHEN start_at > end_at THEN end_at ELSE start_at END", "start"),
        "end": given("end_at", "end"),
        "elapsed_s": "elapsed_s" if {"elapsedraw", "elapsed"} & set(fields) or {"start", "end"} <= set(fields) else None,
        "suspended_s": given("suspended", "suspended"),
        "limit_s": given("limit_s", "timelimitraw", "timelimit"),
        "nodes": given("nodes", "allocnodes", "alloctres", "nnodes"),
        "cpus": given("CASE WHEN started THEN cpus ELSE 0 END", "alloccpus", "ncpus"),
        "gpus": count,
        "gpu_source": source,
        "gpu_type": kind,
        "node_list": given("CASE WHEN node_list IN ('None assigned', '(null)') THEN NULL ELSE node_list END", "nodelist"),
        "state": given("state", "state"),
        # Slurm itself clamps a start that lies after the end; so does `start`, and says so here.
        "state_flags": given(
            f"CASE WHEN start_at > end_at THEN concat_ws(',', state_flags, '{CLAMPED}') ELSE state_flags END", "stateflags", "start"
        ),
        "canceller_uid": given("CASE WHEN canceller = 'root' THEN 0 ELSE try_cast(canceller AS BIGINT) END", "state"),
        "exit_code": given("exit_code", "exitcode"),
        "exit_signal": given("exit_signal", "exitcode"),
        "failed_node": given("failed_node", "failednode"),
        "restarts": given("restarts", "restarts"),
        "planned_s": given("planned", "planned"),
        "depends_on": given(_dependencies(), "submitline"),
        "outcome": classify.outcome(options.outcomes),
        "source": "source",
        "line": "line",
    }


def _nodes(fields: Collection[str], started: str) -> str | None:
    """Nodes allocated. NNodes falls back to what was *requested* for a job that never started, so it counts only for started ones."""
    there = []
    if "allocnodes" in fields:
        there.append("nullif(nodes_allocated, 0)")
    if "alloctres" in fields:
        there.append("try_cast(split_part(split_part(',' || alloc_tres, ',node=', 2), ',', 1) AS INTEGER)")
    if "nnodes" in fields:
        there.append("nodes_named")
    if "allocnodes" in fields:
        there.append("nodes_allocated")
    return f"CASE WHEN {started} THEN coalesce({', '.join(there)}) ELSE 0 END" if there else None


def _gpus(fields: Collection[str]) -> tuple[str | None, str | None, str | None]:
    """Count, source and model. Sources are tried in order of trust; each costs something only where the ones before say nothing."""
    ways = [
        ("gpus", "gpu_column", "column"),
        ("alloctres", "alloc_gpus", "alloc_tres"),
        ("allocgres", gpus.gres_count("alloc_gres", "nodes"), "gres"),
        ("reqtres", gpus.tres_count("req_tres"), "req_tres"),
        ("reqgres", gpus.gres_count("req_gres", "nodes"), "gres"),
        ("submitline", gpus.submit_line_count("submit_line", "nodes"), "submit_line"),
    ]
    there = [way for way in ways if way[0] in fields]
    if not there:
        return None, None, None
    count = f"CASE WHEN started THEN coalesce({', '.join(way[1] for way in there)}, 0) ELSE 0 END"
    arms = " ".join(f"WHEN ({expression}) > 0 THEN '{source}'" for _, expression, source in there)
    source = f"CASE WHEN NOT started THEN 'none' {arms} ELSE 'none' END"
    if "gputype" in fields:
        return count, source, "gpu_type_text"
    kinds = [gpus.tres_type(text) for field, text in (("alloctres", "alloc_tres"), ("reqtres", "req_tres")) if field in fields]
    return count, source, f"CASE WHEN started THEN coalesce({', '.join(kinds)}) END" if kinds else None


def _signal() -> str:
    """The signal recorded, or the one that a shell's code 128+n means. Slurm before 25.11 took 128 off, so that 137 shows as ``9:0``:
    9 alone is read so, as no program ends with that code by convention."""
    return (
        "CASE WHEN signal > 0 THEN signal WHEN exit_code BETWEEN 129 AND 192 THEN exit_code - 128 WHEN exit_code = 9 THEN 9 ELSE signal END"
    )


def _dependencies() -> str:
    """Job ids that ``--dependency`` or ``-d`` names; the delay in ``after:123+10`` is no id."""
    option = "regexp_extract(submit_line, '(?:--dependency[= ]|(?:^| )-d ?)((?:after|single|expand)[^ ]*)', 1)"
    ids = f"regexp_extract_all({option}, '[:,?]([0-9]+(?:_[0-9]+)?)', 1)"
    # One in another: both sides of an AND would be looked for in every line.
    return (
        "CASE WHEN contains(submit_line, 'after') THEN"
        f" CASE WHEN contains(submit_line, '-d') THEN nullif(array_to_string({ids}, ','), '') END END"
    )


def _quote(text: str) -> str:
    return text.replace("'", "''")
