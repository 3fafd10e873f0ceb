"""How figures read in every report: hours, durations, shares, sizes, and the words for outcomes and causes.

Called by the terminal and the page. A figure that is not known is a dash; nothing here prints ``nan``, ``inf`` or ``None``.
"""

from __future__ import annotations

import math

from perdure.base import text, units
from perdure.model.advice import Bounds, Interval, Mttf, RateBin, Size, VerdictKind

UNKNOWN = "–"

VERDICT_MEANING: dict[VerdictKind, str] = {
    VerdictKind.RESUME: "checkpoints cost less than running it again",
    VerdictKind.RESUME_REQUIRED: "without checkpoints it cannot be done in time",
    VerdictKind.RETRY: "running it again costs less than checkpoints",
    VerdictKind.EITHER: "the evidence does not settle it",
    VerdictKind.NEITHER: "it fails by its own fault: fix that first",
}

_WORDS = {
    "user_failure": "user failure",
    "suspected_infrastructure": "suspected infrastructure",
    "user_cancel": "cancelled by user",
    "operator_cancel": "cancelled by operator",
    "never_started": "never started",
    "walltime": "wall-time limit",
    "censored": "still running",
    "deadline": "deadline reached",
    "infrastructure": "infrastructure",
}


def amount(value: float | None) -> str:
    """Format hours or counts with three figures or more: ``31,240``, ``12.5``, ``0.04``. None is a dash."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size >= 99.95 or value == round(value):
        digits = f"{size:,.0f}"
    elif size >= 9.995:
        digits = f"{size:.1f}"
    elif size >= 0.005:
        digits = f"{size:.2f}"
    else:
        digits = f"{size:.1g}"
    return f"−{digits}" if value < 0 else digits


def duration(minutes: float | None) -> str:
    """Format minutes, two units at most; None is a dash and infinity ``never``."""
    if minutes is None or math.isnan(minutes):
        return UNKNOWN
    sign = "−" if minutes < 0 else ""
    days = abs(minutes) / 1440
    if math.isfinite(minutes) and days >= 100:
        return f"{sign}{days:,.0f}d"
    return sign + units.format_duration(abs(minutes) * 60)


def percent(share: float | None) -> str:
    """Format a share of 0 to 1 as a percentage; small shares keep two figures, none is lost to rounding."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    value = share * 100
    if value == 0:
        return "0 %"
    if abs(value) < 0.01:
        return "< 0.01 %"
    return (f"{value:.2f} %" if abs(value) < 1 else f"{value:.1f} %").replace("-", "−")


def share(part: float | None, whole: float) -> float | None:
    """Return `part` of `whole`, 0 to 1; None when either is not known or the whole is nothing."""
    return None if part is None or whole <= 0 else part / whole


def size(value: Size) -> str:
    """Format a size with its unit: ``1,024 GPUs``, ``1 node``."""
    return f"{_count(value.count)} {unit_name(value.unit, plural=value.count != 1)}"


def unit_name(unit: str, *, plural: bool = True) -> str:
    """Name a size's unit as people write it: GPUs, nodes."""
    return ("GPU" if unit == "gpu" else "node") + ("s" if plural else "")


def hours_name(unit: str) -> str:
    """Name the hours that are counted for a size's unit: GPU-hours, node-hours."""
    return "GPU-hours" if unit == "gpu" else "node-hours"


def size_range(low: float, high: float | None) -> str:
    """Format a range of sizes: ``8``, ``9–63``, ``≥ 1,024``."""
    if high is None or math.isinf(high):
        return f"≥ {_count(low)}"
    return _count(low) if low == high else f"{_count(low)}–{_count(high)}"


def mttf(value: Mttf) -> str:
    """Format a mean time to failure; ``none seen`` where no rate above zero could be estimated."""
    return duration(value.minutes) if math.isfinite(value.minutes) else "none seen"


def duration_interval(interval: Interval | None) -> str:
    """Format an interval of minutes: ``5h3m–9h40m``, open above as ``> 5h3m``."""
    if interval is None:
        return UNKNOWN
    if math.isinf(interval.high):
        return f"> {duration(interval.low)}"
    return f"{duration(interval.low)}–{duration(interval.high)}"


def bin_mttf(one: RateBin) -> str:
    """Format the mean time between a bin's interruptions; without events only its lower bound is known."""
    if one.events:
        return duration(60 / one.rate_per_job_hour) if one.rate_per_job_hour > 0 else UNKNOWN
    if one.interval is not None and one.interval.high > 0:
        return f"> {duration(60 / one.interval.high)}"
    return UNKNOWN


def bin_mttf_interval(one: RateBin) -> str:
    """Format the interval that belongs to `bin_mttf`."""
    if one.interval is None or one.interval.high <= 0 or not one.events:
        return ""
    low = one.interval.low
    return duration_interval(Interval(60 / one.interval.high, 60 / low if low > 0 else math.inf, one.interval.level))


def bounds(value: Bounds) -> str:
    """Format a bounded quantity: ``210 to 466``; one figure when both agree."""
    low, high = amount(value.low), amount(value.high)
    return high if low == high else f"{low} to {high}"


def word(name: str) -> str:
    """Name an outcome, a cause or a policy as people do. An unknown one is shown as it is, made printable."""
    return _WORDS.get(name, text.printable(name.replace("_", " ")))


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"
