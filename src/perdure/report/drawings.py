"""What the charts look like: Vega-Lite by way of Altair, from plain points. Called by `charts`, which hands Altair in."""

from __future__ import annotations

import math
from typing import Any, TypedDict

import msgspec

from perdure.report import figures, theme

WIDE, NARROW = 540, 316
"""Width of a whole chart in CSS pixels: half a desk's page, and a telephone of 360 less the margins."""

SERIES: dict[str, tuple[str, str]] = {
    "infrastructure": (theme.BLUE, "circle"),
    "infrastructure, inclusive": (theme.BLUE, "stroke"),
    "preemption": (theme.VERMILLION, "square"),
    "operator": (theme.PURPLE, "triangle-up"),
}
"""Colour and shape of each series of the rate chart."""

OUTCOME_COLOURS = (theme.SLATE, theme.BLUE)
"""By attempts, by hours."""

_HOURS = (1 / 60, 1 / 12, 0.25, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
GPUS_A_NODE = 8
"""Of the systems whose rates were published, and of most others."""
_SIZES = tuple(GPUS_A_NODE**power for power in range(8))


_NAMES_AXIS = {"domain": False, "ticks": False, "labelColor": theme.INK}


class RateMarks(msgspec.Struct, frozen=True):
    """Points, fitted lines and the band of published rates of the rate chart; x is a size, y, low and high are rates per day."""

    points: list[dict[str, Any]]
    lines: list[dict[str, Any]]
    beside: list[dict[str, Any]]


class Stack(msgspec.Struct, frozen=True):
    """Pieces of stacked bars, the bars' order and the pieces' order."""

    values: list[dict[str, Any]]
    bars: list[str]
    pieces: list[str]


class BreakEvenMark(TypedDict):
    """One workload: hours of one run, hours at which a checkpoint begins to pay, verdict."""

    work: float
    even: float
    verdict: str


def rates(alt: Any, width: int, unit: str, marks: RateMarks) -> Any:
    """Draw rates by size on log axes: published rates, band of the fit, fit, intervals, points, upper bounds."""
    x, y = _rate_axes(alt, unit, marks)
    names = list(SERIES)
    colour = alt.Color("series:N", scale=alt.Scale(domain=names, range=[SERIES[name][0] for name in names]), legend=None)
    shape = alt.Shape("series:N", scale=alt.Scale(domain=names, range=[SERIES[name][1] for name in names]), legend=None)
    dash = alt.StrokeDash("piece:N", scale=alt.Scale(domain=["observed", "extrapolated"], range=[[1, 0], [4, 4]]), legend=None)
    low = alt.Y("low:Q")
    fit, own, beside = (alt.Chart(alt.Data(values=values)) for values in (marks.lines, marks.points, marks.beside))
    layers = [
        beside.mark_area(color=theme.GRID, opacity=0.7, clip=True).encode(x=x, y=low, y2="high:Q"),
        fit.transform_filter("isValid(datum.low)")
        .mark_area(opacity=0.13, clip=True)
        .encode(x=x, y=low, y2="high:Q", color=colour, detail="piece:N"),
        fit.mark_line(strokeWidth=1.6, clip=True).encode(x=x, y=y, color=colour, strokeDash=dash),
        own.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.4).encode(x=x, y=low, y2="high:Q", color=colour),
        own.transform_filter("datum.seen")
        .mark_point(size=60, strokeWidth=1.8, fill=theme.SURFACE)
        .encode(x=x, y=y, color=colour, shape=shape),
        own.transform_filter("!datum.seen").mark_point(size=60, strokeWidth=1.4, shape="triangle-down").encode(x=x, y=y, color=colour),
    ]
    return _sized(alt.layer(*layers), width, height=300)


def _rate_axes(alt: Any, unit: str, marks: RateMarks) -> tuple[Any, Any]:
    """Both log axes. The height is the points' own: a fit that leaves it is cut off."""
    sizes = [one["x"] for one in (*marks.points, *marks.lines)]
    heights = [one[key] for one in marks.points for key in ("y", "low", "high") if one.get(key, 0) > 0]
    left, right = min(sizes) / 1.3, max(sizes) * 1.3
    bottom, top = math.floor(math.log10(min(heights))), math.ceil(math.log10(max(heights)) + 1e-9)
    x = alt.X(
        "x:Q",
        scale=alt.Scale(type="log", domain=[left, right], nice=False),
        axis=alt.Axis(values=[one for one in _SIZES if left <= one <= right], format=",", grid=False),
        title=f"{figures.unit_name(unit)} of the job",
    )
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(type="log", domain=[10.0**bottom, 10.0**top]),
        axis=alt.Axis(
            values=[10.0**power for power in range(bottom, top + 1)],
            labelExpr="datum.value > 0.99 ? format(datum.value, ',') + ' a day' : '1 in ' + format(1 / datum.value, ',.0f') + ' d'",
        ),
        title=None,
    )
    return x, y


def lost(alt: Any, width: int, unit: str, stack: Stack) -> Any:
    """Draw stacked bars, small sizes first."""
    drawing = (
        alt.Chart(alt.Data(values=stack.values))
        .mark_bar(size=22)
        .encode(
            x=alt.X("hours:Q", title=figures.hours_name(unit), axis=alt.Axis(labelExpr="format(datum.value, '~s')", tickCount=4)),
            y=alt.Y("cause:N", sort=stack.bars, title=None, axis=_NAMES_AXIS),
            color=alt.Color("size:N", scale=alt.Scale(domain=stack.pieces, range=ramp(len(stack.pieces))), legend=None),
            order=alt.Order("order:Q"),
        )
    )
    return _sized(drawing, width, height=alt.Step(34))


def ramp(count: int) -> list[str]:
    """Choose `count` colours from light to dark; more than the ramp has share neighbours."""
    last = len(theme.RAMP) - 1
    return [theme.RAMP[round(place * last / (count - 1))] for place in range(count)] if count > 1 else [theme.RAMP[last - 2]]


def outcomes(alt: Any, width: int, values: list[dict[str, Any]], groups: list[str]) -> Any:
    """Draw a bar for each of the two `groups` in every outcome, in the order of `values`, with its figure at its end."""
    order = list(dict.fromkeys(one["outcome"] for one in values))
    # Room at the right for the figure of the longest bar.
    longest = max(one["share"] for one in values) * (1.25 if width == NARROW else 1.15)
    base = alt.Chart(alt.Data(values=values)).encode(
        y=alt.Y("outcome:N", sort=order, title=None, axis=_NAMES_AXIS),
        yOffset=alt.YOffset("of:N", sort=groups),
        x=alt.X("share:Q", title=None, axis=alt.Axis(format="%", tickCount=4), scale=alt.Scale(domain=[0, max(0.01, longest)], nice=False)),
    )
    bars = base.mark_bar(size=10).encode(color=alt.Color("of:N", scale=alt.Scale(domain=groups, range=list(OUTCOME_COLOURS)), legend=None))
    words = base.mark_text(align="left", dx=4, fontSize=11, color=theme.MUTED).encode(text="text:N")
    return _sized(alt.layer(bars, words), width, height=alt.Step(13))


def break_even(alt: Any, width: int, points: list[BreakEvenMark]) -> Any:
    """Draw run time against break-even run time on equal log axes, with the line on which both are the same."""
    every = [hours for one in points for hours in (one["work"], one["even"])]
    domain = [min(every) / 1.5, max(every) * 1.5]
    axis = alt.Axis(
        values=[one for one in _HOURS if domain[0] <= one <= domain[1]],
        labelExpr="datum.value < 0.99 ? format(datum.value * 60, '.0f') + ' min' : format(datum.value, ',') + ' h'",
    )
    scale = alt.Scale(type="log", domain=domain, nice=False)
    kinds = list(theme.VERDICT_COLOURS)
    x = alt.X("work:Q", scale=scale, axis=axis, title="run time of one job")
    y = alt.Y("even:Q", scale=scale, axis=axis, title="break-even run time")
    colour = alt.Color("verdict:N", scale=alt.Scale(domain=kinds, range=[theme.VERDICT_COLOURS[kind] for kind in kinds]), legend=None)
    shape = alt.Shape("verdict:N", scale=alt.Scale(domain=kinds, range=[theme.VERDICT_SHAPES[kind] for kind in kinds]), legend=None)
    marks = alt.Chart(alt.Data(values=points)).mark_point(size=55, strokeWidth=1.6).encode(x=x, y=y, color=colour, shape=shape)
    turn = alt.Chart(alt.Data(values=[{"work": end, "even": end} for end in domain]))
    line = turn.mark_line(color=theme.MUTED, strokeDash=[5, 4], strokeWidth=1.3).encode(x=x, y=y)
    return _sized(alt.layer(line, marks), width, height=300)


def _sized(drawing: Any, width: int, *, height: Any) -> Any:
    """`width` is that of the whole picture, labels included; `height` that of the plot."""
    # Room at the left for browsers whose letters are wider than those that vl-convert measures with.
    padding = {"left": 14, "right": 10, "top": 6, "bottom": 4}
    return drawing.properties(width=width, height=height, padding=padding, autosize={"type": "fit-x", "contains": "padding"})
