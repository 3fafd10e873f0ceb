"""The answer on a terminal or down a pipe. Called by the command line; with `grid`, the only module of the reports that uses rich.

Colour only repeats what the words say. Whatever comes from a history passes `printable` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from perdure.base.text import printable
from perdure.model.advice import Advice, Exposure, ExposureRow, VerdictKind, WorkloadAdvice
from perdure.report import figures, totals
from perdure.report.grid import Column, Row, bullets, heading, print_grid, say
from perdure.report.terminal_rates import print_rates

STYLES: dict[VerdictKind, str] = {
    VerdictKind.RESUME: "bold cyan",
    VerdictKind.RESUME_REQUIRED: "bold red",
    VerdictKind.RETRY: "",
    VerdictKind.EITHER: "yellow",
    VerdictKind.NEITHER: "magenta",
}


def render(advice: Advice, console: Console, *, top: int = 20) -> None:
    """Print the verdicts, worst loss first, and below them rates, replay, assumptions and notes.

    `top` is the number of workloads shown, 0 for all; the others are counted and summed in a line of their own.
    """
    if not advice.workloads:
        console.print("No workload to advise on: nothing in this history ran.")
    else:
        shown = advice.workloads[:top] if top > 0 else advice.workloads
        _print_verdicts(advice, shown, console)
        for line in _summary(advice, len(shown)):
            say(line, console)
    print_rates(advice.rates, console)
    _print_replay(advice, console)
    bullets("Assumed by default (change them with a policy file or flags)", _defaults(advice), console)
    bullets("Notes", [printable(note) for note in advice.notes], console)
    bullets("What this history cannot tell", [printable(line) for line in advice.exposure.cannot_tell], console)


def render_exposure(exposure: Exposure, console: Console, *, candidates: Sequence[WorkloadAdvice] = ()) -> None:
    """Print the exposure table by outcome and size, the figures beside it, the top `candidates`, and what is not known."""
    _print_exposure_table(exposure, console)
    for line in _exposure_summary(exposure):
        say(line, console)
    if candidates:
        columns = [Column("candidate", left=True), Column("user", 2, left=True), Column("size"), Column("jobs", 1)]
        columns += [Column("interrupted", 1), Column("hours destroyed")]
        rows: list[Row] = [
            [
                Text(printable(one.evidence.key.name)),
                Text(printable(one.evidence.key.user)),
                figures.size(one.evidence.key.size),
                f"{one.evidence.jobs:,}",
                f"{sum(one.evidence.interruptions.values()):,}",
                figures.bounds(one.evidence.destroyed_gpu_hours),
            ]
            for one in candidates
        ]
        heading("Top candidates", console)
        print_grid(columns, rows, console)
    bullets("What this history cannot tell", [printable(line) for line in exposure.cannot_tell], console)


# Verdicts --------------------------------------------------------------------------------------------------------

_VERDICT_COLUMNS = (
    Column("workload", left=True),
    Column("user", 8, left=True),
    Column("account", 9, left=True),
    Column("size"),
    Column("jobs", 6),
    Column("interrupted", 5),
    Column("MTTF", 2),
    Column("interval", 4),
    Column("lost"),
    Column("of all", 3),
    Column("retry"),
    Column("resume"),
    Column("retry time", 7),
    Column("resume time", 7),
    Column("verdict", left=True),
    Column("saved"),
)


def _print_verdicts(advice: Advice, shown: Sequence[WorkloadAdvice], console: Console) -> None:
    whole = {unit: totals.whole_hours(advice.exposure, unit) for unit in ("gpu", "node")}
    rows: list[Row] = [_verdict_row(row, whole[row.evidence.key.size.unit]) for row in shown]
    rest = advice.workloads[len(shown) :]
    rows.extend(_total_row(f"… {total.workloads:,} more", total) for total in totals.by_unit(advice, rest))
    footers = [_total_row(f"all {total.workloads:,}", total) for total in totals.by_unit(advice)]
    print_grid(_VERDICT_COLUMNS, rows, console, footers=footers)


def _verdict_row(row: WorkloadAdvice, whole: float) -> Row:
    evidence, verdict = row.evidence, row.verdict
    mttf = figures.mttf(row.mttf) + ("*" if row.mttf.extrapolated else "")
    lost = evidence.destroyed_gpu_hours.high
    return [
        Text(printable(evidence.key.name) or "(no name)"),
        Text(printable(evidence.key.user)),
        Text(printable(evidence.key.account)),
        figures.size(evidence.key.size),
        f"{evidence.jobs:,}",
        f"{sum(evidence.interruptions.values()):,}",
        mttf,
        figures.duration_interval(row.mttf.interval),
        figures.amount(lost),
        figures.percent(figures.share(lost, whole)),
        "never" if verdict.retry.never_finishes else figures.amount(row.retry_lost_gpu_hours),
        "never" if verdict.resume.never_finishes else figures.amount(row.resume_lost_gpu_hours),
        _expected(verdict.retry.expected_minutes, never=verdict.retry.never_finishes),
        _expected(verdict.resume.expected_minutes, never=verdict.resume.never_finishes),
        Text(verdict.verdict.value, style=STYLES[verdict.verdict]),
        figures.amount(row.saved_gpu_hours),
    ]


def _expected(minutes: float | None, *, never: bool) -> str:
    return "never" if never else figures.duration(minutes)


def _total_row(label: str, total: totals.UnitTotal) -> Row:
    lost = total.destroyed_hours.high
    return [
        Text(label),
        "",
        "",
        figures.unit_name(total.unit),
        f"{total.jobs:,}",
        f"{total.interruptions:,}",
        "",
        "",
        figures.amount(lost),
        figures.percent(figures.share(lost, total.whole_hours)),
        ("> " if total.never_finish else "") + figures.amount(total.retry_lost_hours),
        figures.amount(total.resume_lost_hours),
        "",
        "",
        Text(f"{total.to_resume:,} to resume"),
        figures.amount(total.saved_hours),
    ]


def _summary(advice: Advice, shown: int) -> Iterable[str]:
    """The sentences under the table: what its columns mean, the share of the whole, what is missing from it."""
    yield ""
    yield (
        "Worst first, by what retrying is expected to cost. lost: hours that interruptions destroyed, at most. "
        "retry, resume: hours beyond the bare work that each way is expected to cost. "
        "saved: their difference; its total counts the workloads to resume."
    )
    if any(row.mttf.extrapolated for row in advice.workloads[:shown]):
        yield "* extrapolated: no work of this size was observed."
    if len(advice.workloads) > shown:
        yield f"and {len(advice.workloads) - shown:,} more rows; --csv and --parquet hold all of them."
    for total in totals.by_unit(advice):
        name, whole = figures.hours_name(total.unit), total.whole_hours
        low, high = (figures.percent(figures.share(one, whole)) for one in (total.destroyed_hours.low, total.destroyed_hours.high))
        yield (
            f"In {advice.exposure.days:,.0f} days interruptions destroyed {figures.bounds(total.destroyed_hours)} of "
            f"{figures.amount(whole)} {name} ({low} to {high}). Resuming {total.to_resume:,} of {total.workloads:,} workloads "
            f"would have saved {figures.amount(total.saved_hours)} {name} ({figures.percent(figures.share(total.saved_hours, whole))})."
        )
        if total.without_figure:
            yield f"{total.without_figure:,} of those have no finite saving, since retrying may never finish: the sum leaves them out."


# Replay, exposure, lists -----------------------------------------------------------------------------------------


def _print_replay(advice: Advice, console: Console) -> None:
    if not advice.replay:
        return
    columns = [Column("policy", left=True), Column("hours lost"), Column("delivered"), Column("within limit"), Column("never done", 1)]
    rows: list[Row] = [
        [
            one.policy,
            figures.amount(one.lost_gpu_hours),
            figures.percent(one.delivered_share),
            f"{one.jobs_meeting_limit:,} of {one.jobs:,}",
            f"{one.unfinished_jobs:,}",
        ]
        for one in advice.replay
    ]
    heading("This history, replayed", console)
    print_grid(columns, rows, console)


def _print_exposure_table(exposure: Exposure, console: Console) -> None:
    columns = [Column("outcome", left=True), Column("size", left=True), Column("attempts"), Column("share", 2)]
    columns += [Column("node-hours", 1), Column("GPU-hours"), Column("share")]
    rows: list[Row] = []
    for outcome in totals.by_outcome(exposure):
        members = sorted((row for row in exposure.rows if row.outcome == outcome.outcome), key=lambda row: (row.unit, row.size_low))
        head = [figures.word(outcome.outcome), "all" if len(members) > 1 else _range_name(members[0])]
        figures_of = [f"{outcome.attempts:,}", figures.percent(outcome.share_attempts), figures.amount(outcome.node_hours)]
        figures_of += [figures.amount(outcome.gpu_hours), figures.percent(outcome.share_hours)]
        rows.append([Text(cell, style="bold") for cell in (*head, *figures_of)])
        if len(members) > 1:
            rows.extend(_exposure_cells(row, exposure) for row in members)
    footer: Row = ["all", "", f"{exposure.attempts:,}", "", figures.amount(exposure.node_hours), figures.amount(exposure.gpu_hours), ""]
    print_grid(columns, rows, console, footers=[footer])


def _exposure_cells(row: ExposureRow, exposure: Exposure) -> Row:
    hours, whole = (row.gpu_hours, exposure.gpu_hours) if exposure.gpu_hours > 0 else (row.node_hours, exposure.node_hours)
    return [
        "",
        _range_name(row),
        f"{row.attempts:,}",
        figures.percent(figures.share(row.attempts, exposure.attempts)),
        figures.amount(row.node_hours),
        figures.amount(row.gpu_hours),
        figures.percent(figures.share(hours, whole)),
    ]


def _range_name(row: ExposureRow) -> str:
    return f"{figures.size_range(row.size_low, row.size_high)} {figures.unit_name(row.unit, plural=row.size_high != 1)}"


def _exposure_summary(exposure: Exposure) -> Iterable[str]:
    shares = exposure.shares
    yield ""
    yield f"{exposure.jobs:,} jobs, {exposure.attempts:,} attempts from {exposure.start} to {exposure.end} ({exposure.days:,.1f} days)."
    yield f"Interruptions destroyed {figures.bounds(exposure.destroyed_gpu_hours)} GPU-hours."
    exposed = figures.amount(exposure.walltime_exposed_gpu_hours)
    yield f"{exposed} GPU-hours ran in attempts that ended at their wall-time limit or within 5 % of it."
    yield (
        f"Infrastructure failures touched {figures.percent(shares.infrastructure_jobs)} of jobs, and "
        f"{figures.percent(shares.infrastructure_gpu_hours)} of GPU-hours."
    )
    at_limit = figures.percent(shares.walltime_gpu_hours)
    yield f"Wall-time limits ended {figures.percent(shares.walltime_jobs)} of jobs, with {at_limit} of GPU-hours."
    yield f"{figures.percent(shares.resubmitted_jobs)} of jobs repeat an earlier one under a new id."


def _defaults(advice: Advice) -> list[str]:
    """What was assumed since nobody said otherwise: a line for the figures, one for what is not known at all."""
    mark = " (default)"
    assumed = {key: value.replace(mark, "") for key, value in advice.assumptions.items() if mark in value}
    known = [f"{printable(key)} {printable(value)}" for key, value in assumed.items() if not value.startswith("not known")]
    unknown = [printable(key) for key, value in assumed.items() if value.startswith("not known")]
    return [line for line in (", ".join(known), f"not known: {', '.join(unknown)}" if unknown else "") if line]
