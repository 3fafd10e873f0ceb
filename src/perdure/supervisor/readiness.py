"""Whether a checkpoint by the clock is worth its place: one of a workload that hangs would push out a good one. Called by `engine`.

Whoever asks for a checkpoint gets one all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure import errors
from perdure.checkpoint import probes, tree
from perdure.model.checkpoint import ProcessFact
from perdure.supervisor import probing
from perdure.supervisor.life import Life

_HINT = "kill -CONT lets it go on; perdure checkpoint saves it all the same"


class Readiness:
    """The look at a workload before one checkpoint by the clock."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._running: probes.Running | None = None
        self._is_given_up = False
        self._stopped = frozenset[int]()
        """Those that somebody had stopped when it was looked at."""
        self.was_given_up = False
        """Nobody knows whether it works: the probe was not waited for."""

    def require(self) -> None:
        """Raise `errors.CheckpointLater` when the workload is stopped, or does not do its work as the user's probe tells.

        Also when it was given up, which `was_given_up` tells.
        """
        found = tree.members(self._life.tree)
        self._stopped = frozenset(each.pid for each in found if each.is_stopped)
        below = [each for each in found[1:] if not each.is_dead]
        if below and all(each.is_stopped for each in below):
            # Whoever stopped it, or hangs so, would be brought back stopped; and the good checkpoints before would make room for it.
            raise errors.CheckpointLater("every process of it is stopped", hint=_HINT)
        if not self._has_passed():
            self.was_given_up = True
            raise errors.CheckpointLater("it makes way for what was asked for", hint="see perdure ps")

    def require_still(self, saved: Sequence[ProcessFact]) -> None:
        """Raise `errors.CheckpointLater` when some of the processes that were `saved` had been stopped since `require`.

        Somebody was stopping the workload just then: it would be brought back stopped, perhaps in part, and nobody would know to let it go
        on.
        """
        stopped = [fact for fact in saved if fact.stopped and fact.host_pid not in self._stopped]
        if stopped:
            names = ", ".join(f"{fact.command} ({fact.host_pid})" for fact in stopped)
            raise errors.CheckpointLater(f"it was being stopped at that moment: {names}", hint=_HINT)

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
