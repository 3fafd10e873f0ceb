"""The life that follows those before: begun once none of them lives, and withdrawn when one of them ended the work meanwhile.

A life that is waited for does not stand still: it saves, or its workload ends by itself. What was chosen to go on from before the wait is
looked at again after it, so that nothing runs a second time. Called by `start`.
"""

from __future__ import annotations

import msgspec

from perdure import errors
from perdure.base import units
from perdure.checkpoint.preflight import codes
from perdure.model.checkpoint import CheckpointId, Life, LifeEnd
from perdure.store import lives
from perdure.store.lives import HeldLife
from perdure.store.owners import Surroundings
from perdure.store.repository import Repository
from perdure.supervisor.record import State
from perdure.supervisor.voice import Voice


class Completed(msgspec.Struct, frozen=True):
    """The workload ended by itself in life `epoch` while its next life was being begun: there is nothing to go on with."""

    epoch: int
    end: LifeEnd

    @property
    def status(self) -> int:
        """What the workload ended with; 0 where nobody knows, as for `ending.of`."""
        return self.end.status if self.end.status is not None else 0

    @property
    def state(self) -> State:
        """What is to be remembered of the workload."""
        return State.FAILED if self.status else State.COMPLETED


class Succession:
    """What follows the lives that `workload` had when this was made.

    With `regardless` it does not matter how they end: somebody asked for a fresh start, for one checkpoint, or for a running process.
    """

    def __init__(self, repository: Repository, workload: str, *, regardless: bool, surroundings: Surroundings, voice: Voice) -> None:
        self.repository = repository
        """The store that they all are told of in."""
        self._workload = workload
        self._regardless = regardless
        self._surroundings = surroundings
        self._voice = voice
        self._ended = lives.ended(repository, workload)
        self._there: frozenset[CheckpointId] = frozenset()

    def look(self) -> Completed | None:
        """Take note of the checkpoints there are, before one is chosen. Returns how the workload ended, if it has since."""
        if self._regardless:
            return None
        self._there = frozenset(self.repository.checkpoints(self._workload))
        return self._completed()

    def begin(self, *, restored_from: CheckpointId | None, ttl_s: float) -> HeldLife | Completed:
        """Begin the life, waiting for the end of those before it, or for their leases to run out; or return how the workload ended.

        Raises what `lives.begin` does, and `errors.WorkloadBusy` when a checkpoint was made meanwhile: what was chosen may not be the best
        to go on from. A life that is not returned is withdrawn.
        """
        held = lives.begin(
            self.repository,
            self._workload,
            restored_from=restored_from,
            surroundings=self._surroundings,
            ttl_s=ttl_s,
            waiting=self._waiting(),
        )
        if self._regardless:
            return held
        completed = self._completed()
        if completed is not None:
            # Should this record come to be damaged, its second copy still says that the work is done.
            why = f"not begun: life {completed.epoch} completed it: {completed.end.reason}"
            held.withdraw(LifeEnd(self._surroundings.wall_ns(), True, completed.end.status, why))
            return completed
        newer = set(self.repository.checkpoints(self._workload)) - self._there
        if newer:
            held.withdraw(LifeEnd(self._surroundings.wall_ns(), False, None, f"not begun: {max(newer)} was saved meanwhile"))
            raise errors.WorkloadBusy(f"{max(newer)} was saved meanwhile", hint="give the same command again")
        return held

    def _completed(self) -> Completed | None:
        found = lives.completed_since(self.repository, self._workload, self._ended)
        return Completed(*found) if found is not None else None

    def _waiting(self) -> lives.Waiting:
        told: set[int] = set()

        def waiting(life: Life | None, left_s: float) -> None:
            epoch = life.epoch if life else 0
            if epoch not in told:
                told.add(epoch)
                who = f"its life {life.epoch} on {life.hostname}" if life else "a life of it that cannot be read"
                message = f"{who} gave no sign of its end: watching for {units.format_duration(left_s)} whether it still lives"
                self._voice.warn(self._workload, codes.finding("store-life-unended", who, message), words=message)

        return waiting
