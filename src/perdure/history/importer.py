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
from perdure.history import checks, classify, compact, compact_checks, csv_map, sacct_json, sacct_text, sources, swf, table
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
        found = checks.look_over(connection, tz=request.tz, known_states=[*classify.CLASS_OF, *request.outcomes])
        return summarise(files, found, duplicates)


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


def open_for_analysis(
    connection: duckdb.DuckDBPyConnection,
    path: str | os.PathLike[str],
    request: Request = Request(),
    *,
    progress: Callable[[str, int], None] | None = None,
) -> ImportSummary | None:
    """Make one history ready for `chains.build`: as the view ``attempts`` on an attempts file, or, of any other format, as compact rows.

    Returns the import's summary, which knows no states, or None for an attempts file, which is opened without reading it.

    Raises `errors.InputError` and its kin.
    """
    if Path(path).is_file():
        with sources.opened(path) as source:
            if sources.detect(source) == "attempts":
                table.open_attempts(connection, source.path)
                return None
    table.begin(connection)
    compact.begin(connection)
    with table.room_errors():
        file = _read(connection, path, request, progress, for_analysis=True)
        if not compact.is_there(connection):
            table.add_columns(connection, compact.ALWAYS, rows=compact.ROWS, kinds=compact.TYPES)
        compact.publish(connection)
        duplicates = compact_checks.drop_duplicates(connection)
        return summarise([file], compact_checks.look_over(connection), duplicates)


def summarise(files: Iterable[FileSummary], found: checks.Found, duplicates: int) -> ImportSummary:
    """Sum up what was `found` in a table of attempts and the files it came from."""
    files = tuple(files)
    skipped: Counter[str] = Counter()
    repaired: Counter[str] = Counter()
    for file in files:
        skipped.update(file.skipped)
        repaired.update(file.repaired)
    if duplicates:
        skipped["duplicate"] += duplicates
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
    *,
    for_analysis: bool = False,
) -> FileSummary:
    label = os.fspath(path)
    options = Options(cluster=request.cluster, tz=request.tz, outcomes=request.outcomes, for_analysis=for_analysis)
    report = None if progress is None else lambda done: progress(label, done)
    with sources.opened(path, progress=report) as source:
        kind = sources.detect(source)
        if request.csv_map is not None and kind == "text":
            return csv_map.read(connection, source, options, csv_map.load(request.csv_map))
        if kind == "attempts":
            return _append_attempts(connection, source, options)
        if kind == "json":
            return sacct_json.read(connection, source, options, progress=report)
        if kind == "swf":
            return swf.read(connection, source, options)
        return sacct_text.read(connection, source, options, named=request.named_fields or None, progress=report)


def _append_attempts(connection: duckdb.DuckDBPyConnection, source: sources.Source, options: Options) -> FileSummary:
    """Append an attempts file to the table, or the compact rows of it."""
    query = table.attempts_query(connection, source.path, name=source.name)
    count = table.append(connection, compact.query(query, tz=options.tz) if options.for_analysis else query)
    return FileSummary.of(source.name, "attempts", Tally(lines=count, attempts=count))
