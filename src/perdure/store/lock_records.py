"""The objects of locks, and what others see of them: who holds one, what is in use, what was left behind. Called by `locks` and `prune`."""

from __future__ import annotations

import enum

import msgspec

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import documents, layout
from perdure.store.owners import Owner, Quiet, Surroundings
from perdure.store.repository import Repository

TTL_S = 60.0
"""How long a lock is believed after its last sign of life. Long, so that a holder under load does not lose its checkpoint."""
MARGIN = 1.25
"""How much longer than its time an observer waits before it calls a lock left behind: clocks run at slightly different speeds."""

_LOOKS = 10
"""How often a listing is repeated of which something went before it could be read."""


class Kind(enum.StrEnum):
    """What a lock excludes."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


class Record(msgspec.Struct, frozen=True):
    """What a lock says of itself."""

    kind: Kind
    owner: Owner
    using: tuple[CheckpointId, ...]
    """Checkpoints that must not be removed meanwhile."""
    ttl_s: float


class Held(msgspec.Struct, frozen=True):
    """A lock as somebody else sees it. `record` is None for one that cannot be read."""

    key: str
    record: Record | None

    @property
    def owner(self) -> Owner | None:
        """Who holds it, where that can be read."""
        return self.record.owner if self.record else None


def held(repository: Repository) -> tuple[Held, ...]:
    """Return every lock that there is, left behind or not."""
    seen: list[Held | None] = []
    for _ in range(_LOOKS):
        seen = [_read(repository, info.key) for info in repository.backend.list(layout.LOCKS)]
        if None not in seen:
            break
        # One that went after it was listed may have been replaced by another, which was not listed yet.
    return tuple(one for one in seen if one is not None)


def in_use(repository: Repository, surroundings: Surroundings) -> frozenset[CheckpointId]:
    """Return the checkpoints that somebody uses, leaving out those whose user is known to be gone."""
    return frozenset(
        one
        for lock in held(repository)
        if lock.record is not None and surroundings.is_alive(lock.record.owner) is not False
        for one in lock.record.using
    )


class Others:
    """What one who wants a lock has seen of the locks of others, over many looks."""

    def __init__(self, repository: Repository, surroundings: Surroundings, kind: Kind, own: frozenset[str]) -> None:
        self._repository = repository
        self._surroundings = surroundings
        self._kind = kind
        self.own = own
        """Keys of locks that are not others'."""
        self._quiet: dict[str, Quiet] = {}

    def look(self) -> Held | None:
        """Return a lock that is in the way, or None. Those left behind are removed."""
        for _ in range(_LOOKS):
            keys = [info.key for info in self._repository.backend.list(layout.LOCKS) if info.key not in self.own]
            seen = [_read(self._repository, key) for key in keys]
            in_the_way = [one for one in seen if one is not None and self._is_in_the_way(one)]
            if in_the_way:
                return in_the_way[0]
            if None not in seen:
                return None
            # As above.
        return Held(layout.LOCKS, None)

    def _is_in_the_way(self, found: Held) -> bool:
        if found.record is not None and Kind.EXCLUSIVE not in (self._kind, found.record.kind):
            return False
        if self._is_left_behind(found):
            self._repository.backend.delete(found.key)
            return False
        return True

    def _is_left_behind(self, found: Held) -> bool:
        if found.record is not None and self._surroundings.is_alive(found.record.owner) is False:
            return True
        ttl_s = found.record.ttl_s if found.record else TTL_S
        quiet = self._quiet.setdefault(found.key, Quiet(longest_step_s=ttl_s / 5))
        quiet.look(found.record, self._surroundings.now_s())
        return quiet.quiet_s > ttl_s * MARGIN


def _read(repository: Repository, key: str) -> Held | None:
    """Return the lock at `key`; None when it has just been given back."""
    try:
        return Held(key, documents.read(repository, key, Record))
    except errors.ObjectMissing:
        return None
    except errors.StoreCorrupt:
        return Held(key, None)
