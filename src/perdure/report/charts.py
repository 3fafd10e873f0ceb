"""The page's charts: from finished records to SVG, made when the page is written, so that no script is needed to see them.

Called by `html`. Each chart is made at two widths, for a desk and for a telephone, since text in a shrunken picture cannot
be read; `drawings` says what they look like. Altair and vl-convert are imported here alone; a chart holds only our own words
and figures, never a job's name.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from perdure import errors
from perdure.model.advice import Advice, CauseRates, WorkloadAdvice
from perdure.model.attempt import Cause
from perdure.report import drawings, figures, points, theme, totals
from perdure.stats.published import PublishedRate


class LegendEntry(msgspec.Struct, frozen=True):
    """One line of a legend: its words, its colour, and a shape of `theme.SHAPES`."""

    label: str
    colour: str
    shape: str


class Chart(msgspec.Struct, frozen=True):
    """One finished chart; `wide` and `narrow` are SVG elements with a title and a description of their own."""

    key: str
    title: str
    description: str
    legend: tuple[LegendEntry, ...]
    wide: str
    narrow: str


def rates_by_size(rates: Sequence[CauseRates], unit: str, published: Sequence[PublishedRate]) -> Chart | None:
    """Draw the rate of each cause by size on log axes: intervals, fit (dashed where extrapolated), published rates. None without events."""
    chosen = [one for one in rates if one.unit == unit and one.cause is not Cause.WALLTIME and one.events > 0]
    marks = [mark for one in chosen for mark in points.rate_points(one)]
    if not marks:
        return None
    lines = [line for one in chosen if one.fit is not None and one.classification == "strict" for line in points.fit_points(one, one.fit)]
    beside = points.published_band(published, unit, [one["x"] for one in (*marks, *lines)])
    title = f"Interruptions by size, in {figures.unit_name(unit)}"
    strict = next((one for one in chosen if one.classification == "strict"), chosen[0])
    return _chart(
        f"rates-{unit}",
        title,
        "How often a running job is interrupted, by its size, on logarithmic axes. Bars are intervals, the line is the fit, dashed where "
        f"it is extrapolated beyond the sizes that were observed. {_rate_sentence(strict)}",
        _rate_legend(marks, lines, beside, unit),
        lambda alt, width: drawings.rates(alt, width, unit, drawings.RateMarks(marks, lines, beside)),
    )


def lost_by_cause(advice: Advice, unit: totals.Unit) -> Chart | None:
    """Draw the hours that each cause destroyed, stacked by size. None when nothing was lost."""
    lost = totals.lost_by_cause(advice, unit)
    if not lost:
        return None
    ranges = sorted({(one.low, math.inf if one.high is None else one.high) for one in lost})
    names = [figures.size_range(low, high) for low, high in ranges]
    causes = list(dict.fromkeys(figures.word(one.cause) for one in lost))
    values = [
        {"cause": figures.word(one.cause), "hours": one.hours, "size": names[place], "order": place}
        for one in lost
        for place in [ranges.index((one.low, math.inf if one.high is None else one.high))]
    ]
    sums = {cause: sum(one.hours for one in lost if figures.word(one.cause) == cause) for cause in causes}
    name = figures.hours_name(unit)
    sentence = "; ".join(f"{cause} {figures.amount(hours)}" for cause, hours in sums.items())
    return _chart(
        f"lost-{unit}",
        f"{name[0].upper()}{name[1:]} lost, by cause",
        f"Upper bounds of what each cause destroyed, stacked by the size of the work: {sentence} {name}.",
        tuple(
            LegendEntry(f"{size} {figures.unit_name(unit, plural=size != '1')}", colour, "block")
            for size, colour in zip(names, drawings.ramp(len(names)), strict=True)
        ),
        lambda alt, width: drawings.lost(alt, width, unit, drawings.Stack(values, causes, names)),
    )


def exposure_by_outcome(advice: Advice) -> Chart | None:
    """Draw each outcome's share of attempts beside its share of hours. None for an empty history."""
    shares = [one for one in totals.by_outcome(advice.exposure) if one.attempts]
    if not shares:
        return None
    hours = figures.hours_name("gpu" if advice.exposure.gpu_hours > 0 else "node")
    groups = ["of attempts", f"of {hours}"]
    values = [
        {"outcome": figures.word(one.outcome), "share": share, "of": of, "text": figures.percent(share)}
        for one in shares
        for of, share in zip(groups, (one.share_attempts, one.share_hours), strict=True)
    ]
    sentence = "; ".join(
        f"{figures.word(one.outcome)} {figures.percent(one.share_attempts)} of attempts and {figures.percent(one.share_hours)} of {hours}"
        for one in shares
    )
    return _chart(
        "outcomes",
        "How attempts ended",
        f"The same endings counted twice, by attempts and by {hours}. {sentence}.",
        tuple(LegendEntry(f"share {of}", colour, "block") for of, colour in zip(groups, drawings.OUTCOME_COLOURS, strict=True)),
        lambda alt, width: drawings.outcomes(alt, width, values, groups),
    )


def break_even(workloads: Sequence[WorkloadAdvice]) -> Chart | None:
    """Draw each workload's run time against the run time at which a checkpoint begins to pay. None without such figures."""
    marks: list[drawings.BreakEvenMark] = [
        {"work": row.question.work_minutes / 60, "even": row.verdict.break_even.work_minutes / 60, "verdict": row.verdict.verdict.value}
        for row in workloads
        if row.verdict.break_even.work_minutes and row.question.work_minutes > 0 and math.isfinite(row.verdict.break_even.work_minutes)
    ]
    if not marks:
        return None
    above = sum(one["work"] > one["even"] for one in marks)
    given = {one["verdict"] for one in marks}
    return _chart(
        "break-even",
        "Where a checkpoint begins to pay",
        f"A mark is a workload: its run time against its break-even. Right of the line ({above:,} of {len(marks):,}) a run is longer than "
        "its break-even, so that resuming costs less, as long as the limit, the deadline and the evidence do not say otherwise.",
        (
            *(
                LegendEntry(kind.value, colour, theme.VERDICT_SHAPES[kind])
                for kind, colour in theme.VERDICT_COLOURS.items()
                if kind.value in given
            ),
            LegendEntry("both ways cost the same", theme.MUTED, "dash"),
        ),
        lambda alt, width: drawings.break_even(alt, width, marks),
    )


def _rate_legend(
    marks: list[dict[str, Any]], lines: list[dict[str, Any]], beside: list[dict[str, Any]], unit: str
) -> tuple[LegendEntry, ...]:
    named = {one["series"] for one in marks}
    entries = [LegendEntry(name, *drawings.SERIES[name]) for name in drawings.SERIES if name in named]
    if any(not one["seen"] for one in marks):
        entries.append(LegendEntry("none seen: upper bound", theme.MUTED, "triangle-down"))
    if lines:
        entries += [LegendEntry("fit", theme.MUTED, "line"), LegendEntry("extrapolated", theme.MUTED, "dash")]
    if beside:
        at = f", {drawings.GPUS_A_NODE} GPUs a node" if unit == "gpu" else ""
        entries.append(LegendEntry(f"published elsewhere{at}", theme.GRID, "block"))
    return tuple(entries)


def _rate_sentence(rate: CauseRates) -> str:
    seen = [one for one in rate.bins if one.events]
    parts = [f"{figures.size_range(one.low, one.high)}: every {figures.bin_mttf(one)}" for one in seen]
    return f"For {rate.cause.value}, {'; '.join(parts)}."


# From a drawing to an element of the page ------------------------------------------------------------------------


def _chart(key: str, title: str, description: str, legend: tuple[LegendEntry, ...], draw: Callable[[Any, int], Any]) -> Chart:
    wide, narrow = (
        _element(_svg(draw, width), f"{key}-{name}", title, description)
        for name, width in (("wide", drawings.WIDE), ("narrow", drawings.NARROW))
    )
    return Chart(key, title, description, legend, wide, narrow)


def _svg(draw: Callable[[Any, int], Any], width: int) -> str:
    try:
        import altair
        import vl_convert
    except ImportError as error:
        raise errors.MissingExtra(
            f"the HTML report needs {error.name or 'altair'}, which is not installed", hint="pip install 'perdure[advise]'"
        ) from error
    drawing = draw(altair, width).configure(**theme.CONFIG)
    version = ".".join(altair.SCHEMA_VERSION.split(".")[:2])
    svg: str = vl_convert.vegalite_to_svg(json.loads(drawing.to_json()), vl_version=version)
    return svg


def _element(svg: str, key: str, title: str, description: str) -> str:
    """Give the picture a name, a description and ids of its own, so that several can stand in one page."""
    head = re.match(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)" viewBox="([^"]*)"[^>]*>', svg)
    if head is None:
        raise RuntimeError("vl-convert wrote an SVG without width, height and viewBox")
    body = svg[head.end() :]
    # Vega numbers its clip paths through the whole process: here each picture counts from 0.
    ids = {name: f"{key}-{place}" for place, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]*)"', body)))}
    body = re.sub(r'(\bid="|url\(#)([^")]*)', lambda found: found[1] + ids.get(found[2], found[2]), body)
    width, height, box = head.groups()
    return (
        f'<svg role="img" aria-labelledby="{key}-title {key}-desc"'
        f' width="{width}" height="{height}" viewBox="{box}">'
        f'<title id="{key}-title">{html.escape(title)}</title><desc id="{key}-desc">{html.escape(description)}</desc>{body}'
    )
