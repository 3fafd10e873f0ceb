"""Random draws that come out the same on every Python from 3.11 and need no numpy.

Python promises the sequence of `random.Random.random` for a seed, and for none of the other methods; numpy promises its bit
generators and not its distributions. So everything here is made from `random()` by textbook formulas.
Another platform's logarithm may differ in the last bit; a simulated time then differs by a second, once in a great many.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")


class Stream:
    """One stream of draws. Streams of one seed with different names are independent, so that a new use of one disturbs no other."""

    def __init__(self, seed: int, name: str) -> None:
        # Not for secrets: a simulation has to be repeatable.
        self.random = random.Random(f"perdure/{seed}/{name}").random  # noqa: S311 — see above

    def exponential(self) -> float:
        """Draw from the exponential distribution with mean 1."""
        return -math.log1p(-self.random())

    def normal(self) -> float:
        """Draw from the standard normal distribution (Box and Muller 1958)."""
        return math.sqrt(-2.0 * math.log1p(-self.random())) * math.cos(2.0 * math.pi * self.random())

    def log_normal(self, median: float, sigma: float) -> float:
        """Draw from the log-normal distribution with this median and this standard deviation of the logarithm."""
        return median * math.exp(sigma * self.normal())

    def gamma(self, shape: float) -> float:
        """Draw from the gamma distribution with this shape and scale 1 (Marsaglia and Tsang 2000)."""
        if shape < 1.0:
            return self.gamma(shape + 1.0) * math.pow(1.0 - self.random(), 1.0 / shape)
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = (1.0 + c * x) ** 3
            if v > 0.0 and math.log1p(-self.random()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v

    def chance(self, probability: float) -> bool:
        """Tell whether something of this probability happens."""
        return self.random() < probability

    def between(self, low: int, high: int) -> int:
        """Draw a whole number from `low` to `high`, both included."""
        return low + int(self.random() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        """Draw one of `items`, each as likely."""
        return items[int(self.random() * len(items))]

    def weighted(self, items: Sequence[T], weights: Sequence[float]) -> T:
        """Draw one of `items` in proportion to `weights`, not all of them zero."""
        sums = list(accumulate(weights))
        return items[min(bisect(sums, self.random() * sums[-1]), len(items) - 1)]
