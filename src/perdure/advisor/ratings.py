"""The mean time to interruption by size, of a history that was advised on: what nodes are given of it. Public, and called by the
command line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from perdure.model.advice import Advice, CauseRates
from perdure.model.attempt import Cause
from perdure.model.rates import Point, Rates
from perdure.stats import mttf

_DOUBLINGS = 17
"""Sizes 1, 2, 4 … 65,536: between them the rates' fit is a straight line in logarithms."""


def rates(advice: Advice, classification: Literal["strict", "inclusive"] = "strict") -> Rates:
    """Return the rates of `advice` that count for a checkpoint's interval: not what is announced, since it is saved before that.

    `classification` says whether ends that may have been the machine's or the user's count as interruptions (``inclusive``) or do not.
    """
    used = [one for one in advice.rates if one.classification == classification and one.cause is not Cause.PREEMPTION]
    return Rates(
        history=advice.history,
        end=advice.exposure.end,
        classification=classification,
        gpu=_points(used, "gpu"),
        node=_points(used, "node"),
    )


def _points(causes: Sequence[CauseRates], unit: Literal["gpu", "node"]) -> tuple[Point, ...]:
    if not any(one.unit == unit and one.job_hours > 0 for one in causes):
        return ()
    sizes = [float(1 << doubling) for doubling in range(_DOUBLINGS)]
    found = mttf.mttf_for_sizes(causes, sizes, unit)
    return tuple((size, one.minutes) for size, one in zip(sizes, found, strict=True) if math.isfinite(one.minutes))
