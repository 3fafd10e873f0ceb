"""Interrupted work for tests: its terms with usual costs, and a simulation that draws the interruptions themselves."""

from __future__ import annotations

import numpy as np

from perdure.stats.completion import Terms


def terms(work, mttf, *, checkpoint=2.0, restore=10.0, fresh=5.0, downtime=5.0, durable=0.0, limit=np.inf) -> Terms:
    columns = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (work, mttf, checkpoint, restore, fresh, downtime, durable, limit)))
    return Terms(*(np.atleast_1d(column).copy() for column in columns))


def simulate(pieces, mttf, downtime, *, runs=100_000, seed=7):
    """Times to get through `pieces` of (length, restart) one after another, by drawing the interruptions."""
    generator = np.random.default_rng(seed)
    total = np.zeros(runs)
    for length, restart in pieces:
        left, need = np.arange(runs), length
        while len(left):
            until = generator.exponential(mttf, len(left))
            done = until >= need
            total[left[done]] += need
            left = left[~done]
            total[left] += until[~done] + downtime
            need = length + restart
    return total
