"""Are events more bunched than chance alone would have them? Called by `stats.rates`.

LANL's systems show a coefficient of variation of 1.5 to 2 between failures, and intervals that assume
independent events are then too narrow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perdure.model import advice

Floats = NDArray[np.float64]

WARN_VARIATION = 1.3
"""Gaps that vary more than this, and more than an uneven exposure explains, are called over-dispersed whatever the daily counts
say: bursts too small to stand out of a day."""
SIGNIFICANCE = 0.10
"""Missing a real burst makes intervals too narrow, a false alarm only a little wider: so the test is a liberal one."""
_FEWEST_EVENTS = 5
"""Below this neither figure means anything."""
_SIMULATIONS = 999
_GAP_SIMULATIONS = 99
"""Fewer, since each sorts all events; their largest is the bound, so that a false alarm has a chance of 1 %."""


def coefficient_of_variation(event_times_h: Floats) -> float | None:
    """Return the standard deviation over the mean of the times between events, in any order; 1 for a Poisson process.

    Events of one instant are one incident here, as in the published figures for LANL's systems; how many each incident
    interrupts shows in the index of the daily counts. None for fewer than three instants. Oracle: LANL's systems 8, 18, 19 and 20.
    """
    gaps = np.diff(np.unique(event_times_h))
    return float(gaps.std(ddof=1) / gaps.mean()) if gaps.size >= 2 else None


def measure(event_times_h: Floats, daily_events: Floats, daily_expected: Floats, generator: np.random.Generator) -> advice.Dispersion:
    """Measure and test over-dispersion.

    `daily_events` and `daily_expected` have one entry a day; the expectation need only be proportional to exposure. The index
    is Pearson's X²/(days − 1) given the total (Fisher 1950). Its p-value is exact up to simulation: given the total, a
    Poisson process spreads events over days multinomially, and 999 such spreads are drawn; days of one or fewer expected
    events make χ² a poor approximation.
    """
    variation = coefficient_of_variation(event_times_h)
    exposed = daily_expected > 0
    counts, share = daily_events[exposed], daily_expected[exposed]
    total = float(counts.sum())
    if total < _FEWEST_EVENTS or counts.size < 2:
        return advice.Dispersion(variation, None, None, over_dispersed=False)
    probability = share / share.sum()
    expected = total * probability
    # Σ(O−E)²/E = ΣO²/E − total, whatever the counts.
    statistic = float((counts**2 / expected).sum()) - total
    draws = generator.multinomial(round(total), probability, size=_SIMULATIONS)
    simulated = (draws.astype(float) ** 2 / expected).sum(axis=1) - total
    p_value = (1 + int((simulated >= statistic - 1e-9).sum())) / (1 + _SIMULATIONS)
    over_dispersed = p_value < SIGNIFICANCE or _gaps_vary_beyond_chance(
        variation, draws[:_GAP_SIMULATIONS], np.flatnonzero(exposed), generator
    )
    return advice.Dispersion(variation, statistic / (counts.size - 1), p_value, over_dispersed=over_dispersed)


def _gaps_vary_beyond_chance(
    variation: float | None, draws: NDArray[np.int64], days: NDArray[np.intp], generator: np.random.Generator
) -> bool:
    """Tell whether the gaps vary more than those of each of `draws`, daily counts of a Poisson process under the same exposure."""
    if variation is None or variation <= WARN_VARIATION:
        return False
    for counts in draws:
        instants = np.repeat(days * 24.0, counts) + generator.uniform(0.0, 24.0, int(counts.sum()))
        by_chance = coefficient_of_variation(instants)
        if by_chance is not None and by_chance >= variation:
            return False
    return True
