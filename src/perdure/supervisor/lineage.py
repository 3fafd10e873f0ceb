"""Which checkpoints a workload may go on from. Pure. Called by `resume`.

A life that was not restored from anything begins a run; each restore goes on in the same run. The checkpoints of a run that was
completed, or started over, are kept for whoever asks for one by its id, and are never picked by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.model.checkpoint import CheckpointId, Life


def candidates(lives: Mapping[int, Life], checkpoints: Iterable[CheckpointId]) -> tuple[CheckpointId, ...]:
    """Return the checkpoints of the present run, best first.

    `lives` are those known, by epoch. A life that is not known (the store was imported without it) ends the walk, and all
    checkpoints up to it count. A run whose newest life ended by itself has none.
    """
    ordered = sorted(checkpoints, reverse=True)
    if not lives:
        return tuple(ordered)
    life = lives[max(lives)]
    if life.end is not None and life.end.completed:
        return ()
    # Epochs beyond the newest known life come from elsewhere, and are newer than all that is known.
    found = [one for one in ordered if one.epoch > life.epoch]
    limit = (life.epoch, 10**9)
    while True:
        found += [one for one in ordered if one.epoch == limit[0] and one.sequence <= limit[1]]
        origin = life.restored_from
        if origin is None:
            return tuple(found)
        limit = (origin.epoch, origin.sequence)
        if origin.epoch not in lives or origin.epoch >= life.epoch:
            return tuple(found + [one for one in ordered if (one.epoch, one.sequence) <= limit])
        life = lives[origin.epoch]
