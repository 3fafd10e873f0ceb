"""A report on a terminal, and every point of it as CSV. Called by `perdure eval report`. Decides nothing.

CSV is RFC 4180 in UTF-8, a row a point: what a spreadsheet would run as a formula is neutralised; an empty field is *not known*.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence

from rich.console import Console

from perdure.base import files
from perdure.base.text import printable
from perdure.evaluation import wording
from perdure.evaluation.coldtable import ColdStart
from perdure.evaluation.outcome import RecipeOutcome
from perdure.evaluation.report import Report
from perdure.evaluation.window import ArmHours
from perdure.evaluation.wording import UNKNOWN
from perdure.model.evaluation import Arm, MeasureResult
from perdure.report.grid import Column, bullets, heading, print_grid, say
from perdure.report.tables import neutral

POINT_COLUMNS = ("measure", "unit", "run", "arm", "pair", "fault", "cache", "value", "basis", "formula", "lack", "reason")
"""Columns of the CSV before one column for each part that some point has."""


def print_report(report: Report, console: Console) -> None:
    """Print the headline, the four measures, the statements of recovery, cold start, matrix, mistakes, and what was amended."""
    say(report.headline.text, console)
    bullets("In doubt, since", [printable(line) for line in report.headline.doubts], console)
    _print_measures(report.measures, console)
    bullets("Not measured", list(_lacks(report.measures)), console)
    _print_window(report.window, console)
    bullets("Recovery time, as a statement", [one.statement for one in report.rto], console)
    print_cold(report.cold_start, console)
    print_matrix(report.matrix, console)
    heading("Mistakes that an evaluation can make", console)
    print_grid(
        [Column("", left=True), Column("mistake", left=True), Column("evidence", left=True)],
        [["FLAGGED" if one.flagged else "clear", printable(one.title), printable(one.evidence)] for one in report.mistakes],
        console,
    )
    bullets("Amended after the lock", list(_amendments(report)), console)
    _print_standing(report, console)


def print_cold(cold: ColdStart, console: Console) -> None:
    """Print both clocks of the cold start and the fit; nothing without such runs."""
    if not cold.runs:
        return
    heading("Cold start: from the command to ready, both by the same probe", console)
    print_grid(
        [
            Column("start", left=True),
            Column("cache", left=True),
            *(Column(name) for name in ("runs", "median", "fastest", "slowest", "failed", "excluded")),
        ],
        [
            [
                one.side,
                printable(one.cache),
                f"{one.runs}",
                *map(wording.seconds, (one.median_s, one.fastest_s, one.slowest_s)),
                f"{one.failed}",
                f"{one.excluded}",
            ]
            for one in cold.groups
        ],
        console,
    )
    say(
        f"Answers after a restore: {cold.same} of {cold.asked} the same as before." if cold.asked else "Answers were not compared.", console
    )
    for fit in cold.fits:
        say(f"Cache {printable(fit.cache)}: {fit.formula or f'no line: {fit.why_not}'}.", console)


def print_matrix(outcomes: Sequence[RecipeOutcome], console: Console) -> None:
    """Print what became of each recipe; nothing without any."""
    if not outcomes:
        return
    heading("Workloads put through checkpoint, kill, restore and comparison", console)
    print_grid(
        [
            Column("recipe", left=True),
            Column("result", left=True),
            Column("size", 2),
            Column("stood still", 2),
            Column("restore", 2),
            Column("codes", 1, left=True),
            Column("", 3, left=True),
        ],
        [
            [
                printable(one.recipe),
                one.result,
                wording.size(one.logical_bytes),
                wording.seconds(one.stopped_s),
                wording.seconds(one.restore_s),
                printable(" ".join(one.codes)),
                printable(one.detail),
            ]
            for one in outcomes
        ],
        console,
    )


def write_csv(report: Report, path: str | os.PathLike[str]) -> None:
    """Write every point of every measure, and every run that gave none with its reason, atomically. Raises `errors.OutputError`."""
    parts = sorted({name for result in report.measures for one in result.points for name in one.parts})
    with files.replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\r\n")
        writer.writerow((*POINT_COLUMNS, *map(neutral, parts)))
        writer.writerows([_field(value) for value in row] for row in _rows(report, parts))


def _rows(report: Report, parts: Sequence[str]) -> Iterator[list[str | float | None]]:
    nothing = [None] * len(parts)
    for result in report.measures:
        head = [result.kind.value, result.unit]
        for one in result.points:
            fault = None if one.fault is None else one.fault.value
            values = [one.parts.get(name) for name in parts]
            yield [*head, one.run, one.arm.value, one.pair, fault, None, one.value, one.basis, one.formula, None, None, *values]
        for lack in result.unmeasured:
            fault = None if lack.fault is None else lack.fault.value
            yield [*head, lack.run, lack.arm.value, lack.pair, fault, None, None, None, None, lack.code, lack.reason, *nothing]
    for start in report.cold_start.runs:
        lack_code = None if start.excluded is None else "failed" if start.ready_s is None else "excluded"
        head = ["cold-start", "s", start.run, start.side]
        yield [*head, None, None, start.cache, start.ready_s, "measured", None, lack_code, start.excluded, *nothing]


def _field(value: str | float | None) -> str | float | None:
    return neutral(value.encode("utf-8", "backslashreplace").decode()) if isinstance(value, str) else value


def _print_measures(measures: Sequence[MeasureResult], console: Console) -> None:
    heading("The four measures, and what a checkpoint costs", console)
    columns = [
        Column("measure", left=True),
        Column("unmanaged"),
        Column("managed"),
        Column("difference", 3),
        Column("interval of it", 6),
        Column("to reach", 2, left=True),
        Column("outcome", left=True),
        Column("pairs", 4),
        Column("needed", 4),
        Column("figures", 5, left=True),
    ]
    print_grid(columns, [_measure_row(one) for one in measures], console)


def _measure_row(one: MeasureResult) -> list[str]:
    return [
        wording.name(one.kind),
        wording.quantity(one.medians.get(Arm.UNMANAGED), one.unit),
        wording.quantity(one.medians.get(Arm.MANAGED), one.unit),
        wording.difference(one.difference, one.unit),
        wording.difference_interval(one.difference_interval, one.unit),
        wording.threshold(one.threshold, one.unit) if one.threshold is not None else "",
        wording.OUTCOME_WORDS[one.outcome] if one.threshold is not None or one.outcome is not None else "",
        f"{one.pairs}",
        wording.runs_needed(one),
        wording.basis(one),
    ]


def _lacks(measures: Sequence[MeasureResult]) -> Iterator[str]:
    for one in measures:
        if found := wording.lacks(one):
            yield printable(f"{wording.name(one.kind)}: {'; '.join(found)}")


def _print_window(hours: Sequence[ArmHours], console: Console) -> None:
    if not hours:
        return
    heading(f"All {hours[0].unit} of the window, summed", console)
    names = ("runs", "allocated", "delivered", "share", "again", "saving", "down", "other")
    print_grid(
        [Column("side", left=True), *map(Column, names)],
        [
            [
                one.arm.value,
                f"{one.runs}",
                *map(wording.hours, (one.allocated, one.delivered)),
                wording.quantity(one.share, "share"),
                *map(wording.hours, (one.recomputed, one.checkpoints, one.down, one.other)),
            ]
            for one in hours
        ],
        console,
    )
    for one in hours:
        say(printable(f"{one.arm.value}: hours from {one.source}; device busy: {wording.device(one)}."), console)


def _amendments(report: Report) -> Iterator[str]:
    for one in report.amendments:
        data = f", after {one.managed_runs} managed runs" if one.data_existed else ""
        changes = "; ".join(f"{change.key}: {wording.plain(change.old)} → {wording.plain(change.new)}" for change in one.changes)
        yield printable(f"{one.number}. {changes}{data}: {one.reason}")


def _print_standing(report: Report, console: Console) -> None:
    heading("What it stands on", console)
    lock = report.lock
    locked = "not locked" if lock is None else f"locked by {lock.signed.user} on {lock.signed.host}, plan {lock.plan_sha256[:12]}"
    say(printable(locked), console)
    if report.past is not None:
        say(printable(f"{report.past.describe()}."), console)
    if report.schedule.planned:
        say(printable(f"{report.schedule.describe()}."), console)
    left_out = sum(one.excluded is not None for one in report.runs)
    unfinished = sum(not one.finished for one in report.runs)
    say(f"{len(report.runs)} runs, {left_out} excluded, {unfinished} cut short, {report.torn} torn lines.", console)
    for one in report.runs:
        if one.excluded is not None:
            say(printable(f"excluded: {one.id}: {one.excluded}"), console)
    tests = report.exit_tests
    last = UNKNOWN if not tests else "passed" if tests[-1].passed else f"failed with {tests[-1].exit_status}"
    say("Exit test: not run." if not tests else f"Exit test: {last}.", console)
