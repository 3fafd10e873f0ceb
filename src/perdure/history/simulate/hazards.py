"""How often a running job is interrupted, and how many interruptions that makes one expect. The truth that estimators look for.

A job of n GPUs meets infrastructure failures at the rate a·n^β·f·m(t): f is the mean over its nodes of how much worse than
usual each is (lemon nodes), m(t) the day's multiplier (bursts); both have mean 1. A failure hits the GPUs of one job: others
on the node run on while it drains. Preemption, of jobs of the low quality of service alone, and operators follow the same law
with f = m = 1. Called by `engine`.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from perdure.history.simulate.draws import Stream
from perdure.history.simulate.jobs import DAY_S, HOUR_S
from perdure.history.simulate.spec import FleetSpec

NEVER = 1 << 40
"""Seconds beyond any simulation."""


class Hazards:
    """True intensities of one fleet. Draws the daily multipliers and the lemon nodes when it is made."""

    def __init__(self, spec: FleetSpec, stream: Stream) -> None:
        per_node = spec.gpus_per_node
        self.coefficients: dict[str, float] = {
            "infrastructure": spec.infrastructure_rate / 24_000.0 / per_node**spec.infrastructure_exponent,
            "preemption": spec.preemption_rate / 1000.0,
            "operator": spec.operator_rate / 24_000.0 / per_node**spec.operator_exponent,
        }
        """a per cause: interruptions per job-hour at one GPU."""
        self.exponents: dict[str, float] = {
            "infrastructure": spec.infrastructure_exponent,
            "preemption": spec.preemption_exponent,
            "operator": spec.operator_exponent,
        }
        self.factors = _node_factors(spec, stream)
        self.day_multipliers: list[float] = [
            stream.gamma(spec.burst_shape) / spec.burst_shape if spec.burst_shape else 1.0 for _ in range(spec.days)
        ]
        self._cumulated = [0.0]
        for multiplier in self.day_multipliers:
            self._cumulated.append(self._cumulated[-1] + multiplier * DAY_S)
        self._rates: dict[tuple[str, int], float] = {}

    def per_hour(self, cause: str, gpus: int) -> float:
        """Return λ(n) of `cause` in interruptions per job-hour: the long-run mean for a job of `gpus` GPUs that is exposed to it."""
        return self.coefficients[cause] * math.pow(gpus, self.exponents[cause])

    def per_second(self, cause: str, gpus: int) -> float:
        """`per_hour` in seconds, remembered."""
        key = (cause, gpus)
        if key not in self._rates:
            self._rates[key] = self.per_hour(cause, gpus) / HOUR_S
        return self._rates[key]

    def node_factor(self, nodes: tuple[int, ...]) -> float:
        """Return f, the mean factor of a job's nodes."""
        if len(nodes) == 1:
            return self.factors[nodes[0]]
        return math.fsum(self.factors[node] for node in nodes) / len(nodes)

    def failing_node(self, nodes: tuple[int, ...], stream: Stream) -> int:
        """Draw which of `nodes` failed, lemons more often."""
        return stream.weighted(nodes, [self.factors[node] for node in nodes])

    def exposure(self, start: int, seconds: int) -> float:
        """Return ∫ m(t) dt over a run: its seconds, weighted by the days' multipliers."""
        return self._cumulated_at(start + seconds) - self._cumulated_at(start)

    def time_to_failure(self, start: int, rate_per_second: float, stream: Stream) -> float:
        """Draw the seconds from `start` to the next infrastructure failure of a job with this rate at m = 1."""
        if rate_per_second <= 0.0:
            return NEVER
        target = self._cumulated_at(start) + stream.exponential() / rate_per_second
        day = bisect_right(self._cumulated, target) - 1
        if day >= len(self.day_multipliers):
            return NEVER
        return day * DAY_S + (target - self._cumulated[day]) / self.day_multipliers[day] - start

    def _cumulated_at(self, second: int) -> float:
        day = min(second // DAY_S, len(self.day_multipliers) - 1)
        return self._cumulated[day] + (second - day * DAY_S) * self.day_multipliers[day]


def _node_factors(spec: FleetSpec, stream: Stream) -> list[float]:
    nodes = spec.gpus // spec.gpus_per_node
    lemons = round(nodes * spec.lemon_share)
    usual = nodes / (nodes - lemons + lemons * spec.lemon_factor)
    factors = [usual] * nodes
    while lemons:
        node = stream.between(0, nodes - 1)
        if factors[node] == usual:
            factors[node] = usual * spec.lemon_factor
            lemons -= 1
        elif spec.lemon_factor == 1.0:
            break
    return factors
