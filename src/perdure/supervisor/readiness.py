"""Whether a checkpoint by the clock is worth its place: one of a workload that hangs would push out a good one. Called by `engine`.

Whoever asks for a checkpoint gets one all the same.
"""

from __future__ import annotations

from perdure import errors
from perdure.checkpoint import alive, tree
from perdure.checkpoint.tree import Tree
from perdure.supervisor import probing
from perdure.supervisor.life import Life


def require(life: Life) -> None:
    """Raise `errors.CheckpointLater` when the workload is stopped, or does not do its work as the user's probe tells."""
    if _is_stopped(life.tree):
        # Whoever stopped it, or hangs so, would be brought back stopped; and the good checkpoints before would make room for it.
        raise errors.CheckpointLater(
            "every process of it is stopped", hint="kill -CONT lets it go on; perdure checkpoint saves it all the same"
        )
    _require_working(life)


def _is_stopped(root: Tree) -> bool:
    """Tell whether every process below the init is stopped by a signal."""
    found = [each for each in tree.members(root)[1:] if not each.is_dead]
    return bool(found) and all(each.is_stopped for each in found)


def _require_working(life: Life) -> None:
    """Raise `errors.CheckpointLater` when the user's probe says that the workload does not do its work.

    What is saved then could not be brought back, since the same probe decides on that; and would take the place of one that can.
    """
    try:
        probe = probing.probe(life)
        if probe is not None:
            alive.run_probe(probe)
    except errors.RestoreFailed as error:
        raise errors.CheckpointLater(
            f"{error}: it does not work, and could not be brought back so", hint="perdure checkpoint saves it all the same"
        ) from error
