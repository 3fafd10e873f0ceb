"""How long to work between two checkpoints, on a node, where there is no NumPy. Called by `triggers`.

The same optimum as `perdure interval` shows; a test holds the two together.
"""

from __future__ import annotations

import math

ASSUMED_MTTF_S = 86400.0
"""Mean time to failure where nobody says one: a day, between the hours of preemptible nodes and the weeks of a quiet single machine.
Being wrong by a factor of four costs little: the optimum moves with the square root, and the loss around it is flat."""

ASSUMED_COST_S = 1.0
"""What a checkpoint is taken to cost until the first one has been measured."""

LEAST_S = 1.0
"""No interval is shorter than this, whatever the figures say: a mistyped failure rate must not stop the workload over and over."""


def mttf_s(said_s: float | None, rated_s: float | None) -> float:
    """Return the mean time to failure to reckon with: what the user said, else what the site's rates say of the workload's size, else
    what is assumed.
    """
    return said_s or rated_s or ASSUMED_MTTF_S


def best_s(mttf_s: float, cost_s: float) -> float:
    """Return the seconds of useful work between two checkpoints that minimise the expected total time; at least `LEAST_S`.

    `mttf_s` is M > 0 and `cost_s` C ≥ 0, how long the workload stands still for one. The minimum under exponential interruptions is
    M·(1 + W₀(−e^{−1−C/M})) with Lambert's W₀ (J. T. Daly, 2006, section 2); y = τ/M solves −y − ln(1 − y) = C/M, by Newton's method
    in z = −ln(1 − y), where e^{−z} − 1 + z = C/M is convex and rising, so that a start at or above the root never leaves it.
    """
    if math.isinf(mttf_s):
        return math.inf if cost_s > 0 else LEAST_S
    ratio = cost_s / mttf_s
    root = math.sqrt(2.0 * ratio)
    z = root + ratio  # e^{−z} − 1 + z ≥ ratio here: from above
    for _ in range(60):
        slope = -math.expm1(-z)
        if slope <= 0.0:
            break
        step = (_remainder(z) - ratio) / slope
        z -= step
        if abs(step) <= 1e-15 * z:
            break
    return max(mttf_s * -math.expm1(-z), LEAST_S)


def _remainder(z: float) -> float:
    """Return e^{−z} − 1 + z for z ≥ 0 without losing digits near 0."""
    if z < 0.05:
        return z * z * (1 / 2 + z * (-1 / 6 + z * (1 / 24 + z * (-1 / 120 + z * (1 / 720 - z / 5040)))))
    return math.expm1(-z) + z
