"""Figures in sentences: one unit, three significant digits. Called for every reason that a verdict gives.

`base.units.format_duration` writes two units for tables; a sentence reads better with one, and 100,000 verdicts need it fast.
"""

from __future__ import annotations


def duration(minutes: float) -> str:
    """Write minutes as ``42 s``, ``42.4 min``, ``7.9 h``, ``47.7 d`` or ``4.2 years``; inf is ``ever``, as in *one in ever*."""
    if minutes < 1.0:
        return f"{minutes * 60.0:.3g} s"
    if minutes < 120.0:
        return f"{minutes:.3g} min"
    if minutes < 2880.0:
        return f"{minutes / 60.0:.3g} h"
    if minutes < 1_438_560.0:  # 999 days
        return f"{minutes / 1440.0:.3g} d"
    years = minutes / 525_960.0
    if years < 999.5:
        return f"{years:.3g} years"
    return f"{years:,.0f} years" if years < 1e6 else "over a million years"


def share(probability: float) -> str:
    """Write a probability as a percentage that never claims certainty by rounding: ``98.3 %``, ``over 99.9 %``."""
    if probability <= 0.0 or probability >= 1.0:
        return "0 %" if probability <= 0.0 else "100 %"
    if probability > 0.999:
        return "over 99.9 %"
    return f"{probability * 100.0:.3g} %" if probability >= 0.001 else "under 0.1 %"


def amount(number: float) -> str:
    """Write a plain number: ``0.0146``, ``3.04``, ``4,300``."""
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"
