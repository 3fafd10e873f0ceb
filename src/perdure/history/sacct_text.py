"""sacct's text into attempts. Called by `importer`.

DuckDB reads all lines that fit the header, in parallel and in bounded memory; the few that do not come back as rejects and are
put together in Python (`lines`), then go through the same conversion. Files that DuckDB cannot split at all (carriage returns
within fields, long delimiters) are put together in Python throughout. In the end every line of the file is in one count.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from perdure import errors
from perdure.history import compact, convert, fields, header, table, times
from perdure.history.lines import Assembler, Layout, Record, decode, encode
from perdure.history.sources import Source
from perdure.history.summary import FileSummary, Tally

if TYPE_CHECKING:
    import duckdb

_BATCH = 50_000
_PROGRESS_EVERY_S = 0.25
_DELIMITER_LIMIT_BYTES = 4
"""DuckDB's own limit."""
_QUOTED_CHARS = 40
"""Of a time that cannot be read."""
_REJECTS, _SCANS = "perdure_rejects", "perdure_reject_scans"


def read(
    connection: duckdb.DuckDBPyConnection,
    source: Source,
    options: convert.Options,
    *,
    named: Sequence[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> FileSummary:
    """Append the attempts of one file to the table ``attempts``. `named`: the fields of a file without header, in order.

    `progress` is told the bytes that have been read, from another thread.

    Raises `errors.InputFormat` or `errors.InputEmpty`, with what to do.
    """
    layout, skipped_lines = (header.given(named, source.head, source.name), 0) if named else header.find(source.head, source.name)
    reading = _Reading(connection, source, options, layout, skipped_lines)
    with _reporting(connection, source.size_bytes, progress):
        return reading.run()


@contextlib.contextmanager
def _reporting(connection: duckdb.DuckDBPyConnection, size_bytes: int, progress: Callable[[int], None] | None) -> Iterator[None]:
    """Ask DuckDB now and then how far its scan is."""
    if progress is None:
        yield
        return
    done = threading.Event()
    connection.execute("SET enable_progress_bar = true")
    connection.execute("SET enable_progress_bar_print = false")

    def watch() -> None:
        furthest = 0
        while not done.wait(_PROGRESS_EVERY_S):
            # It is -1 before and after, and starts again with every statement.
            furthest = max(furthest, int(connection.query_progress() / 100 * size_bytes))
            progress(furthest)

    watcher = threading.Thread(target=watch, name="perdure-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


class _Reading:
    """One file being read: what its steps share."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, source: Source, options: convert.Options, layout: Layout, skipped_lines: int
    ) -> None:
        self.connection, self.source, self.options = connection, source, options
        self.layout, self.skipped_lines = layout, skipped_lines
        self.tally = Tally()
        self.assembler = Assembler(layout, self.tally)
        # The first column of a name counts: a field asked for twice is printed twice.
        self.columns = {name: f"c{layout.names.index(name)}" for name in dict.fromkeys(layout.names) if name in fields.USED}
        self.label = _literal(source.name)
        self.times_there = self.times_unreadable = 0
        self.odd_time: str | None = None
        self.has_bad_bytes = False
        # A comment is known by its first cell, which is read for that where no field of ours is in it.
        self.first = "c0" if "c0" in self.columns.values() else "''"

    def run(self) -> FileSummary:
        counter = _LineCounter(self.source.path)
        counter.start()
        self.connection.begin()
        done = len(self.layout.delimiter) <= _DELIMITER_LIMIT_BYTES and self._read_bulk()
        counter.join()
        if done and not counter.has_odd_line_ends:
            self.connection.commit()
            bulk = self.tally.attempts
            self._mend_rejects()
            self._account(counter.lines - self.skipped_lines - bulk - self.assembler.lines_seen)
            if self.times_unreadable or self._lacks_times():
                self._count_times(self._scan("ignore_errors = true"))
        else:
            # DuckDB cannot split this file, or has taken a carriage return within a field for a line end: by our own rules then.
            self.connection.rollback()
            self.tally.attempts = 0
            self._append(self.assembler.records(self._numbered_lines()))
        self._judge_times()
        self.tally.lines = counter.lines
        self._account_for_the_top()
        return self._summary()

    def _scan(self, extra: str) -> str:
        layout = self.layout
        names = ", ".join(f"'c{index}': 'VARCHAR'" for index in range(layout.width))
        quote = '"' if layout.quoted else ""
        return (
            f"read_csv({table.path_literal(self.source.path)}, delim = {_literal(layout.delimiter.decode())}, quote = '{quote}',"
            f" escape = '{quote}', header = false, skip = {self.skipped_lines}, auto_detect = false, nullstr = '',"
            f" columns = {{{names}}}, {extra})"
        )

    def _read_bulk(self) -> bool:
        """Let DuckDB read every line that fits. Returns False when it cannot split the file."""
        import duckdb

        self._drop_rejects()
        scan = self._scan(f"store_rejects = true, rejects_table = '{_REJECTS}', rejects_scan = '{_SCANS}', rejects_limit = 0")
        query = convert.attempts(self.columns, scan, self.options, source=self.label, where=convert.is_attempt(self.columns))
        try:
            self.tally.attempts = table.append(self.connection, query)
        except duckdb.InvalidInputException:
            return False
        return True

    def _drop_rejects(self) -> None:
        for name in (_REJECTS, _SCANS):
            self.connection.execute(f"DROP TABLE IF EXISTS {name}")

    def _mend_rejects(self) -> None:
        """Put the lines that DuckDB refused together, run by run."""
        rows = self.connection.execute(
            f"SELECT line, min(line_byte_position) - 1, bool_or(error_type = 'INVALID ENCODING') FROM {_REJECTS}"
            " GROUP BY line ORDER BY 2, 1"
        ).fetchall()
        positions = [(int(line), int(offset)) for line, offset, _ in rows]
        self.has_bad_bytes = any(bad for _, _, bad in rows)
        self._drop_rejects()
        if positions:
            with self.source.path.open("rb") as handle:
                self._append(self._runs(handle, positions))

    def _runs(self, handle: BinaryIO, positions: list[tuple[int, int]]) -> Iterator[Record]:
        """Yield the records of all rejected lines; lines that follow each other, blank ones between them included, are one run."""
        index = 0
        while index < len(positions):
            before = _line_before(handle, positions[index][1])
            run, index = _run(handle, positions, index)
            yield from self.assembler.records(run, before)

    def _numbered_lines(self) -> Iterator[tuple[int, bytes]]:
        with self.source.path.open("rb") as handle:
            for number, line in enumerate(handle, 1):
                if number > self.skipped_lines:
                    yield number, _bare(line)

    def _append(self, records: Iterable[Record]) -> None:
        """Convert records in batches and append those that are attempts; count the others by reason."""
        iterator = iter(records)
        while batch := list(islice(iterator, _BATCH)):
            self._append_batch(batch)

    def _append_batch(self, batch: list[Record]) -> None:
        connection, columns = self.connection, self.columns
        replaced = [Record(record.line, record.replaces) for record in batch if record.replaces is not None]
        fresh = _count_dict(connection, self._register("perdure_batch", [r for r in batch if r.replaces is None]), self._kind())
        test = f"coalesce({convert.is_attempt(columns)}, false)"
        self._register("perdure_batch", batch)
        if replaced:
            self._remove(replaced)
        query = convert.attempts(columns, "perdure_batch", self.options, source=self.label, line="nullif(line, 0)", where=test)
        self.tally.attempts += table.append(connection, query)
        self._count_times("perdure_batch")
        connection.unregister("perdure_batch")
        self._count_kinds(fresh)

    def _kind(self) -> str:
        test = f"coalesce({convert.is_attempt(self.columns)}, false)"
        reason = convert.reason(self.columns, self._heads())
        return f"CASE WHEN {test} THEN 'attempt' WHEN starts_with({self.first}, '#') THEN 'comment' ELSE {reason} END"

    def _heads(self) -> dict[str, str]:
        pieces = self.layout.split(self.layout.heading) if self.layout.heading is not None else []
        texts = [piece.decode("utf-8", "replace") for piece in pieces] or [*self.layout.names]
        return {name: texts[self.layout.names.index(name)] for name in self.columns}

    def _count_kinds(self, kinds: dict[str, int]) -> None:
        for kind, count in kinds.items():
            if kind == "header":
                self.tally.header += count
            elif kind == "comment":
                self.tally.comment += count
            elif kind == "unreadable":
                self.tally.unreadable += count
            elif kind != "attempt":
                self.tally.skipped[kind] += count

    def _register(self, name: str, batch: list[Record]) -> str:
        """Make records visible to SQL as a table of the used columns and ``line``."""
        import numpy as np

        data = {}
        for column in self.columns.values():
            index = int(column[1:])
            data[column] = np.empty(len(batch), dtype=object)
            data[column][:] = [decode(record.cells[index]) or None for record in batch]
        self.connection.register(name, {**data, "line": np.array([record.line for record in batch], dtype=np.int64)})
        return name

    def _remove(self, replaced: list[Record]) -> None:
        """Take out the rows of records that a later line turned out to continue, one row for each."""
        self._register("perdure_replaced", replaced)
        query = convert.attempts(self.columns, "perdure_replaced", self.options, source=self.label, line="line")
        stored = set(table.stored_columns(self.connection, query.rows)) & set(query.columns)
        keys = [name for name in _SAME_ROW if name in stored]
        same = " AND ".join(f'a."{name}" IS NOT DISTINCT FROM r."{name}"' for name in keys)
        per_row = ", ".join(f'r."{name}"' for name in keys)
        deleted = self.connection.execute(
            f"DELETE FROM {query.rows} WHERE rowid IN (SELECT min(a.rowid) FROM {query.rows} a"
            f" JOIN ({query.sql}) r ON {same} GROUP BY {per_row}, r.line)"
        )
        self.tally.attempts -= _count(deleted)
        self._count_times("perdure_replaced", sign=-1)
        self.connection.unregister("perdure_replaced")

    def _account(self, remaining: int) -> None:
        """Say what became of the `remaining` lines that are neither attempts nor rejects: rows of other kinds, and blank lines."""
        if remaining == 0:
            return
        scan = self._scan("ignore_errors = true")
        kinds = _count_dict(self.connection, scan, self._kind(), touched=self.columns.values() if self.has_bad_bytes else ())
        kinds.pop("attempt", None)
        if sum(kinds.values()) != remaining:
            self.tally.blank += sum(not line.strip() for _, line in self._numbered_lines()) - self.assembler.blank_lines_seen
        if kinds.pop("unreadable", 0):
            self._mend_unreadable(scan)
        self._count_kinds(kinds)

    def _mend_unreadable(self, scan: str) -> None:
        """Mend rows whose job id or state is not in place: DuckDB lets one empty cell too many pass at the end of a line, and with it
        a delimiter within a field before."""
        cells = ", ".join(f"c{index}" for index in range(self.layout.width))
        found = self.connection.execute(f"SELECT {cells} FROM {scan} WHERE ({self._kind()}) = 'unreadable'")
        mended = []
        while rows := found.fetchmany(_BATCH):
            for row in rows:
                pieces = [encode(cell or "") for cell in row]
                record = self.assembler.mend(pieces)
                if record is None:
                    self.tally.refuse(None, decode(self.layout.delimiter.join(pieces)), "job id or state are not where the header has them")
                else:
                    mended.append(record)
        self._append(mended)

    def _lacks_times(self) -> bool:
        """Tell whether attempts that ran lack a time that the file has a field for. Most files have none such, and are not read again."""
        rows, end = (compact.ROWS, "has_end") if self.options.for_analysis else (table.ROWS, '"end" IS NOT NULL')
        stored = table.stored_columns(self.connection, rows)
        start = next((f"{name} IS NOT NULL" for name in ("start", "start_s") if name in stored), None)
        tests = [test for field, test in (("start", start), ("end", end)) if field in self.columns and test is not None]
        if not tests or "outcome" not in stored:
            return False
        ran = "outcome NOT IN ('censored', 'never_started')"
        return bool(self.connection.execute(f"SELECT 1 FROM {rows} WHERE {ran} AND NOT ({' AND '.join(tests)}) LIMIT 1").fetchall())

    def _count_times(self, relation: str, *, sign: int = 1) -> None:
        """Count the times of the attempts in `relation`, and those of them that cannot be read."""
        cells = [self.columns[name] for name in ("submit", "start", "end") if name in self.columns]
        if not cells:
            return
        zone = times.load_zone(self.options.tz)
        there = [times.is_there(cell) for cell in cells]
        odd = [f"({test} AND {times.timestamp(cell, zone)} IS NULL)" for cell, test in zip(cells, there, strict=True)]
        example = " ".join(f"WHEN {test} THEN {cell}" for cell, test in zip(cells, odd, strict=True))
        sums = ", ".join(f"coalesce(sum({' + '.join(f'{test}::INT' for test in tests)}), 0)" for tests in (there, odd))
        query = f"SELECT {sums}, min(CASE {example} END) FROM {relation} WHERE {convert.is_attempt(self.columns)}"
        ((count, unreadable, first),) = self.connection.execute(query).fetchall()
        self.times_there += sign * int(count)
        self.times_unreadable += sign * int(unreadable)
        self.odd_time = self.odd_time or first

    def _judge_times(self) -> None:
        """Note times that cannot be read. Raises `errors.InputFormat` when they are the most: what ran when is not known then."""
        if self.times_unreadable <= 0:
            return
        found = f"{self.times_unreadable:,} of {self.times_there:,} times cannot be read, such as {(self.odd_time or '')[:_QUOTED_CHARS]!r}"
        if self.times_unreadable * 2 > self.times_there:
            raise errors.InputFormat(
                f"{self.source.name}: {found}",
                hint="pull it again with the variable SLURM_TIME_FORMAT='%Y-%m-%dT%H:%M:%S', or write its times in this form",
            )
        self.tally.notes.append(f"{found}: they are left out")

    def _account_for_the_top(self) -> None:
        """Count the lines up to and including the header."""
        for line in islice(self.source.head.removeprefix(b"\xef\xbb\xbf").split(b"\n"), self.skipped_lines):
            if not line.strip():
                self.tally.blank += 1
            elif line.startswith(b"#"):
                self.tally.comment += 1
            else:
                self.tally.header += 1

    def _summary(self) -> FileSummary:
        tally, names = self.tally, self.layout.names
        missing = [field for field in _WANTED if field not in names and not any(other in names for other in _INSTEAD.get(field, ()))]
        unknown = [name for name in names if name not in fields.KNOWN]
        return FileSummary.of(self.source.name, "sacct text", tally, unknown=unknown, missing=missing)


_WANTED = (
    "jobidraw", "state", "submit", "start", "end", "elapsedraw", "timelimitraw", "allocnodes", "alloctres", "exitcode", "user", "account",
    "jobname",
)  # fmt: skip
"""Fields whose absence a summary mentions, each of which some analysis uses."""
_INSTEAD = {
    "jobidraw": ("jobid",),
    "elapsedraw": ("elapsed",),
    "timelimitraw": ("timelimit",),
    "allocnodes": ("nnodes", "alloctres"),
    "alloctres": ("allocgres",),
}
"""What does instead."""


_SAME_ROW = (
    "job_id", "raw_id", "submit", "start", "end", "state", "name", "source", "jkey", "submit_s", "start_s", "end_s", "outcome"
)  # fmt: skip
"""Columns of attempts and of compact rows by which the row of a record is found again."""


class _LineCounter(threading.Thread):
    """Counts a file's lines beside the reading of it: the independent figure that every other count must add up to."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="perdure-line-counter", daemon=True)
        self._path = path
        self.lines = 0
        self.has_odd_line_ends = False
        """Carriage returns that are not those of a file whose every line ends with CR LF."""

    def run(self) -> None:
        import numpy as np

        size = 1 << 18
        buffer = bytearray(size)
        view, hits = np.frombuffer(buffer, np.uint8), np.empty(size, bool)
        returns = pairs = 0
        last = 10
        with self._path.open("rb", buffering=0) as handle:
            while count := handle.readinto(buffer):
                np.equal(view[:count], 10, out=hits[:count])
                self.lines += int(np.count_nonzero(hits[:count]))
                # Most files have none at all, and looking for one is five times as fast as counting.
                if last == 13 or buffer.find(b"\r", 0, count) >= 0:
                    returns += buffer.count(b"\r", 0, count)
                    pairs += buffer.count(b"\r\n", 0, count) + (last == 13 and buffer[0] == 10)
                last = buffer[count - 1]
        self.lines += last != 10
        self.has_odd_line_ends = returns > 0 and not (returns == pairs and pairs >= self.lines - 1)


def _run(handle: BinaryIO, positions: list[tuple[int, int]], index: int) -> tuple[list[tuple[int, bytes]], int]:
    """Read the rejected lines from `index` on that follow each other. Returns them and the index after."""
    number, offset = positions[index]
    handle.seek(offset)
    run: list[tuple[int, bytes]] = []
    pending: list[tuple[int, bytes]] = []
    while index < len(positions):
        if positions[index][1] < handle.tell() and run:
            # A blank line before it has been read with it.
            index += 1
            continue
        if positions[index][1] != handle.tell():
            break
        index += 1
        while line := handle.readline():
            pending.append((number + len(run) + len(pending), _bare(line)))
            if line.strip():
                break
        run += pending
        pending = []
    return run, index


def _line_before(handle: BinaryIO, offset: int) -> bytes | None:
    """The line that ends where `offset` is, or None at the top of the file or for a line too long to look at."""
    start = max(0, offset - (1 << 16))
    handle.seek(start)
    lines = handle.read(offset - start).split(b"\n")
    if len(lines) < 2 or (start > 0 and len(lines) == 2):
        return None
    return _bare(lines[-2])


def _bare(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _count(result: duckdb.DuckDBPyConnection) -> int:
    row = result.fetchone()
    return int(row[0]) if row else 0


def _count_dict(connection: duckdb.DuckDBPyConnection, relation: str, kind: str, *, touched: Iterable[str] = ()) -> dict[str, int]:
    """Count rows by kind. DuckDB checks the encoding of the columns that a query reads: `touched` are read for that alone, so that
    the same lines are refused as before."""
    extra = ", ".join(["0", *touched])
    rows = connection.execute(f"SELECT {kind}, count(*), max(hash({extra})) FROM {relation} GROUP BY 1").fetchall()
    return {str(name): int(count) for name, count, _ in rows}


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
