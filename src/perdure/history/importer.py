"""From files to one table of attempts. Called by `perdure history import`, and by `advise` and `show` for files not imported before.

Every reader appends to the table ``attempts``; here the table is then made one record per attempt (day pulls overlap), looked
over for what would mislead an analysis, and summed up.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure import errors
from perdure.history import checks, classify, csv_map, sacct_json, sacct_text, sources, swf, table
from perdure.history.convert import Options
from perdure.history.summary import FileSummary, ImportSummary, Tally
from perdure.model.attempt import Outcome

if TYPE_CHECKING:
    import duckdb


class Request(msgspec.Struct, frozen=True):
    """What a caller says about the files beyond naming them."""

    cluster: str | None = None
    """Cluster of records that name none."""
    tz: str = "UTC"
    """IANA zone of times without an offset."""
    csv_map: str | None = None
    """Column map for CSV: a file, or the name of one that Perdure brings (`csv_map.shipped`)."""
    named_fields: tuple[str, ...] = ()
    """Fields of sacct text without a header, in order."""
    outcomes: Mapping[str, Outcome] = {}
    """State → outcome class, stronger than the built-in table."""
    columns: frozenset[str] | None = None
    """Columns of the attempts table that will be used; others stay NULL. None: all."""
    short_submit_lines: bool = False
    """Keep of submit lines only whether they ask for a signal (`convert.Options`): they are half of all text, and advice asks no more."""


def import_files(
    connection: duckdb.DuckDBPyConnection,
    paths: Sequence[str | os.PathLike[str]],
    request: Request = Request(),
    *,
    progress: Callable[[str, int], None] | None = None,
) -> ImportSummary:
    """Read all `paths` into a new table ``attempts`` and say what became of every line.

    `progress` is told the name of a file and the bytes of it that are done. Attempts files (Parquet) may be among the inputs.

    Raises `errors.InputError` and its kin for a file that cannot be used; the table then holds nothing of use.
    """
    if not paths:
        raise errors.UsageError("no files to import", hint="name one or more files, or /dev/stdin")
    table.begin(connection)
    table.add_columns(connection, ("job_id", "raw_id", "outcome", "source"))
    with table.room_errors():
        files = tuple(_read(connection, path, request, progress) for path in paths)
        table.publish(connection)
        duplicates = checks.drop_duplicates(connection)
        checks.expand_arrays(connection)
        return summarise(connection, files, request, duplicates)


def open_history(
    connection: duckdb.DuckDBPyConnection,
    path: str | os.PathLike[str],
    request: Request = Request(),
    *,
    progress: Callable[[str, int], None] | None = None,
) -> ImportSummary | None:
    """Make one history visible as ``attempts``: a view on an attempts file, or a table imported from any other format.

    Returns the import's summary, or None for an attempts file, which is opened without reading it.

    Raises `errors.InputError` and its kin.
    """
    if Path(path).is_file():
        with sources.opened(path) as source:
            if sources.detect(source) == "attempts":
                table.open_attempts(connection, source.path)
                return None
    return import_files(connection, [path], request, progress=progress)


def summarise(connection: duckdb.DuckDBPyConnection, files: Iterable[FileSummary], request: Request, duplicates: int) -> ImportSummary:
    """Sum up the table ``attempts`` and the files it came from."""
    files = tuple(files)
    skipped: Counter[str] = Counter()
    repaired: Counter[str] = Counter()
    for file in files:
        skipped.update(file.skipped)
        repaired.update(file.repaired)
    if duplicates:
        skipped["duplicate"] += duplicates
    found = checks.look_over(connection, tz=request.tz, known_states=[*classify.CLASS_OF, *request.outcomes])
    summary = ImportSummary(
        files=files,
        lines=sum(file.lines for file in files),
        attempts=found.attempts,
        repaired=dict(repaired),
        skipped=dict(skipped),
        unreadable=sum(file.unreadable for file in files),
        unaccounted=sum(file.unaccounted for file in files),
        unknown_states=found.unknown_states,
        dst_suspects=found.dst_suspects,
        runaway=found.runaway,
        clamped=found.clamped,
        missing_history=found.missing_history,
        truncated_windows=found.truncated_windows,
        truncated_arrays=found.truncated_arrays,
        censored=found.outcomes.get(Outcome.CENSORED, 0),
        outcomes=found.outcomes,
        bad_utf8=sum(file.bad_utf8 for file in files),
        notes=(),
    )
    return msgspec.structs.replace(summary, notes=tuple(checks.notes(summary)))


def _read(
    connection: duckdb.DuckDBPyConnection,
    path: str | os.PathLike[str],
    request: Request,
    progress: Callable[[str, int], None] | None,
) -> FileSummary:
    label = os.fspath(path)
    # What makes two records the same attempt is needed whatever is analysed.
    columns = None if request.columns is None else request.columns | _IDENTITY
    options = Options(
        cluster=request.cluster, tz=request.tz, outcomes=request.outcomes, columns=columns, short_submit_lines=request.short_submit_lines
    )
    report = None if progress is None else lambda done: progress(label, done)
    with sources.opened(path, progress=report) as source:
        kind = sources.detect(source)
        if request.csv_map is not None and kind == "text":
            return csv_map.read(connection, source, options, csv_map.load(request.csv_map))
        if kind == "attempts":
            return _append_attempts(connection, source)
        if kind == "json":
            return sacct_json.read(connection, source, options, progress=report)
        if kind == "swf":
            return swf.read(connection, source, options)
        return sacct_text.read(connection, source, options, named=request.named_fields or None, progress=report)


_IDENTITY = frozenset(
    {"cluster", "db_index", "job_id", "raw_id", "submit", "start", "end", "elapsed_s", "state", "outcome", "source", "line"}
)


def _append_attempts(connection: duckdb.DuckDBPyConnection, source: sources.Source) -> FileSummary:
    """Append an attempts file to the table."""
    count = table.append(connection, table.attempts_query(connection, source.path, name=source.name))
    return FileSummary.of(source.name, "attempts", Tally(lines=count, attempts=count))
