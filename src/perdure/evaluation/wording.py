"""How figures and words of an evaluation read, the same in terminal, CSV and page. Called by `tables`, `drawing` and `page`.

A figure that is not known is a dash; text that came from a plan, a run or its output is made printable.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from perdure.base import text, units
from perdure.evaluation.headline import NAMES
from perdure.evaluation.window import ArmHours
from perdure.model.advice import Interval
from perdure.model.evaluation import Arm, MeasureKind, MeasureResult, Outcome, Threshold
from perdure.report import figures

UNKNOWN = figures.UNKNOWN
OUTCOME_WORDS: dict[Outcome | None, str] = {
    Outcome.PASS: "pass",
    Outcome.FAIL: "fail",
    Outcome.UNDECIDED: "undecided",
    None: "not judged",
}
SHARES = ("share", "ratio")
"""Units whose values are shown as percentages."""
_OF_ONE_ARM = frozenset({MeasureKind.OVERHEAD, MeasureKind.CHECKPOINT_COST})
"""Measures of the managed arm alone, or of pairs."""


def quantity(value: float | None, unit: str) -> str:
    """Format a value with its unit: ``3.2 s``, ``4m10s``, ``12.5 %``, ``0.04 node-hours``."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if unit in SHARES:
        return figures.percent(value)
    if unit == "s":
        return seconds(value)
    return f"{hours(value)} {unit}"


def hours(value: float) -> str:
    """Format hours: three figures, since what few runs lose is little; without an exponent down to a millionth."""
    size = abs(value)
    if size >= 99.95 or value == 0 or size < 1e-6:
        return figures.amount(value)
    return f"{'−' if value < 0 else ''}{size:.{max(0, 2 - math.floor(math.log10(size)))}f}"


def seconds(value: float | None) -> str:
    """Format seconds: three figures below two minutes, then two units."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    size = abs(value)
    sign = "−" if value < 0 else ""
    if size >= 120:
        return sign + units.format_duration(size)
    if size == 0:
        return "0 s"
    return f"{sign}{size:.{max(0, min(3, 2 - math.floor(math.log10(size))))}f} s"


def difference(value: float | None, unit: str) -> str:
    """Format managed less unmanaged: a difference of shares is one of percentage points."""
    if value is None or unit != "share":
        return quantity(value, unit)
    return f"{value * 100:.1f} points".replace("-", "−")


def difference_interval(value: Interval | None, unit: str) -> str:
    """Format the interval of a difference with its level, empty when there is none."""
    if value is None or unit != "share":
        return interval(value, unit)
    return f"{difference(value.low, unit).removesuffix(' points')} to {difference(value.high, unit)} ({value.level:.0%})"


def interval(value: Interval | None, unit: str) -> str:
    """Format an interval with its level, empty when there is none."""
    if value is None:
        return ""
    low, high = (quantity(end, unit) for end in (value.low, value.high))
    name = f" {unit}"
    return f"{low.removesuffix(name) if unit not in (*SHARES, 's') else low} to {high} ({value.level:.0%})"


def threshold(value: Threshold | None, unit: str) -> str:
    """Say what must be reached."""
    if value is None:
        return "no number"
    parts = []
    if value.at_most is not None:
        parts.append(f"at most {quantity(value.at_most, unit)}")
    if value.ratio_at_most is not None:
        parts.append(f"at most {value.ratio_at_most:g} × unmanaged")
    if value.at_least is not None:
        parts.append(f"at least {quantity(value.at_least, unit)}")
    if value.gain_at_least is not None:
        parts.append(f"at least {difference(value.gain_at_least, unit)} more than unmanaged")
    return " and ".join(parts)


def runs_needed(result: MeasureResult) -> str:
    """Say how many pairs would tell the number from noise, where there is a number."""
    if result.threshold is None:
        return ""
    if result.runs_needed is None:
        return "nobody can say how many"
    return f"{result.runs_needed:,}"


def lacks(result: MeasureResult) -> tuple[str, ...]:
    """Say why no run, or no run of one arm, gave a value: each reason once, with how many runs or interruptions it is of."""
    told = {one.arm for one in result.points}
    if told and (result.kind in _OF_ONE_ARM or len(told) == len(Arm)):
        return ()
    codes: dict[str, list[str]] = {}
    for one in result.unmeasured:
        if one.arm not in told:
            codes.setdefault(one.code, []).append(one.reason)
    which = "".join(f"{arm.value}: " for arm in Arm if told and arm not in told)
    return tuple(f"{which}{len(reasons)} × {reasons[0]}" for reasons in codes.values()) or (f"{which}no run tells of it",)


def basis(result: MeasureResult) -> str:
    """Label a measure: measured, or how many of its points are extrapolated."""
    if not result.points:
        return "not measured"
    guessed = sum(one.basis == "extrapolated" for one in result.points)
    return f"{guessed} of {len(result.points)} extrapolated" if guessed else "measured"


def formulas(result: MeasureResult) -> tuple[str, ...]:
    """Return the formulas, with their inputs, of the points that were extrapolated, each once."""
    return tuple(dict.fromkeys(one.formula for one in result.points if one.basis == "extrapolated" and one.formula))


def name(kind: MeasureKind) -> str:
    """Name a measure."""
    return NAMES[kind]


def device(hours: ArmHours) -> str:
    """Say how busy the device was, or that nobody measured it and why."""
    if hours.device is None:
        return f"not measured: {hours.why_no_device}"
    return f"{figures.percent(hours.device)} (measured in {hours.device_runs} of {hours.runs} runs)"


def ratio(value: float | None) -> str:
    """Format managed over unmanaged."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.3g} ×"


def counter(value: float | None) -> str:
    """Format a workload's counter."""
    return UNKNOWN if value is None else f"{value:,.0f}" if value == round(value) else f"{value:g}"


def size(value_bytes: int | None) -> str:
    """Format bytes."""
    return UNKNOWN if value_bytes is None else units.format_size(value_bytes)


def plain(value: Any) -> str:
    """Return any value of a plan as one printable line."""
    if value is msgspec.UNSET:
        return "(default)"
    return text.printable(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def command(argv: Any) -> str:
    """Return a command as a person would type it, printable."""
    import shlex

    return text.printable(shlex.join(str(word) for word in argv))


def arm(value: Arm) -> str:
    """Name a side."""
    return value.value
