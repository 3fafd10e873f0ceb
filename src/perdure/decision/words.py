"""Figures in sentences: one unit, three significant digits. Called for every reason that a verdict gives.

`base.units.format_duration` writes two units for tables; a sentence reads better with one, and 100,000 verdicts need it fast.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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


_UNITS = ("s", "min", "h", "d", "years")
_BEGIN = np.array([1.0, 120.0, 2880.0, 1_438_560.0])
"""Minutes from which the next unit is written."""
_PER_MINUTE = np.array([60.0, 1.0, 1 / 60.0, 1 / 1440.0, 1 / 525_960.0])
_SCALES = np.array([100.0, 10.0, 1.0])
"""What makes three digits of a number below 10, below 100 and below 1000 a whole number."""
_CODES = 1001
_FEW = 32
"""Fewer are written one by one."""


class _Texts(dict[int, str]):
    """Every duration of three digits that was written; there are 15,000 at the most."""

    def __missing__(self, code: int) -> str:
        kind, number = divmod(code, _CODES)
        unit, scale = divmod(kind, len(_SCALES))
        text = self[code] = f"{number / _SCALES[scale]:.3g} {_UNITS[unit]}"
        return text


_texts = _Texts()


def durations(minutes: NDArray[np.float64]) -> list[str]:
    """Write many as `duration` does, several times as fast."""
    if len(minutes) < _FEW:
        return list(map(duration, minutes.tolist()))
    unit = np.searchsorted(_BEGIN, minutes, side="right")
    with np.errstate(invalid="ignore"):
        value = minutes * _PER_MINUTE[unit]
        scale = (value < 100).astype(np.intp)
        scale = 2 - scale - (value < 10)
        scaled = value * _SCALES[scale]
        # What lies in the middle of two numbers, up to the rounding here, is for the digits themselves to decide.
        plain = (value >= 1) & (value < 999) & (np.abs(scaled - np.floor(scaled) - 0.5) > 1e-6)
    codes = np.where(plain, (unit * len(_SCALES) + scale) * _CODES + np.rint(np.where(plain, scaled, 0.0)), 0).astype(np.intp)
    texts = list(map(_texts.__getitem__, codes.tolist()))
    for index in np.flatnonzero(~plain).tolist():
        texts[index] = duration(float(minutes[index]))
    return texts


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
