"""The objects of a workload's lives: how they are read and written. Called by `lives`, which says what they mean.

Three objects a life, named by its epoch: ``lives/`` says who began it, written once; ``leases/`` holds a counter that the life writes anew;
``ends/`` says how it ended, written once. The lease repeats what the others say, and stays: one damaged object costs nothing.
"""

from __future__ import annotations

import msgspec

from perdure import errors
from perdure.model.checkpoint import Life, LifeEnd
from perdure.store import documents, layout
from perdure.store.owners import Owner
from perdure.store.repository import Repository

UNREADABLE_TTL_S = 300.0
"""How long a life is waited for whose record cannot be read: nobody may set a longer lease."""


class Begun(msgspec.Struct, frozen=True):
    """The object ``lives/EPOCH``."""

    life: Life
    owner: Owner
    ttl_s: float


class Lease(msgspec.Struct, frozen=True):
    """The object ``leases/EPOCH``. Others watch whether it changes, and fall back on it when another object is damaged."""

    counter: int
    at_ns: int
    begun: Begun
    end: LifeEnd | None = None


class Ended(msgspec.Struct, frozen=True):
    """The object ``ends/EPOCH``. `withdrawn`: the life never ran, because an older one turned out to be alive."""

    end: LifeEnd
    withdrawn: bool = False


class Seen(msgspec.Struct, frozen=True):
    """A life that has no end."""

    epoch: int
    begun: Begun | None
    """None: it cannot be read."""

    @property
    def ttl_s(self) -> float:
        """How long its lease lasts at most."""
        return self.begun.ttl_s if self.begun else UNREADABLE_TTL_S


def without_end(repository: Repository, workload: str) -> list[Seen]:
    """Return the lives without an end that can be read, oldest first. One whose own record is damaged is among them."""
    found = []
    for epoch in epochs(repository, workload):
        if end_if_readable(repository, workload, epoch) is not None:
            continue
        try:
            found.append(Seen(epoch, read_begun(repository, workload, epoch)))
        except (errors.StoreCorrupt, errors.ObjectMissing):
            found.append(Seen(epoch, None))
    return found


def newer(repository: Repository, workload: str, epoch: int) -> int | None:
    """Return the epoch of a newer life that was not withdrawn, or None.

    Asks for the next one by its name too: a listing may be late on a network file system, and only an import makes gaps.
    """
    listed = [one for one in epochs(repository, workload) if one > epoch]
    following = max(listed, default=epoch) + 1
    while has_begun(repository, workload, following):
        listed.append(following)
        following += 1
    for one in listed:
        ended = end_if_readable(repository, workload, one)
        if ended is None or not ended.withdrawn:
            return one
    return None


def has_begun(repository: Repository, workload: str, epoch: int) -> bool:
    """Tell whether there is a life of that epoch."""
    try:
        repository.backend.size(layout.life_key(workload, epoch))
    except errors.ObjectMissing:
        return False
    return True


def epochs(repository: Repository, workload: str) -> list[int]:
    """Return the epochs of all lives, ascending."""
    found = (layout.epoch_of(info.key) for info in repository.backend.list(layout.lives(workload)))
    return sorted(epoch for epoch in found if epoch)


def ended(repository: Repository, workload: str) -> frozenset[int]:
    """Return the epochs of the lives that have an end, or were withdrawn."""
    found = (layout.epoch_of(info.key) for info in repository.backend.list(layout.ends(workload)))
    return frozenset(epoch for epoch in found if epoch)


def read_begun(repository: Repository, workload: str, epoch: int) -> Begun:
    """Return how a life began. Raises `errors.StoreCorrupt` when neither its own record nor its lease can be read."""
    try:
        return documents.read(repository, layout.life_key(workload, epoch), Begun)
    except errors.StoreCorrupt:
        kept = lease(repository, workload, epoch)
        if kept is None:
            raise
        return kept.begun


def read_end(repository: Repository, workload: str, epoch: int) -> Ended | None:
    """Return how a life ended; None: it has no end. Raises `errors.StoreCorrupt` when neither the end nor the lease can be read."""
    try:
        return documents.read(repository, layout.end_key(workload, epoch), Ended)
    except errors.ObjectMissing:
        return None
    except errors.StoreCorrupt:
        kept = lease(repository, workload, epoch)
        if kept is None:
            raise
        # Whoever ends a life in another's place does not write its lease: then it was given up.
        return Ended(kept.end or LifeEnd(at_ns=kept.at_ns, completed=False, status=None, reason="given up"))


def end_if_readable(repository: Repository, workload: str, epoch: int) -> Ended | None:
    """Return how a life ended; None when it has no end, or one that cannot be read: then its lease is watched, which is always safe."""
    try:
        return read_end(repository, workload, epoch)
    except errors.StoreCorrupt:
        return None


def write_end(repository: Repository, workload: str, epoch: int, ended: Ended) -> bool:
    """Record how a life ended; return False when that is recorded already."""
    # The first end that was written counts: whoever writes another one knows less.
    try:
        documents.write(repository, layout.end_key(workload, epoch), ended, replace=False)
    except errors.ObjectExists:
        return False
    return True


def write_lease(repository: Repository, workload: str, epoch: int, lease: Lease) -> None:
    """Write the lease anew."""
    documents.write(repository, layout.lease_key(workload, epoch), lease, replace=True)


def lease(repository: Repository, workload: str, epoch: int) -> Lease | None:
    """Return the lease as it is now; None for one that is missing or cannot be read: both change when the life renews it."""
    try:
        return documents.read(repository, layout.lease_key(workload, epoch), Lease)
    except (errors.ObjectMissing, errors.StoreCorrupt):
        return None
