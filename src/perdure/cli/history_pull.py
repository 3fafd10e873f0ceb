"""`perdure history pull`: the site's own sacct, day by day."""

from __future__ import annotations

import datetime
import getpass
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.base import units
from perdure.cli import console

if TYPE_CHECKING:
    from perdure.history.pull.pull import Pulled
    from perdure.history.summary import ImportSummary


def pull(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Attempts file (Parquet) to write.")],
    days: Annotated[int, Parameter(help="Whole days to reach back, besides today.")] = 90,
    since: Annotated[str | None, Parameter(help="First instant instead, UTC: 2026-01-05 or 2026-01-05T12:00.")] = None,
    until: Annotated[str | None, Parameter(help="Last instant, UTC; default: now.")] = None,
    cluster: Annotated[
        str | None, Parameter(name=["--cluster", "-M"], help="Cluster to ask for (sacct -M); default: the local one.")
    ] = None,
    raw_dir: Annotated[
        Path | None, Parameter(help="Folder that keeps each day's text, for going on later; default: the output's name with .days.")
    ] = None,
    afresh: Annotated[bool, Parameter(negative="", help="Ask for every day again.")] = False,
    sacct: Annotated[str, Parameter(help="sacct to run: a path, or a name on PATH.")] = "sacct",
    pause: Annotated[str, Parameter(help="Rest between two questions, for the database's sake.")] = "0s",
    timeout: Annotated[str, Parameter(help="Time one question may take; a slower one is stopped and halved.")] = "10m",
    retries: Annotated[int, Parameter(help="How often a question that failed is asked again, after 2 s, 4 s, 8 s … 1 m.")] = 5,
    memory_limit: Annotated[str | None, Parameter(help="Memory that reading the days may use; beyond it, disk is used.")] = None,
    threads: Annotated[str | None, Parameter(help="Threads for reading.")] = None,
    common: console.Common = console.Common(),
) -> None:
    """Pull the history of this site's cluster from sacct, day by day, and make an attempts file of it.

    Asks only for fields that this sacct has. Days that are over are asked for once: give the same command again to go on
    after a Ctrl-C or a failure, or next week to add the days since. Needs operator rights where the site hides others' jobs.

    For example:

      perdure history pull --days 90 -o attempts.parquet && perdure advise attempts.parquet
    """
    from perdure.history import importer, table
    from perdure.history.pull import pull as puller
    from perdure.history.pull import sacct as slurm
    from perdure.history.pull import visibility, windows

    values = console.load_settings(common, memory_limit=memory_limit, threads=threads)
    if retries < 0:
        raise errors.QuantityError(f"--retries: {retries} is negative")
    span = windows.span(now=_now(), days=days, since=since, until=until)
    folder = raw_dir if raw_dir is not None else output.with_suffix(".days")
    _check_output(output)
    request = puller.Request(
        span=span, folder=folder, cluster=cluster, afresh=afresh, retries=retries, pause_s=units.parse_duration(pause, name="--pause")
    )
    command = slurm.Sacct(sacct, environ=os.environ, timeout_s=_positive(timeout, name="--timeout"), cluster=cluster)
    with console.progress(common, "pulling", len(windows.cut_into_days(span)), unit="days") as report:
        around = puller.Surroundings(
            now=_now,
            sleep=time.sleep,
            progress=lambda done, _window: report(done),
            note=lambda text: console.note(common, console.printable(text)),
        )
        pulled = puller.pull(command, request, around)
    connection = table.connect(memory_limit=str(values["memory-limit"].value), threads=console.threads(values))
    summary = importer.import_files(connection, pulled.files, importer.Request(cluster=cluster))
    table.write_attempts(connection, output)
    users = [row[0] for row in connection.execute('SELECT DISTINCT "user" FROM attempts WHERE "user" IS NOT NULL').fetchall()]
    me = getpass.getuser()
    blind = visibility.judge(users, me, visibility.ask_admin_level(me, sacct=command.path, environ=os.environ))
    notes = (*_notes(pulled), *([blind] if blind else []))
    if common.json:
        console.print_json({"output": str(output), "raw": str(folder), "pull": pulled, "notes": notes, "import": summary})
        return
    for text in notes:
        console.note(common, console.printable(text))
    console.out().print(
        f"{pulled.days} days from {span.start.isoformat()} to {span.end.isoformat()} UTC, {pulled.asked_days} asked for now"
    )
    _print_import(summary, output)


def _notes(pulled: Pulled) -> list[str]:
    from perdure.history.pull import fields

    lost = [f"{name}: {fields.WHAT_IS_LOST.get(name, 'this column stays empty')}" for name in pulled.missing_fields]
    notes = [f"{pulled.sacct} does not have {', '.join(lost)}"] if lost else []
    if pulled.split_days:
        notes.append(f"asked for in parts, for the whole was too wide: {_some(pulled.split_days)}")
    if pulled.empty_days:
        notes.append(f"days without any record, which is suspicious: {_some(pulled.empty_days)}; was the database down, or purged?")
    return notes + [f"sacct said: {text}" for text in pulled.notes]


def _print_import(summary: ImportSummary, output: Path) -> None:
    """Say what became of every line. `perdure history import` on the kept days says it at length."""
    print_ = console.out().print
    print_(f"{console.printable(str(output))}: {summary.attempts:,} attempts from {summary.lines:,} lines")
    counted = {"repaired": summary.repaired, "skipped": summary.skipped, "unknown states": summary.unknown_states}
    for what, reasons in counted.items():
        if reasons:
            print_(f"{what}: " + ", ".join(f"{count:,} {console.printable(reason)}" for reason, count in sorted(reasons.items())))
    for what, count in {"unreadable": summary.unreadable, "unaccounted": summary.unaccounted, "still running": summary.censored}.items():
        if count:
            print_(f"{what}: {count:,}")
    for text in summary.notes:
        print_(console.printable(text))


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:3])} … {names[-1]} ({len(names)} days)"


def _check_output(output: Path) -> None:
    """Find out now, not after hours, that the result could not be written."""
    if output.is_dir() or not output.parent.is_dir() or not os.access(output.parent, os.W_OK):
        raise errors.OutputError(f"cannot write {output}", hint="name a file in a folder that exists and that you may write to")


def _positive(text: str, *, name: str) -> float:
    seconds = units.parse_duration(text, name=name)
    if seconds <= 0:
        raise errors.QuantityError(f"{name}: must be longer than zero")
    return seconds


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
