"""How much work interruptions destroyed, as bounds, since accounting holds no log of checkpoints. Called by `tallies`, which adds up.

Upper bound
    all that an interrupted attempt had used, under the inclusive classification, wall-time ends included.
Lower bound
    what unmistakable interruptions destroyed, counting for a workload that seems to resume by itself only what it did since
    a checkpoint of its own, `OWN_CHECKPOINT_S` apart and so half of that on average; and for an attempt that ended at its
    limit and was not followed by another, nothing: it may have been a session or a service that had done its work.

An attempt whose nodes never came up (BOOT_FAIL), and one that failed within its first second, destroyed nothing.
"""

from __future__ import annotations

from perdure.model.attempt import INCLUSIVE, STRICT, Cause

OWN_CHECKPOINT_S = 3600
"""Interval at which an application that checkpoints by itself is taken to do so; an hour is the custom of training codes."""

INTERRUPTING: tuple[str, ...] = tuple(outcome.value for outcome in INCLUSIVE)
"""Endings of attempts that count for the upper bound."""
CERTAIN: tuple[str, ...] = tuple(outcome.value for outcome in STRICT if STRICT[outcome] is not Cause.WALLTIME)
"""Endings of attempts that count for the lower bound, whatever followed them."""
