"""What a simulated fleet is: its size, how often it breaks, how it is used. Read by every module of the simulator.

The record is written into ``truth.json`` as it is, so that a fleet can be made again from its own truth.
"""

from __future__ import annotations

import datetime
import math

import msgspec

from perdure import errors
from perdure.model import advice

LOW_QOS = "low"
"""Jobs of this quality of service, and no others, are preempted."""

MINIMUM_GPUS = 32
MAXIMUM_GPUS = 131_072
MAXIMUM_DAYS = 1000


class FleetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fleet and its faults. Rates are true intensities: what an estimator should find."""

    gpus: int = 2048
    """GPUs of the fleet; a multiple of `gpus_per_node`, 32 to 131,072."""
    days: int = 90
    """Length of the history, 1 to 1000."""
    gpus_per_node: int = 8
    """GPUs of one node, 1 to 16. Jobs smaller than a node share it, larger ones take whole nodes."""
    users: int | None = None
    """Number of users; None: one for every 16 GPUs, at least 8."""
    load: float = 0.92
    """Work offered as a share of all GPU-hours, 0.05 to 1.5. 0.92 keeps about 85 % of GPUs busy; from 1 on, the queue only grows."""
    infrastructure_rate: float = 20.0
    """Infrastructure failures per 1000 node-days of a job that fills one node. Default: what Kokolis et al. 2025 measured at 8 and
    at 1024 GPUs implies (21 and 24); their quoted fit is 6.5."""
    infrastructure_exponent: float = 1.0
    """β of λ(n) = a·n^β: 1 when failures are proportional to GPUs."""
    preemption_rate: float = 25.0
    """Preemptions per 1000 job-hours of a one-GPU job of the low quality of service; other jobs are never preempted."""
    preemption_exponent: float = 0.3
    """Growth of the preemption rate with GPUs."""
    operator_rate: float = 2.0
    """Cancellations by operators per 1000 node-days of a job that fills one node."""
    operator_exponent: float = 1.0
    """Growth of the operators' rate with GPUs."""
    burst_shape: float | None = None
    """Shape k of a gamma with mean 1 that multiplies the infrastructure rate anew each day; None: a Poisson process.
    0.5 gives the bunching of LANL's systems (coefficient of variation 1.5 to 2)."""
    lemon_share: float = 0.01
    """Share of nodes that fail more often, 0 to 0.5."""
    lemon_factor: float = 8.0
    """How much more often. The others fail so much less often that the mean over nodes is 1."""
    masked_share: float = 0.02
    """Share of infrastructure failures that accounting shows as FAILED 0:9 with a failed node instead of NODE_FAIL."""
    quirks: bool = True
    """Plant what real files hold: delimiters, newlines, bad bytes, markup and formulas in user-controlled fields."""
    cluster: str = "simulated"
    """Name of the cluster, in every record."""
    start: str = "2026-01-05"
    """First day, UTC, ISO 8601."""
    costs: advice.Costs = advice.Costs()
    """True costs of every workload: C, R and R0. D is what the queue makes it."""


_RANGES: dict[str, tuple[float, float]] = {
    "gpus": (MINIMUM_GPUS, MAXIMUM_GPUS),
    "days": (1, MAXIMUM_DAYS),
    "gpus_per_node": (1, 16),
    "users": (1, 100_000),
    "load": (0.05, 1.5),
    "infrastructure_rate": (0.0, 10_000.0),
    "infrastructure_exponent": (-1.0, 3.0),
    "preemption_rate": (0.0, 10_000.0),
    "preemption_exponent": (-1.0, 3.0),
    "operator_rate": (0.0, 10_000.0),
    "operator_exponent": (-1.0, 3.0),
    "burst_shape": (0.05, 1000.0),
    "lemon_share": (0.0, 0.5),
    "lemon_factor": (1.0, 1000.0),
    "masked_share": (0.0, 1.0),
}


def check(spec: FleetSpec) -> None:
    """Refuse a fleet that cannot be. Raises `errors.UsageError`: `errors.QuantityError` for a number, naming its range."""
    for name, (low, high) in _RANGES.items():
        value = getattr(spec, name)
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise errors.QuantityError(f"{name.replace('_', '-')}: {value} is out of range", hint=f"give {low:g} to {high:g}")
    try:
        datetime.date.fromisoformat(spec.start)
    except ValueError:
        raise errors.UsageError(f"start: {spec.start!r} is not a date", hint="write it like 2026-01-05") from None
    if not spec.cluster.isidentifier():
        raise errors.UsageError(f"cluster: {spec.cluster!r} is not a cluster's name", hint="use letters, digits and underscores")
    if spec.gpus % spec.gpus_per_node:
        raise errors.QuantityError(
            f"gpus: {spec.gpus} is not a multiple of the {spec.gpus_per_node} GPUs of a node",
            hint=f"give {spec.gpus - spec.gpus % spec.gpus_per_node} or {spec.gpus + spec.gpus_per_node - spec.gpus % spec.gpus_per_node}",
        )
    if spec.gpus // spec.gpus_per_node < 4:
        raise errors.QuantityError(f"gpus: {spec.gpus} makes fewer than 4 nodes", hint=f"give at least {4 * spec.gpus_per_node}")
