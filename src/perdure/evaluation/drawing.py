"""The charts of an evaluation's page as SVG: every run as a point, and restore time against bytes. Called by `page`.

Each is made at two widths, for a desk and for a telephone, since text in a shrunken picture cannot be read. They hold figures and our own
words only. Colours are those of `theme`, which the style sheet turns into light, dark and print.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

import msgspec

from perdure.evaluation import wording
from perdure.evaluation.coldtable import ColdStart
from perdure.model.evaluation import Arm, MeasureResult, Point, Threshold
from perdure.report import theme
from perdure.report.charts import Chart, LegendEntry
from perdure.report.drawings import NARROW, WIDE

SIDES: dict[Arm, tuple[str, str]] = {Arm.UNMANAGED: (theme.VERMILLION, "circle"), Arm.MANAGED: (theme.BLUE, "square")}
"""Colour and shape of each side."""
_LEFT, _RIGHT, _TOP, _ROW, _AXIS = 84, 16, 10, 46, 34
_LANES = 5
_EXTRAPOLATED = "diamond"
_FAR = 3.0
"""A number to reach that is this many times the largest value away would leave the values no room: an arrow stands for it."""


class Scale(msgspec.Struct, frozen=True):
    """Where values lie on an axis: `low` at pixel `start`, `high` at pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; beyond the ends it is the end's."""
        inside = min(self.high, max(self.low, value))
        return self.start + (inside - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


def every_run(result: MeasureResult) -> Chart | None:
    """Draw all points of a measure with median and interval of each side, and the number to reach. None without points."""
    if not result.points:
        return None
    arms = [arm for arm in Arm if any(one.arm is arm for one in result.points)]
    title = wording.name(result.kind)
    parts = [
        f"{arm.value} {sum(one.arm is arm for one in result.points)} values, median "
        + wording.quantity(result.medians.get(arm), result.unit)
        for arm in arms
    ]
    legend = [LegendEntry(f"{arm.value}, one run or interruption", *SIDES[arm]) for arm in arms]
    legend.append(LegendEntry("median and its interval", theme.INK, "line"))
    if any(one.basis == "extrapolated" for one in result.points):
        legend.append(LegendEntry("extrapolated", theme.INK, _EXTRAPOLATED))
    if _bars(result):
        legend.append(LegendEntry("number to reach", theme.PURPLE, "dash"))
    return _chart(
        f"runs-{result.kind.value}",
        f"{title[0].upper()}{title[1:]}: every run",
        f"{'; '.join(parts)}.",
        legend,
        lambda width: _strip(result, arms, width),
    )


def restore_time(cold: ColdStart) -> Chart | None:
    """Draw restore time against bytes, with the line of each state of the cache where there is one. None without restores."""
    if not cold.restores:
        return None
    caches = sorted({one.cache for one in cold.restores})
    styles = dict(zip(caches, ((theme.BLUE, "circle"), (theme.VERMILLION, "square"), (theme.PURPLE, "triangle-up")), strict=False))
    lines = [f"{one.cache}: {one.formula}" for one in cold.fits if one.line is not None]
    fitted = "; ".join(lines) or "No line: " + "; ".join(dict.fromkeys(one.why_not for one in cold.fits))
    legend = [LegendEntry(f"restore, cache {cache}", *styles[cache]) for cache in styles]
    if lines:
        legend += [LegendEntry("least squares", theme.MUTED, "line"), LegendEntry("extrapolated", theme.MUTED, "dash")]
    return _chart(
        "restore-bytes",
        "Restore time against the bytes brought back",
        f"{len(cold.restores)} restores, every one a point. {fitted}.",
        legend,
        lambda width: _scatter(cold, styles, width),
    )


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers between `low` and `high`, at most `most` + 1 of them."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(place * step, 12) for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _strip(result: MeasureResult, arms: Sequence[Arm], width: int) -> tuple[int, str]:
    values = [one.value for one in result.points]
    values += [end for arm in arms if (found := result.intervals.get(arm)) for end in (found.low, found.high) if math.isfinite(end)]
    near = max(map(abs, values)) * _FAR
    values += [bar for bar in _bars(result) if abs(bar) <= near]
    low, high = min(0.0, *values), max(0.0, *values)
    place = Scale(low, high + (high - low or 1.0) * 0.04, _LEFT, width - _RIGHT)
    height = _TOP + _ROW * len(arms) + _AXIS
    parts = [_axis(place, height - _AXIS, width, result.unit)]
    for row, arm in enumerate(arms):
        middle = _TOP + _ROW * row + _ROW / 2
        parts.append(_text(0, middle + 4, arm.value, theme.INK))
        mine = [one for one in result.points if one.arm is arm]
        parts += [_mark(one, place(one.value), middle + _lane(index) * 6) for index, one in enumerate(mine)]
        parts.append(_middle(result, arm, place, middle))
    for bar in _bars(result):
        parts.append(_rule(place(bar), _TOP, height - _AXIS))
        if not place.low <= bar <= place.high:
            parts.append(_text(place(bar) - 5, _TOP + 2, f"{wording.quantity(bar, result.unit)} →", theme.PURPLE, anchor="end"))
    return height, "".join(parts)


def _bars(result: MeasureResult) -> list[float]:
    """The numbers to reach, as values of the managed side."""
    given: Threshold | None = result.threshold
    beside = result.medians.get(Arm.UNMANAGED)
    if given is None:
        return []
    found = [value for value in (given.at_most, given.at_least) if value is not None]
    if beside is not None and given.ratio_at_most is not None:
        found.append(given.ratio_at_most * beside)
    if beside is not None and given.gain_at_least is not None:
        found.append(beside + given.gain_at_least)
    return found


def _middle(result: MeasureResult, arm: Arm, place: Scale, middle: float) -> str:
    median, interval = result.medians.get(arm), result.intervals.get(arm)
    parts = []
    if interval is not None:
        ends = [place(end) for end in (interval.low, interval.high)]
        parts.append(f'<path d="M{ends[0]:.1f},{middle:.1f}H{ends[1]:.1f}" stroke="{theme.INK}" stroke-width="5" opacity="0.28"/>')
    if median is not None:
        parts.append(f'<path d="M{place(median):.1f},{middle - 19:.1f}v38" stroke="{theme.INK}" stroke-width="2"/>')
    return "".join(parts)


def _lane(index: int) -> int:
    """Spread points over lanes, from the middle outwards, so that equal values can be told apart."""
    step = index % _LANES
    return (step + 1) // 2 * (1 if step % 2 else -1)


def _mark(point: Point, x: float, y: float) -> str:
    colour, shape = SIDES[point.arm]
    shape = _EXTRAPOLATED if point.basis == "extrapolated" else shape
    return _sign(colour, shape, x, y)


def _sign(colour: str, shape: str, x: float, y: float) -> str:
    at = f"translate({x:.1f},{y:.1f})"
    return f'<path transform="{at}" d="{theme.SHAPES[shape]}" fill="{theme.SURFACE}" stroke="{colour}" stroke-width="1.7"/>'


def _scatter(cold: ColdStart, styles: dict[str, tuple[str, str]], width: int) -> tuple[int, str]:
    height = 260
    right = max(one.logical_bytes for one in cold.restores) * 1.08
    top = max(one.restored_s for one in cold.restores) * 1.12
    x = Scale(0.0, right, 62, width - _RIGHT)
    y = Scale(0.0, top, height - _AXIS - 12, _TOP)
    parts = []
    for value in ticks(0.0, top, 5):
        parts.append(f'<path d="M62,{y(value):.1f}H{width - _RIGHT}" stroke="{theme.GRID}"/>')
        parts.append(_text(56, y(value) + 4, _tick(value, "s"), theme.MUTED, anchor="end"))
    for value in ticks(0.0, right / _unit(right)[0], 4 if width == WIDE else 3):
        at = x(value * _unit(right)[0])
        parts.append(_text(at, height - _AXIS + 6, f"{value:g}", theme.MUTED, anchor="middle"))
    parts.append(_text((62 + width) / 2, height - 8, f"bytes brought back, {_unit(right)[1]}", theme.INK, anchor="middle"))
    for fit in cold.fits:
        if fit.line is not None and fit.cache in styles:
            spans = ((0.0, fit.line.low, "4 4"), (fit.line.low, fit.line.high, ""), (fit.line.high, right, "4 4"))
            for begin, end, dash in spans:
                dashed = f' stroke-dasharray="{dash}"' if dash else ""
                ends = [(x(one), y(fit.line.at(one))) for one in (begin, end)]
                path = f"M{ends[0][0]:.1f},{ends[0][1]:.1f}L{ends[1][0]:.1f},{ends[1][1]:.1f}"
                parts.append(f'<path d="{path}" fill="none" stroke="{theme.MUTED}" stroke-width="1.5"{dashed}/>')
    parts += [_sign(*styles[one.cache], x(one.logical_bytes), y(one.restored_s)) for one in cold.restores if one.cache in styles]
    return height, "".join(parts)


def _unit(size_bytes: float) -> tuple[float, str]:
    return next(
        (float(scale), word) for scale, word in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")) if size_bytes >= scale
    )


def _axis(place: Scale, y: float, width: int, unit: str) -> str:
    parts = []
    for value in ticks(place.low, place.high, 5 if width == WIDE else 3):
        parts.append(f'<path d="M{place(value):.1f},{_TOP}V{y:.1f}" stroke="{theme.GRID}"/>')
        parts.append(_text(place(value), y + 18, _tick(value, unit), theme.MUTED, anchor="middle"))
    if unit not in (*wording.SHARES, "s"):
        parts.append(_text(width - _RIGHT, y + 31, unit, theme.MUTED, anchor="end"))
    return "".join(parts)


def _tick(value: float, unit: str) -> str:
    if unit in wording.SHARES:
        return f"{value * 100:.3g} %".replace("-", "−")
    if unit == "s":
        return f"{value:g} s" if abs(value) < 120 else wording.seconds(value)
    return f"{value:.3g}".replace("-", "−")


def _rule(x: float, top: float, bottom: float) -> str:
    return f'<path d="M{x:.1f},{top - 6:.1f}V{bottom:.1f}" stroke="{theme.PURPLE}" stroke-width="1.6" stroke-dasharray="5 4"/>'


def _text(x: float, y: float, words: str, colour: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" fill="{colour}" text-anchor="{anchor}">{html.escape(words)}</text>'


def _chart(key: str, title: str, description: str, legend: Sequence[LegendEntry], draw: Callable[[int], tuple[int, str]]) -> Chart:
    wide, narrow = (
        _element(f"{key}-{name}", title, description, (width, *draw(width))) for name, width in (("wide", WIDE), ("narrow", NARROW))
    )
    return Chart(key, title, description, tuple(legend), wide, narrow)


def _element(own: str, title: str, description: str, drawn: tuple[int, int, str]) -> str:
    """Make an element of a drawing of some width, height and content."""
    width, height, body = drawn
    return (
        f'<svg role="img" aria-labelledby="{own}-title {own}-desc" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' font-family="sans-serif"><title id="{own}-title">{html.escape(title)}</title>'
        f'<desc id="{own}-desc">{html.escape(description)}</desc>{body}</svg>'
    )
