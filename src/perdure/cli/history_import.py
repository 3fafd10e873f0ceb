"""`perdure history import`: accounting files into one table of attempts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from rich.table import Table

from perdure import errors
from perdure.base.files import refuse_same
from perdure.cli import console

if TYPE_CHECKING:
    from perdure.history.summary import FileSummary, ImportSummary


def import_(
    files: Annotated[list[str], Parameter(help="Files to read, in any mix of formats; /dev/stdin too.", negative="")],
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Attempts file (Parquet) to write.")],
    cluster: Annotated[str | None, Parameter(help="Cluster of records that name none.")] = None,
    tz: Annotated[str | None, Parameter(help="Time zone of times without an offset, such as Europe/Berlin; default UTC.")] = None,
    map_: Annotated[
        str | None,
        Parameter(name="--map", help="Column map for CSV: a TOML file, or nrel-eagle, philly, alibaba-gpu2023 or lanl-failures."),
    ] = None,
    fields: Annotated[str | None, Parameter(help="Fields of sacct text without a header, in order, separated by commas.")] = None,
    outcome: Annotated[
        list[str] | None,
        Parameter(help="Count a state as an outcome class, such as SPECIAL_EXIT=user_failure; may be repeated.", negative=""),
    ] = None,
    memory_limit: Annotated[str | None, Parameter(help="Memory that reading may use; beyond it, disk is used.")] = None,
    threads: Annotated[str | None, Parameter(help="Threads for reading.")] = None,
    common: console.Common = console.Common(),
) -> None:
    """Read a cluster's accounting history into an attempts file.

    Reads sacct -P or -p text in any field order, sacct --json, Standard Workload Format, CSV through a column map, and attempts
    files; plain or compressed by gzip, xz, zstd or bzip2. Every line is accounted for: the summary says what was read, repaired
    and skipped, and what the history cannot tell.

    For example:

      perdure history import sacct-2026-*.txt.gz --cluster alpha --tz Europe/Berlin -o attempts.parquet

      perdure history import eagle.csv --map nrel-eagle -o eagle.parquet

    Exit status 3 when the file was written and something that every advice needs is missing.
    """
    from perdure.history import checks, classify, importer, table

    values = console.load_settings(common, cluster=cluster, tz=tz, memory_limit=memory_limit, threads=threads)
    request = importer.Request(
        cluster=values["cluster"].value,
        tz=values["tz"].value or "UTC",
        csv_map=map_,
        named_fields=tuple(name.strip() for name in fields.split(",")) if fields else (),
        outcomes=classify.parse_overrides(_pairs(outcome or [])),
    )
    refuse_same(output, *files)
    connection = table.connect(memory_limit=str(values["memory-limit"].value), threads=console.threads(values))
    total = sum(os.path.getsize(file) for file in files if os.path.isfile(file))
    with console.progress(common, "reading", float(total) or None) as advance:
        summary = importer.import_files(connection, files, request, progress=_adding_up(files, advance))
    table.write_attempts(connection, output)
    if common.json:
        console.print_json({"output": str(output), **msgspec.to_builtins(summary)})
    else:
        _print(summary, output)
    lacking = list(checks.lacks(summary))
    if lacking:
        raise errors.PartialResult(f"{output} was written, but: {lacking[0]}", hint="it cannot be advised on until that is there")


def _pairs(given: list[str]) -> dict[str, str]:
    pairs = {}
    for text in given:
        state, separator, kind = text.partition("=")
        if not separator or not state.strip():
            raise errors.UsageError(f"outcome: {text!r} is not STATE=CLASS", hint="write it like SPECIAL_EXIT=user_failure")
        pairs[state] = kind
    return pairs


def _adding_up(files: list[str], advance: Callable[[float], None]) -> Callable[[str, int], None]:
    """Progress over all files: those before the present one count in full."""
    sizes = [os.path.getsize(file) if os.path.isfile(file) else 0 for file in files]

    def tell(name: str, done: int) -> None:
        index = files.index(name) if name in files else 0
        advance(float(sum(sizes[:index]) + done))

    return tell


def _print(summary: ImportSummary, output: Path) -> None:
    out = console.out()
    table = Table("file", "format", *(f"{name}" for name in _COUNTS), box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for file in summary.files:
        table.add_row(console.printable(file.name), file.format, *(f"{count:,}" for count in _counts(file)))
    out.print(table)
    out.print("")
    for label, counts in (
        ("outcomes", summary.outcomes),
        ("skipped", summary.skipped),
        ("repaired", summary.repaired),
        ("unknown states", summary.unknown_states),
    ):
        if counts:
            out.print(f"{label}: " + ", ".join(f"{console.printable(name)} {count:,}" for name, count in counts.items()))
    if summary.bad_utf8:
        out.print(f"records with bytes that are not UTF-8, kept: {summary.bad_utf8:,}")
    for file in summary.files:
        for example in file.examples:
            where = f"{file.name}:{example.line}" if example.line else file.name
            out.print(f"unreadable: {console.printable(where)}: {example.why}: {console.printable(example.text)}")
    for note in summary.notes:
        out.print(f"note: {console.printable(note)}")
    out.print(f"{summary.attempts:,} attempts from {summary.lines:,} lines written to {console.printable(str(output))}")


_COUNTS = ("lines", "attempts", "skipped", "merged", "unreadable", "blank and comments", "header")


def _counts(file: FileSummary) -> tuple[int, ...]:
    return (file.lines, file.attempts, sum(file.skipped.values()), file.merged, file.unreadable, file.blank + file.comment, file.header)
