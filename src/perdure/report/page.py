"""What the page shows, before it is markup: which workloads, headline figures, counts of verdicts, tables of rates. Called by `html`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.model.advice import Advice, Bounds, CauseRates, VerdictKind, WorkloadAdvice
from perdure.model.attempt import Cause
from perdure.report import figures, totals

SHOWN = 500
"""Workloads on the page at most: more make it slow to scroll and hundreds of sheets to print; the tables hold all."""

WORK_SOURCE = {
    "completed": "median of completed jobs",
    "chain": "sum over chained attempts",
    "limit": "from the wall-time limit",
    "longest": "longest attempt seen",
}
MTTF_SOURCE = {"bin": "observed at this size", "fit": "from the fit over sizes", "prior": "from a published rate", "given": "as given"}


class Headline(msgspec.Struct, frozen=True):
    """One figure at the head of the page."""

    label: str
    value: str
    note: str


class VerdictCount(msgspec.Struct, frozen=True):
    """How many workloads got a verdict, and what it means."""

    kind: VerdictKind
    workloads: int
    meaning: str


def shown(advice: Advice) -> Sequence[WorkloadAdvice]:
    """Return the workloads that are on the page: the worst `SHOWN`."""
    return advice.workloads[:SHOWN]


def headline(advice: Advice) -> list[Headline]:
    """Return the figures at the head of the page, of GPU-hours where the history has any."""
    exposure, shares = advice.exposure, advice.exposure.shares
    found = totals.by_unit(advice)
    if not found:
        return []
    total = found[0]
    name, whole = figures.hours_name(total.unit), total.whole_hours
    destroyed = _destroyed(advice, total)
    low, high = (figures.percent(figures.share(one, whole)) for one in (destroyed.low, destroyed.high))
    saved = figures.percent(figures.share(total.saved_hours, whole))
    return [
        Headline(f"{name} allocated", figures.amount(whole), f"in {exposure.days:,.0f} days, to {total.workloads:,} workloads"),
        Headline(
            f"{name} destroyed by interruptions",
            f"{figures.amount(destroyed.low)} – {figures.amount(destroyed.high)}",
            f"{low} to {high} of all",
        ),
        Headline(
            f"{name} that resuming would have saved",
            figures.amount(total.saved_hours),
            f"{saved} of all, by {total.to_resume:,} of {total.workloads:,} workloads",
        ),
        Headline(
            "touched by infrastructure failures",
            f"{figures.percent(shares.infrastructure_jobs)} of jobs",
            f"and {figures.percent(shares.infrastructure_gpu_hours)} of GPU-hours",
        ),
    ]


def beside(advice: Advice) -> list[str]:
    """Return a sentence for each unit that is not in `headline`: work without GPUs beside work with them."""
    return [
        f"Beside them, work without GPUs: {figures.amount(total.whole_hours)} {figures.hours_name(total.unit)} in "
        f"{total.workloads:,} workloads, of which interruptions destroyed {figures.bounds(total.destroyed_hours)}; "
        f"resuming {total.to_resume:,} of them would have saved {figures.amount(total.saved_hours)}."
        for total in totals.by_unit(advice)[1:]
    ]


def _destroyed(advice: Advice, total: totals.UnitTotal) -> Bounds:
    """The exposure table also knows of attempts that belong to no workload, so its figure comes first where it is one of GPUs."""
    return advice.exposure.destroyed_gpu_hours if total.unit == "gpu" else total.destroyed_hours


def verdict_counts(advice: Advice) -> list[VerdictCount]:
    """Count the workloads of each verdict, the ones that ask for action first."""
    return [
        VerdictCount(kind, sum(row.verdict.verdict is kind for row in advice.workloads), meaning)
        for kind, meaning in figures.VERDICT_MEANING.items()
    ]


def rate_tables(advice: Advice) -> list[CauseRates]:
    """Return the rates that get a table: those with events, infrastructure in any case; an inclusive one where it differs.

    GPUs first, strict before inclusive.
    """
    strict = {(one.unit, one.cause): one.events for one in advice.rates if one.classification == "strict"}
    chosen = [
        one
        for one in advice.rates
        if one.bins
        and (one.events or one.cause is Cause.INFRASTRUCTURE)
        and (one.classification == "strict" or one.events != strict.get((one.unit, one.cause)))
    ]
    return sorted(chosen, key=lambda one: (one.unit != "gpu", list(Cause).index(one.cause), one.classification != "strict"))
