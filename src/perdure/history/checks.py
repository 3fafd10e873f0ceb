"""What makes a table of attempts trustworthy: one record per attempt, and a look for what would mislead. Called by `importer`.

All of it is SQL over few columns of the table ``attempts``; a check that finds nothing costs one pass over what it reads.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.history import convert, doubts, fields, table, times
from perdure.history.summary import ImportSummary

if TYPE_CHECKING:
    import duckdb

MIDNIGHT_SHARE = 0.001
"""Share of starts at midnight sharp above which a window was cut: by chance it is 1/86400."""


class ArrayId(msgspec.Struct, frozen=True):
    """A pending array's summary id. `tasks` is None when the list was cut off, `throttle` when no %N is given."""

    job: int
    tasks: int | None
    throttle: int | None
    truncated: bool


def parse_array_id(text: str) -> ArrayId | None:
    """Read ``JOB_[LIST%MAX]``, LIST of N, N-M and N-M:STEP, such as ``123_[0-99:2%5]``. None for any other id."""
    match = re.fullmatch(r"(\d+)_\[([^\]%]*)(?:%(\d+))?(\])?.*", text, re.ASCII | re.DOTALL)
    if match is None:
        return None
    job, body, throttle, closed = match.groups()
    tasks = 0
    for part in body.split(","):
        span = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part, re.ASCII)
        if span is None:
            return ArrayId(int(job), None, int(throttle) if throttle else None, truncated=True)
        low, high, step = int(span[1]), int(span[2] or span[1]), int(span[3] or 1)
        tasks += max(0, (high - low) // max(step, 1) + 1)
    if closed is None:
        return ArrayId(int(job), None, int(throttle) if throttle else None, truncated=True)
    return ArrayId(int(job), tasks, int(throttle) if throttle else None, truncated=False)


def drop_duplicates(connection: duckdb.DuckDBPyConnection) -> int:
    """Keep the most final record of each attempt: day pulls repeat what runs over midnight. Returns how many were dropped.

    Whether there are any is found out first, from hashes of the keys alone.
    """
    if not _has_duplicates(connection):
        return 0
    total = _row(connection, f"SELECT count(*) FROM {table.ROWS}")[0]
    columns = ", ".join(f'"{name}"' for name in table.stored_columns(connection))
    connection.execute(
        f"CREATE OR REPLACE TABLE perdure_kept AS SELECT {columns} FROM attempts"
        f" QUALIFY row_number() OVER (PARTITION BY {doubts.SAME} ORDER BY {doubts.MOST_FINAL}) = 1"
    )
    connection.execute("DROP VIEW attempts")
    connection.execute(f"DROP TABLE {table.ROWS}")
    connection.execute(f"ALTER TABLE perdure_kept RENAME TO {table.ROWS}")
    table.publish(connection)
    return int(total) - int(_row(connection, "SELECT count(*) FROM attempts")[0])


def expand_arrays(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill `array_tasks` for the summary rows of pending arrays."""
    rows = connection.execute("SELECT DISTINCT job_id FROM attempts WHERE contains(job_id, '_[')").fetchall()
    known = [(parsed.tasks, text) for (text,) in rows if (parsed := parse_array_id(text)) is not None and parsed.tasks is not None]
    if known:
        table.add_columns(connection, ["array_tasks"])
        connection.executemany(f"UPDATE {table.ROWS} SET array_tasks = ? WHERE job_id = ?", known)
        table.publish(connection)


def _has_duplicates(connection: duckdb.DuckDBPyConnection) -> bool:
    if "db_index" in table.stored_columns(connection):
        # The database's own index, in one cluster: whole numbers are compared at a third of the price of the key.
        one, total, known, distinct = _row(
            connection,
            f"SELECT {'min(cluster) IS NOT DISTINCT FROM max(cluster)' if 'cluster' in table.stored_columns(connection) else 'true'},"
            f" count(*), count(db_index), count(DISTINCT db_index) FROM {table.ROWS}",
        )
        if one and total == known:
            return bool(distinct < total)
    total, distinct = _row(connection, f"SELECT count(*), count(DISTINCT hash({doubts.SAME})) FROM attempts")
    return distinct < total


class Found(msgspec.Struct, frozen=True):
    """What `look_over` found; the fields are those of `ImportSummary`."""

    attempts: int
    outcomes: dict[str, int]
    unknown_states: dict[str, int]
    dst_suspects: int
    runaway: int
    clamped: int
    missing_history: int
    truncated_windows: int
    truncated_arrays: int


def look_over(connection: duckdb.DuckDBPyConnection, *, tz: str, known_states: Sequence[str]) -> Found:
    """Look for what would mislead an analysis of the table ``attempts``. `tz` is the zone the times were printed in."""
    zone = times.load_zone(tz)
    groups = connection.execute(
        f"""
        SELECT outcome, state, count(*),
            count(*) FILTER ({doubts.clock_change(zone)}),
            count(*) FILTER ({doubts.RUNAWAY}),
            count(*) FILTER (contains(state_flags, '{convert.CLAMPED}')),
            count(*) FILTER ({doubts.MIDNIGHT}),
            count(start),
            count(*) FILTER (contains(job_id, '_[') AND array_tasks IS NULL),
            count(*) FILTER (restarts > 0)
        FROM (SELECT *, {doubts.walls(zone)} FROM attempts) GROUP BY outcome, state
        """
    ).fetchall()
    total, dst, runaway, clamped, midnight, starts, arrays, restarted = (sum(group[index] for group in groups) for index in range(2, 10))
    outcomes, states = _census(groups, 0), _census(groups, 1)
    return Found(
        attempts=total,
        outcomes=outcomes,
        unknown_states={state: count for state, count in states.items() if state not in known_states},
        dst_suspects=dst,
        runaway=runaway,
        clamped=clamped,
        missing_history=_missing_history(connection) if restarted else 0,
        truncated_windows=midnight if midnight > MIDNIGHT_SHARE * starts else 0,
        truncated_arrays=arrays,
    )


def _census(groups: Sequence[tuple[Any, ...]], index: int) -> dict[str, int]:
    """Rows by the value in place `index`, the most frequent first."""
    counts: Counter[str] = Counter()
    for group in groups:
        if group[index] is not None:
            counts[group[index]] += group[2]
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _missing_history(connection: duckdb.DuckDBPyConnection) -> int:
    """Attempts that Restarts counts beyond those in the table."""
    row = _row(
        connection,
        """
        SELECT coalesce(sum(missing), 0) FROM (
            SELECT max(restarts) - (count(*) - 1) AS missing FROM attempts
            WHERE raw_id IN (SELECT raw_id FROM attempts WHERE restarts > 0)
            GROUP BY cluster, raw_id HAVING max(restarts) > count(*) - 1)
        """,
    )
    return int(row[0])


def notes(summary: ImportSummary) -> Iterator[str]:
    """Yield what a person should know of an import, a sentence each, most important first."""
    yield from lacks(summary)
    for count, noun, rest in (
        (
            summary.missing_history,
            "earlier attempt",
            "missing from these files although Restarts counts it: pull with -D, or it was purged",
        ),
        (summary.truncated_windows, "attempt", "starting at midnight sharp, a truncated window: pull without -T"),
        (summary.dst_suspects, "attempt", "with times around a change of the clocks that may be off by an hour: pull with TZ=UTC"),
        (summary.runaway, "attempt", "running far beyond its limit, counted up to it and as censored: see sacctmgr show runawayjobs"),
        (summary.clamped, "attempt", "starting after its end: the start was set to the end"),
        (summary.truncated_arrays, "pending array", "with a list of tasks that was cut off: pull with SLURM_BITSTR_LEN=0"),
    ):
        if count:
            yield f"{count} {noun}{'s' if count > 1 else ''} {rest}."
    for file in summary.files:
        yield from (f"{file.name}: {note}" for note in file.notes)


def lacks(summary: ImportSummary) -> Iterator[str]:
    """Yield what is missing so that no analysis is possible, a sentence each; nothing when the import is good for advice."""
    pull = fields.pull_command("State", "Start", "End", "ElapsedRaw")
    missing = [set(file.missing_fields) for file in summary.files]
    if any("state" in names for names in missing):
        yield f"State is missing: how attempts ended is not known; pull it with: {pull}"
    if any("elapsedraw" in names and names & {"start", "end"} for names in missing):
        yield f"ElapsedRaw is missing, and Start or End too: how long attempts ran is not known; pull it with: {pull}"
    if summary.attempts == 0:
        steps = summary.skipped.get("step", 0)
        yield f"There are no attempts in these files{f', only {steps} steps: pull with -X' if steps else ''}."


def _row(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[int, ...]:
    row = connection.execute(query).fetchone()
    if row is None:
        raise AssertionError("an aggregate always has one row")
    return tuple(row)
