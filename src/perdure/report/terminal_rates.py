"""Rates by size in brief: mean times between interruptions, a line a size, and what was fitted. Called by `terminal` only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from perdure.model.advice import CauseRates, RateBin, RateFit
from perdure.model.attempt import Cause
from perdure.report import figures
from perdure.report.grid import Column, Row, heading, print_grid, say


def print_rates(rates: Sequence[CauseRates], console: Console) -> None:
    """Print a table for each unit that has rates, and a line for each fit. Wall time is not among them: it is no rate."""
    for unit in ("gpu", "node"):
        chosen = [one for one in rates if one.unit == unit and one.cause is not Cause.WALLTIME]
        if not chosen:
            continue
        heading(f"Mean time between interruptions of a job, by {figures.unit_name(unit)}", console)
        _print_rate_table(chosen, console)
        for one in chosen:
            if one.fit is not None and one.events and one.classification == "strict":
                say(_fit_line(one, one.fit), console)


def _print_rate_table(chosen: Sequence[CauseRates], console: Console) -> None:
    strict = {one.cause: one for one in chosen if one.classification == "strict"}
    inclusive = next((one for one in chosen if one.cause is Cause.INFRASTRUCTURE and one.classification == "inclusive"), None)
    columns = [Column("size"), Column("job-hours", 4)]
    cells: list[Callable[[tuple[float, float | None]], list[str]]] = []
    exposed = {(one.low, one.high): one.job_hours for rate in chosen for one in rate.bins}
    for cause, rate in sorted(strict.items(), key=lambda item: list(Cause).index(item[0])):
        main = cause is Cause.INFRASTRUCTURE
        columns += [Column("events" if main else f"{cause.value} events", 2 if main else 6), Column(cause.value, 0 if main else 3)]
        columns += [Column("interval", 1 if main else 7)]
        cells.append(_bin_cells(rate, with_interval=True))
    if inclusive is not None:
        columns.append(Column("inclusive", 5))
        cells.append(_bin_cells(inclusive, with_interval=False))
    rows: list[Row] = [
        [figures.size_range(*one), figures.amount(exposed[one]), *(text for cell in cells for text in cell(one))] for one in sorted(exposed)
    ]
    print_grid(columns, rows, console)


def _bin_cells(rate: CauseRates, *, with_interval: bool) -> Callable[[tuple[float, float | None]], list[str]]:
    bins: dict[tuple[float, float | None], RateBin] = {(one.low, one.high): one for one in rate.bins}

    def cells(key: tuple[float, float | None]) -> list[str]:
        one = bins.get(key)
        if one is None:
            return [figures.UNKNOWN] * (3 if with_interval else 1)
        mttf = figures.bin_mttf(one)
        return [f"{one.events:,}", mttf, figures.bin_mttf_interval(one)] if with_interval else [mttf]

    return cells


def _fit_line(rate: CauseRates, fit: RateFit) -> str:
    interval = fit.exponent_interval
    within = f" ({interval.level:.0%}: {interval.low:.2f} to {interval.high:.2f})" if interval is not None else ""
    seen = figures.size_range(fit.observed_low, fit.observed_high)
    line = f"{rate.cause.value}: rate ∝ size^{fit.exponent:.2f}{within}, observed at {seen} {figures.unit_name(rate.unit)}"
    if rate.dispersion.over_dispersed:
        line += f"; in bunches, intervals by {rate.interval_method}"
    return line + "."
