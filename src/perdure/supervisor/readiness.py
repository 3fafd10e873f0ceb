"""Whether a checkpoint by the clock is worth its place: one of a workload that hangs would push out a good one. Called by `engine`.

Whoever asks for a checkpoint gets one all the same.
"""

from __future__ import annotations

from perdure import errors
from perdure.checkpoint import probes, tree
from perdure.checkpoint.tree import Tree
from perdure.supervisor import probing
from perdure.supervisor.life import Life


class Readiness:
    """The look at a workload before one checkpoint by the clock."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._running: probes.Running | None = None
        self._is_given_up = False
        self.was_given_up = False
        """Nobody knows whether it works: the probe was not waited for."""

    def require(self) -> None:
        """Raise `errors.CheckpointLater` when the workload is stopped, or does not do its work as the user's probe tells.

        Also when it was given up, which `was_given_up` tells.
        """
        if _is_stopped(self._life.tree):
            # Whoever stopped it, or hangs so, would be brought back stopped; and the good checkpoints before would make room for it.
            raise errors.CheckpointLater(
                "every process of it is stopped", hint="kill -CONT lets it go on; perdure checkpoint saves it all the same"
            )
        if not self._has_passed():
            self.was_given_up = True
            raise errors.CheckpointLater("it makes way for what was asked for", hint="see perdure ps")

    def give_up(self) -> None:
        """Wait for the probe no longer, from another thread: it may take long. Without effect once it has ended."""
        self._is_given_up = True
        if self._running is not None:
            self._running.cancel()

    def _has_passed(self) -> bool:
        """Tell whether the user's probe passed; false: it was given up.

        Raises `errors.CheckpointLater` when it says that the workload does not do its work. What is saved then could not be brought back,
        since the same probe decides on that; and would take the place of one that can.
        """
        try:
            probe = probing.probe(self._life)
            if probe is None:
                return True
            self._running = probes.start(probe)
            if self._is_given_up:
                self._running.cancel()
            return self._running.wait() is not None
        except errors.RestoreFailed as error:
            raise errors.CheckpointLater(
                f"{error}: it does not work, and could not be brought back so", hint="perdure checkpoint saves it all the same"
            ) from error


def _is_stopped(root: Tree) -> bool:
    """Tell whether every process below the init is stopped by a signal."""
    found = [each for each in tree.members(root)[1:] if not each.is_dead]
    return bool(found) and all(each.is_stopped for each in found)
