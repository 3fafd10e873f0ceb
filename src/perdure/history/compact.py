"""Attempts as an analysis needs them: numbers and hashes, and of all text only what names a workload.

A file that is advised on at once is read straight into this form; a table of attempts is brought into it by the same expressions.
Called by `convert` for the readers, by `importer`, and by `runs`, which makes runs of it. Nothing else looks at attempts, so that
twenty million of them stay within memory.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from perdure.history import doubts, names, table, times
from perdure.model import attempt
from perdure.model.attempt import Outcome

if TYPE_CHECKING:
    import duckdb

ROWS = "compact_rows"
VIEW = "compact"
"""The rows with all columns of `COLUMNS`; those that no source fills are NULL."""

ENDING_TYPE = "ENUM(" + ", ".join(f"'{outcome.value}'" for outcome in sorted(Outcome)) + ")"
"""SQL type of outcomes and endings: a byte each, compared as numbers. In the order of the alphabet, so that they sort like text."""
ENDING_CODES: Mapping[str, int] = types.MappingProxyType({outcome.value: code for code, outcome in enumerate(sorted(Outcome))})
"""What `enum_code` makes of them: text that leaves the database is an object a row, a number is a byte."""

JKEY = "hash(coalesce(cluster, ''), coalesce(raw_id, job_id, concat(source, ':', line)))"
"""SQL for the key of an attempt's id."""

# A runaway record has no end: all that is known is that the job cannot have run longer than its limit.
_ELAPSED = "CASE WHEN runaway THEN limit_s ELSE greatest(coalesce(elapsed_s, 0), 0) END::BIGINT"
_NODES = "CASE WHEN coalesce(elapsed_s, 0) > 0 THEN coalesce(nodes, 1) ELSE coalesce(nodes, 0) END::BIGINT"
_MILLI_GPUS = "round(greatest(coalesce(gpus, 0), 0) * 1000)::BIGINT"
_COARSE = names.coarse_sql("coalesce(name, '')")
_KIN = f"hash(coalesce(cluster, ''), coalesce(\"user\", ''), coalesce(account, ''), {_COARSE})"


def kind_key(kin: str, partition: str, milli_gpus: str, nodes: str) -> str:
    """SQL: from a row to its workload: the hash that `runs` groups by before names are looked at closely."""
    size = f"CASE WHEN {milli_gpus} > 0 THEN {milli_gpus} ELSE {nodes} * 1000 END"
    return f"hash({kin}, coalesce({partition}, ''), {milli_gpus} > 0, {size})"


class Column(msgspec.Struct, frozen=True):
    """One column: its SQL type, its expression over the attempts table, and the columns of that without all of which it is NULL."""

    name: str
    sql: str
    expression: str
    needs: tuple[str, ...] = ()


COLUMNS: tuple[Column, ...] = (
    Column("cluster", "VARCHAR", "cluster", ("cluster",)),
    Column("user", "VARCHAR", '"user"', ("user",)),
    Column("account", "VARCHAR", "account", ("account",)),
    Column("partition", "VARCHAR", "partition", ("partition",)),
    Column("name", "VARCHAR", "name", ("name",)),
    Column("jkey", "UBIGINT", JKEY),
    # What a dependency has in common with its predecessor, and, with the size, what makes a workload before names are normalised.
    Column("kin", "UBIGINT", "kin"),
    Column("rk", "UBIGINT", kind_key("kin", "partition", "milli_gpus", "run_nodes")),
    Column("dir_hash", "UBIGINT", "CASE WHEN work_dir IS NOT NULL THEN hash(work_dir) END", ("work_dir",)),
    Column("preemption_class", "UBIGINT", "hash(coalesce(cluster, ''), partition, qos)"),
    Column("submit_s", "BIGINT", "epoch_us(submit) // 1000000", ("submit",)),
    Column("eligible_s", "BIGINT", "epoch_us(eligible) // 1000000", ("eligible",)),
    Column("start_s", "BIGINT", "epoch_us(start) // 1000000", ("start",)),
    Column(
        "end_s",
        "BIGINT",
        "CASE WHEN runaway OR (outcome IN ('censored', 'never_started') AND \"end\" IS NULL) THEN NULL"
        ' ELSE coalesce(epoch_us("end"), epoch_us(start) + (coalesce(elapsed_s, 0) + coalesce(suspended_s, 0)) * 1000000) // 1000000 END',
        ("start", "end"),
    ),
    Column("elapsed_s", "BIGINT", _ELAPSED),
    Column("limit_s", "DOUBLE", "limit_s", ("limit_s",)),
    Column("nodes", "BIGINT", "run_nodes"),
    Column("milli_gpus", "BIGINT", "milli_gpus"),
    Column("outcome", ENDING_TYPE, f"coalesce(try_cast(outcome AS {ENDING_TYPE}), 'other'::{ENDING_TYPE})"),
    Column("boot", "BOOLEAN", "state = 'BOOT_FAIL'", ("state",)),
    # Every option begins with two dashes: the word is rarer, and looked for first.
    Column(
        "signalled",
        "BOOLEAN",
        "CASE WHEN contains(submit_line, 'signal') THEN contains(submit_line, '--signal') WHEN submit_line IS NOT NULL THEN false END",
        ("submit_line",),
    ),
    Column("depends_on", "VARCHAR", "depends_on", ("depends_on",)),
    Column("het_job", "BIGINT", "het_job", ("het_job",)),
    Column("het_offset", "INTEGER", "het_offset", ("het_offset",)),
    Column("restarts", "INTEGER", "CASE WHEN raw_id IS NOT NULL THEN restarts END", ("restarts",)),
    # Of heterogeneous jobs that `runs` has made one row of; others are nodes and GPUs times time.
    Column("node_s", "BIGINT", "NULL", ("node_s",)),
    Column("gpu_ms", "BIGINT", "NULL", ("gpu_ms",)),
    Column("db_index", "BIGINT", "db_index", ("db_index",)),
    Column("same", "UBIGINT", f"CASE WHEN db_index IS NULL THEN hash({doubts.SAME}) END"),
    Column("has_end", "BOOLEAN", '"end" IS NOT NULL'),
    Column("line", "BIGINT", "line", ("line",)),
    Column("doubts", "UTINYINT", ""),
)

NO_NODES, CLOCK, RUNAWAY, MIDNIGHT, CUT_OFF = 1, 2, 4, 8, 16
"""Bits of `doubts`; the first and `RUNAWAY` are always set, the others for files that are read, and not for attempts that were
imported before."""
_ALWAYS_ASKED = {NO_NODES: "nodes IS NULL AND elapsed_s > 0", RUNAWAY: "runaway"}
_OF_FILES = frozenset({"db_index", "same", "has_end", "line"})
TYPES: Mapping[str, str] = types.MappingProxyType({column.name: column.sql for column in COLUMNS})
"""SQL types of the columns."""
ALWAYS = tuple(column.name for column in COLUMNS if not column.needs)
"""Columns that every source fills."""
_ATTEMPT_TYPES = {column.name: column.sql for column in attempt.COLUMNS}


def query(attempts: table.Query, *, tz: str) -> table.Query:
    """Return the query of the compact rows of `attempts`, whose times were printed in the zone `tz`."""
    zone = times.load_zone(tz)
    flags = {
        CLOCK: doubts.clock_change(zone),
        MIDNIGHT: doubts.MIDNIGHT,
        CUT_OFF: doubts.ARRAY_CUT_OFF,
    }
    return _query(attempts.sql, attempts.columns, _ALWAYS_ASKED | flags, leave_out=frozenset(), walls=doubts.walls(zone))


def is_there(connection: duckdb.DuckDBPyConnection) -> bool:
    """Tell whether files were read into compact rows, and those were not used up yet."""
    return bool(table.stored_columns(connection, ROWS))


def begin(connection: duckdb.DuckDBPyConnection) -> None:
    """Forget the compact rows that were read before."""
    connection.execute(f"DROP VIEW IF EXISTS {VIEW}; DROP TABLE IF EXISTS {ROWS}")


def take(connection: duckdb.DuckDBPyConnection, *, where: str) -> None:
    """Make compact rows of those attempts of the table ``attempts`` that fulfil `where`."""
    begin(connection)
    made = _query(f"FROM attempts {where}", [*_ATTEMPT_TYPES], _ALWAYS_ASKED, leave_out=_OF_FILES)
    connection.execute(f"CREATE TABLE {ROWS} AS {made.sql}")
    publish(connection)


def publish(connection: duckdb.DuckDBPyConnection) -> None:
    """Make all columns visible as the view ``compact``."""
    table.publish(connection, rows=ROWS, view=VIEW, kinds=TYPES)


def _query(sql: str, there: Collection[str], flags: dict[int, str], *, leave_out: frozenset[str], walls: str = "") -> table.Query:
    missing = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in _ATTEMPT_TYPES.items() if name not in there)
    everything = f"SELECT *{', ' if missing else ''}{missing} FROM ({sql})"
    # What several columns need is a level of its own, so that it is worked out once.
    shared = f"{_KIN} AS kin, {_MILLI_GPUS} AS milli_gpus, {_NODES} AS run_nodes, {doubts.RUNAWAY} AS runaway{walls and ', '}{walls}"
    everything = f"SELECT *, {shared} FROM ({everything})"
    marks = " + ".join(f"CASE WHEN {test} THEN {bit} ELSE 0 END" for bit, test in flags.items())
    filled = [
        column for column in COLUMNS if column.name not in leave_out and (not column.needs or not set(column.needs).isdisjoint(there))
    ]
    selected = ", ".join(f'({column.expression or marks})::{column.sql} AS "{column.name}"' for column in filled)
    return table.Query(tuple(column.name for column in filled), f"SELECT {selected} FROM ({everything})", ROWS, TYPES)
