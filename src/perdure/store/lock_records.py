"""The objects of locks, and what others see of them: who holds one, what is in use, what was left behind. Called by `locks` and `prune`."""

from __future__ import annotations

import enum
from concurrent.futures import ThreadPoolExecutor

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


UNTOLD = Held(layout.LOCKS, None)
"""Stands for the locks of a store where some go, look after look, before they can be read."""


class Known:
    """The locks that there are, over many looks. What lies at a key never changes: each is read once, so that looks soon see all of them.

    With many holders, of whom each replaces its lock every so often, one that reads all of them anew would always find that some went.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._read: dict[str, Held] = {}

    def look(self, own: frozenset[str] = frozenset()) -> tuple[list[Held], bool]:
        """Return the locks that there are now, but for those at the keys `own`; and whether these are all.

        They are not when one went after it was listed: it may have been replaced by another, which was not listed yet.
        """
        keys = [info.key for info in self._repository.backend.list(layout.LOCKS) if info.key not in own]
        new = [key for key in keys if key not in self._read]
        found = dict(zip(new, self._read_all(new), strict=True))
        seen = [one for one in (self._read.get(key) or found[key] for key in keys) if one is not None]
        # One that cannot be read now is read again: perhaps the server of a shared folder did not have all of it yet.
        self._read = {one.key: one for one in seen if one.record is not None}
        return seen, None not in found.values()

    def _read_all(self, keys: list[str]) -> list[Held | None]:
        readers = min(len(keys), self._repository.backend.parallel)
        if readers <= 1:
            return [_read(self._repository, key) for key in keys]
        with ThreadPoolExecutor(readers, thread_name_prefix="perdure-store-look") as pool:
            return list(pool.map(lambda key: _read(self._repository, key), keys))


def held(repository: Repository) -> tuple[Held, ...]:
    """Return every lock that there is, left behind or not. Raises `errors.StoreLocked` when that cannot be told now."""
    known = Known(repository)
    for _ in range(_LOOKS):
        seen, are_all = known.look()
        if are_all:
            return tuple(seen)
    raise untold()


def untold() -> errors.StoreLocked:
    """Return the error for a store of which it cannot be told now who is at work in it."""
    return errors.StoreLocked("the locks of this store come and go faster than they can be read", hint="try again")


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

    def __init__(self, repository: Repository, surroundings: Surroundings, kind: Kind, *, own: frozenset[str], known: Known) -> None:
        """`known`: what was seen before, which is added to."""
        self._repository = repository
        self._surroundings = surroundings
        self._known = known
        self._kind = kind
        self.own = own
        """Keys of locks that are not others'."""
        self._quiet: dict[str, Quiet] = {}

    def look(self) -> Held | None:
        """Return a lock that is in the way, or None; `UNTOLD` when that cannot be told now. Those left behind are removed."""
        for _ in range(_LOOKS):
            seen, are_all = self._known.look(self.own)
            in_the_way = [one for one in seen if self._is_in_the_way(one)]
            if in_the_way:
                return in_the_way[0]
            if are_all:
                return None
        return UNTOLD

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
