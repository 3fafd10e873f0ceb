"""How long a job of each size runs until it is interrupted: what `perdure advise --rates` leaves for `perdure run --every auto`.

A small JSON document, so that a node needs neither the history nor what reckons with it.
"""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Sequence
from typing import Literal

import msgspec

from perdure import errors

HINT = "make it with: perdure advise HISTORY --rates FILE"
MOST_BYTES = 1 << 20
"""A reader refuses larger ones."""

Point = tuple[float, float]
"""A size, and the mean time to interruption of a job of that size in minutes."""


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mean times to interruption by size, sizes ascending. Interruptions that are announced (preemption, wall time) are left out."""

    format: Literal["perdure-rates"] = "perdure-rates"
    version: Literal[1] = 1
    history: str
    """What they were estimated from."""
    end: str
    """Last instant of that, ISO 8601 UTC."""
    classification: Literal["strict", "inclusive"]
    gpu: tuple[Point, ...]
    """By GPUs; empty: the history has no jobs with GPUs."""
    node: tuple[Point, ...]
    """By nodes, of jobs without GPUs."""

    def mttf_minutes(self, unit: Literal["gpu", "node"], size: float) -> float | None:
        """Return the mean time to interruption of a job of `size` (> 0) GPUs or nodes; None: nothing is known.

        Between two sizes the logarithm is interpolated over that of the size, as the rates' own fit does; beyond them the nearest counts.
        """
        points = self.gpu if unit == "gpu" else self.node
        if not points:
            return None
        after = bisect.bisect_left(points, size, key=lambda point: point[0])
        if after in (0, len(points)):
            return points[min(after, len(points) - 1)][1]
        (low, low_minutes), (high, high_minutes) = points[after - 1], points[after]
        share = math.log(size / low) / math.log(high / low)
        return math.exp(math.log(low_minutes) * (1.0 - share) + math.log(high_minutes) * share)


def encode_rates(rates: Rates) -> bytes:
    """Return `rates` as the JSON document that `perdure run --rates` and the setting `rates` read."""
    return msgspec.json.format(msgspec.json.encode(rates), indent=2) + b"\n"


def decode_rates(content: bytes) -> Rates:
    """Read the document. Raises `errors.InputFormat`."""
    try:
        found = msgspec.json.decode(content, type=Rates)
    except msgspec.DecodeError as error:
        raise errors.InputFormat(f"not a file of rates: {error}", hint=HINT) from error
    for points in (found.gpu, found.node):
        if not _are_right(points):
            raise errors.InputFormat("not a file of rates: sizes that do not ascend, or times that are none", hint=HINT)
    return found


def _are_right(points: Sequence[Point]) -> bool:
    sizes = [size for size, _ in points]
    values = [value for point in points for value in point]
    return all(value > 0 and math.isfinite(value) for value in values) and all(map(operator.lt, sizes, sizes[1:]))
