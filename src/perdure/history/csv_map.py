"""Any CSV into attempts, by a column map in TOML. Called by `importer` for ``--map``.

A map says for columns of the attempts table where they come from. It holds names, units and formats, never SQL, so that a map from
somebody else can do no harm. The maps in ``perdure/history/maps`` are worked examples, and can be named without a path.

::

    delimiter = ","                       # the default
    no_value = ["", "NULL"]               # texts that mean nothing is known
    [columns]
    job_id = "id"                         # short for { column = "id" }
    name = { join = ["user", "task"] }    # several columns, put together with -
    cluster = { constant = "eagle" }
    submit = { column = "t0", time = "epoch", unit = "ms", origin = "2023-01-01T00:00:00Z" }
    start = { column = "begin", time = "%m/%d/%Y %H:%M" }     # as strptime; "iso" is the default
    limit_s = { column = "wall", unit = "h" }                 # s (default), ms, min, h, d
    gpus = { product = ["num_gpu", "gpu_milli"], factor = 0.001 }
    ids_repeat = true                     # above [columns]: rows that share an id are different jobs, such as an array's tasks
    [states]                              # the source's words → Slurm's; others stay as they are, in capitals
    Succeeded = "COMPLETED"
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from perdure import errors
from perdure.history import convert, table
from perdure.history.rows import quoted
from perdure.history.sources import Source
from perdure.history.summary import FileSummary, Tally

if TYPE_CHECKING:
    import duckdb

_FIELD_OF = {
    "cluster": "cluster", "db_index": "dbindex", "job_id": "jobid", "raw_id": "jobidraw", "user": "user", "uid": "uid",
    "account": "account", "partition": "partition", "qos": "qos", "name": "jobname", "work_dir": "workdir", "submit_line": "submitline",
    "submit": "submit", "eligible": "eligible", "start": "start", "end": "end", "elapsed_s": "elapsedraw", "suspended_s": "suspended",
    "limit_s": "timelimitraw", "nodes": "allocnodes", "cpus": "alloccpus", "gpus": "gpus", "gpu_type": "gputype", "node_list": "nodelist",
    "state": "state", "exit_code": "exitcode", "failed_node": "failednode", "restarts": "restarts", "planned_s": "planned",
}  # fmt: skip
"""Column of the attempts table that a map may fill → canonical field."""
_TIMES = ("submit", "eligible", "start", "end")
_DURATIONS = ("elapsed_s", "suspended_s", "limit_s", "planned_s")
_WHOLE = ("db_index", "uid", "nodes", "cpus", "restarts")
_UNIT_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one column comes from: exactly one of `column`, `join`, `product` and `constant`."""

    column: str | None = None
    join: tuple[str, ...] = ()
    product: tuple[str, ...] = ()
    constant: str | int | float | None = None
    factor: float = 1.0
    unit: Literal["ms", "s", "min", "h", "d"] = "s"
    time: str = "iso"
    """``iso``, ``epoch`` or a strptime format."""
    origin: str | None = None
    """Instant, ISO 8601 UTC, from which ``epoch`` counts; default 1970."""


class ColumnMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column map, as its TOML file has it."""

    columns: dict[str, str | Entry]
    description: str = ""
    delimiter: str = ","
    no_value: tuple[str, ...] = ("",)
    states: dict[str, str] = {}
    ids_repeat: bool = False
    """Rows that share an id are different jobs, such as the tasks of an array: each gets a raw id of its own, ``id#1``, ``id#2`` …"""


def shipped() -> tuple[str, ...]:
    """Names of the maps that Perdure brings."""
    folder = resources.files("perdure.history").joinpath("maps")
    return tuple(sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml")))


def load(name: str) -> ColumnMap:
    """Load a map by the name of a shipped one, or from a TOML file.

    Raises `errors.InputMissing` when there is neither, `errors.InputFormat` for one that is malformed or names unknown columns.
    """
    if name in shipped():
        content = resources.files("perdure.history").joinpath("maps", f"{name}.toml").read_bytes()
    else:
        try:
            content = Path(name).read_bytes()
        except OSError as error:
            raise errors.InputMissing(
                f"map {name}: {(error.strerror or str(error)).lower()}", hint=f"give a TOML file, or one of: {', '.join(shipped())}"
            ) from error
    try:
        found = msgspec.toml.decode(content, type=ColumnMap)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.InputFormat(f"map {name}: {error}", hint="see the maps in perdure/history/maps for examples") from error
    _check(found, name)
    return found


def _check(found: ColumnMap, name: str) -> None:
    unknown = sorted(set(found.columns) - set(_FIELD_OF))
    if unknown:
        raise errors.InputFormat(f"map {name}: unknown column {unknown[0]!r}", hint=f"one of: {', '.join(_FIELD_OF)}")
    if "job_id" not in found.columns:
        raise errors.InputFormat(f"map {name}: it says nothing of job_id", hint="map the column that identifies a job")
    for column, entry in found.columns.items():
        if isinstance(entry, Entry):
            given = (entry.column is not None) + bool(entry.join) + bool(entry.product) + (entry.constant is not None)
            if given != 1:
                raise errors.InputFormat(f"map {name}: {column} needs exactly one of column, join, product and constant")
    if len(found.delimiter.encode()) not in range(1, 5):
        raise errors.InputFormat(f"map {name}: a delimiter has one to four bytes")


def read(connection: duckdb.DuckDBPyConnection, source: Source, options: convert.Options, mapping: ColumnMap) -> FileSummary:
    """Append the attempts of one CSV file to the table ``attempts``. Raises `errors.InputFormat` when mapped columns are missing."""
    import duckdb

    names = _header(source, mapping)
    missing = sorted(_used(mapping) - set(names))
    if missing:
        raise errors.InputFormat(
            f"{source.name}: a required field is missing: column {missing[0]!r}, which the map names",
            hint=f"its columns are: {', '.join(names)[:300]}",
        )
    fields = {_FIELD_OF[column]: _expression(column, entry, mapping, names) for column, entry in mapping.columns.items()}
    options = msgspec.structs.replace(options, slurm_ids=False)
    scan = _scan(source, mapping, names)
    if mapping.ids_repeat:
        everything = ", ".join(f"c{index}" for index in range(len(names)))
        scan = f"(SELECT *, row_number() OVER (PARTITION BY {fields['jobid']} ORDER BY {everything}) AS nth FROM {scan})"
        fields["jobidraw"] = f"concat({fields['jobid']}, '#', nth)"
    test = f"coalesce({convert.is_attempt(fields, slurm_ids=False)}, false)"
    query = convert.attempts(fields, scan, options, source=quoted(source.name), where=test)
    tally = Tally(header=1)
    try:
        for rejects in ("perdure_rejects", "perdure_reject_scans"):
            connection.execute(f"DROP TABLE IF EXISTS {rejects}")
        tally.attempts = table.append(connection, query)
        for line, text, why in connection.execute(
            "SELECT line, any_value(csv_line), any_value(error_type) FROM perdure_rejects GROUP BY line ORDER BY line"
        ).fetchall():
            tally.refuse(line, text or "", str(why).lower())
        others = _one(connection, f"SELECT count(*) FROM {scan} WHERE NOT {test}")
    except duckdb.InvalidInputException as error:
        raise errors.InputFormat(
            f"{source.name}: cannot be split as CSV with delimiter {mapping.delimiter!r}: {str(error).splitlines()[0][:200]}",
            hint="is the map's delimiter right?",
        ) from error
    if others:
        tally.skipped["no id or no state"] += others
    _count_lines(source, mapping, tally)
    return FileSummary.of(source.name, "csv", tally, unknown=[name for name in names if name not in _used(mapping)])


def _scan(source: Source, mapping: ColumnMap, names: list[str]) -> str:
    columns = ", ".join(f"'c{index}': 'VARCHAR'" for index in range(len(names)))
    return (
        f"read_csv({table.path_literal(source.path)}, delim = {quoted(mapping.delimiter)}, quote = '\"', escape = '\"', header = true,"
        f" auto_detect = false, strict_mode = false, columns = {{{columns}}}, store_rejects = true,"
        " rejects_table = 'perdure_rejects', rejects_scan = 'perdure_reject_scans', rejects_limit = 0)"
    )


def _header(source: Source, mapping: ColumnMap) -> list[str]:
    first = source.head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
    if len(mapping.delimiter) == 1:
        return [name.strip() for name in next(csv.reader([first], delimiter=mapping.delimiter), [])]
    return [name.strip() for name in first.split(mapping.delimiter)]


def _used(mapping: ColumnMap) -> set[str]:
    return {name for entry in mapping.columns.values() for name in _sources(entry)}


def _sources(entry: str | Entry) -> tuple[str, ...]:
    if isinstance(entry, str):
        return (entry,)
    return (entry.column,) if entry.column is not None else entry.join or entry.product


def _expression(column: str, entry: str | Entry, mapping: ColumnMap, names: list[str]) -> str:
    """SQL: the canonical text of one column."""
    entry = Entry(column=entry) if isinstance(entry, str) else entry
    nothing = ", ".join(quoted(text) for text in mapping.no_value) or "''"

    def cell(name: str) -> str:
        index = f"c{names.index(name)}"
        return f"CASE WHEN trim({index}) IN ({nothing}) THEN NULL ELSE trim({index}) END"

    if entry.constant is not None:
        text = quoted(str(entry.constant))
    elif entry.join:
        text = f"concat_ws('-', {', '.join(cell(name) for name in entry.join)})"
    elif entry.product:
        text = "(" + " * ".join(f"try_cast({cell(name)} AS DOUBLE)" for name in entry.product) + ")"
    else:
        text = cell(entry.column or "")
    return _shaped(column, text, entry, mapping)


def _shaped(column: str, text: str, entry: Entry, mapping: ColumnMap) -> str:
    number = f"try_cast({text} AS DOUBLE) * {entry.factor!r}"
    if column in _TIMES:
        return _time(text, entry)
    if column in _DURATIONS:
        # TimelimitRaw counts minutes, all other durations seconds.
        shaped = f"{number} * {_UNIT_S[entry.unit] / (60 if column == 'limit_s' else 1)!r}"
    elif column in _WHOLE:
        shaped = f"CAST(round({number}) AS BIGINT)"
    elif column == "gpus":
        shaped = number
    elif column == "exit_code":
        shaped = f"({text} || ':0')"
    elif column == "state":
        arms = " ".join(f"WHEN {quoted(word.lower())} THEN {quoted(state)}" for word, state in mapping.states.items())
        shaped = f"CASE lower({text}) {arms} ELSE upper({text}) END" if arms else f"upper({text})"
    else:
        shaped = text
    return f"CAST({shaped} AS VARCHAR)"


def _time(text: str, entry: Entry) -> str:
    if entry.time == "iso":
        return f"CAST({text} AS VARCHAR)"
    if entry.time == "epoch":
        scale = _UNIT_S[entry.unit]
        origin = f"epoch(TIMESTAMP {quoted((entry.origin or '1970-01-01T00:00:00').removesuffix('Z'))})"
        return f"CAST(CAST(try_cast({text} AS DOUBLE) * {scale!r} + {origin} AS BIGINT) AS VARCHAR)"
    return f"strftime(try_strptime({text}, {quoted(entry.time)}), '%Y-%m-%dT%H:%M:%S')"


def _count_lines(source: Source, mapping: ColumnMap, tally: Tally) -> None:
    """Count physical lines; those that are neither records nor rejects are blank, or lie within quotes."""
    with source.path.open("rb") as handle:
        tally.lines = sum(1 for _ in handle)
    rest = tally.lines - tally.header - tally.attempts - sum(tally.skipped.values()) - tally.unreadable
    if rest:
        tally.blank, tally.merged = _blank_and_merged(source, mapping)


def _blank_and_merged(source: Source, mapping: ColumnMap) -> tuple[int, int]:
    blank = merged = 0
    with source.path.open(encoding="utf-8", errors="replace", newline="") as text:
        reader = csv.reader(_limited(text), delimiter=mapping.delimiter[0])
        before = 0
        for row in reader:
            spread = reader.line_num - before
            before = reader.line_num
            if not row:
                blank += spread
            else:
                merged += spread - 1
    return blank, merged


def _limited(lines: Iterator[str]) -> Iterator[str]:
    """Lines shortened to what the csv module takes in one field; only their ends and quotes matter here."""
    limit = csv.field_size_limit()
    for line in lines:
        yield line if len(line) < limit else line[: limit // 2] + "\n"


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0
