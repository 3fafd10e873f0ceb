"""How much work interruptions destroyed, as bounds, since accounting holds no log of checkpoints. Called by `workloads`.

Upper bound
    all that an interrupted attempt had used, under the inclusive classification, wall-time ends included.
Lower bound
    what unmistakable interruptions destroyed, counting for a workload that seems to resume by itself only what it did since
    a checkpoint of its own, `OWN_CHECKPOINT_S` apart and so half of that on average; and for an attempt that ended at its
    limit and was not followed by another, nothing: it may have been a session or a service that had done its work.

An attempt whose nodes never came up (BOOT_FAIL), and one that failed within its first second, destroyed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.model.attempt import INCLUSIVE, STRICT, Cause

OWN_CHECKPOINT_S = 3600
"""Interval at which an application that checkpoints by itself is taken to do so; an hour is the custom of training codes."""


def columns() -> dict[str, str]:
    """Return the aggregates that the bounds are made of, by name, over ``ordered`` (with `continued`: another run followed).

    Runs whose ending is not of `INCLUSIVE` add nothing to them.
    """
    stochastic = _listed(cause for cause in STRICT if STRICT[cause] is not Cause.WALLTIME)
    since_checkpoint = f"least(elapsed_s, {OWN_CHECKPOINT_S // 2}) * (cost_ms // greatest(elapsed_s, 1))"
    certain = f"NOT boot AND (ending IN {stochastic} OR ending = 'walltime' AND continued)"
    return {
        "destroyed_high_ms": f"coalesce(sum(cost_ms) FILTER (NOT boot AND ending IN {_listed(INCLUSIVE)}), 0)::DOUBLE",
        "destroyed_certain_ms": f"coalesce(sum(cost_ms) FILTER ({certain}), 0)::DOUBLE",
        "destroyed_resumed_ms": f"coalesce(sum({since_checkpoint}) FILTER ({certain}), 0)::DOUBLE",
    }


def _listed(outcomes: Iterable[str]) -> str:
    return "(" + ", ".join(f"'{outcome}'" for outcome in outcomes) + ")"
