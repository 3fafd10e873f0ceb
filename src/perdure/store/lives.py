"""Lives of a workload: numbered by an epoch that the store hands out, kept alive by a lease, ended once.

Three objects a life, named by its epoch: ``lives/`` says who began it, written once; ``leases/`` holds a counter that the life writes anew;
``ends/`` says how it ended, written once. Two copies of one workload can never both go on:

- a newer life begins when every older one has an end, or its process is known to be gone, or its lease was seen not to change for longer
  than it lasts. It first writes its own life and lease and then looks at the older leases again;
- a life that renews writes its lease first and then looks for newer lives.

Of two that cross, at least one sees the other: the older stops, or the newer withdraws. A life believes in itself until `ttl_s` after the
start of its last renewal that worked, by its own clock; an observer waits for longer than that by its own. Times of day decide nothing.

Called by the supervisor, which stops its workload when `HeldLife.renew` raises or `remaining_s` is used up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import msgspec

from perdure import errors
from perdure.model.checkpoint import CheckpointId, Life, LifeEnd, check_name
from perdure.store import documents, layout
from perdure.store.owners import Owner, Quiet, Surroundings
from perdure.store.repository import Repository

TTL_S = 30.0
"""How long a lease lasts by default, in seconds."""
MARGIN = 1.25
"""How much longer than a lease lasts an observer waits: clocks run at slightly different speeds."""
LOOKS_A_TTL = 10
"""How often an observer looks in that time."""
UNREADABLE_TTL_S = 300.0
"""How long a life is waited for whose record cannot be read: nobody may set a longer lease."""


class Begun(msgspec.Struct, frozen=True):
    """The object ``lives/EPOCH``."""

    life: Life
    owner: Owner
    ttl_s: float


class Lease(msgspec.Struct, frozen=True):
    """The object ``leases/EPOCH``. That it changes is all that others read from it."""

    counter: int
    at_ns: int


class Ended(msgspec.Struct, frozen=True):
    """The object ``ends/EPOCH``. `withdrawn`: the life never ran, because an older one turned out to be alive."""

    end: LifeEnd
    withdrawn: bool = False


class _Seen(msgspec.Struct, frozen=True):
    """An older life that has no end."""

    epoch: int
    begun: Begun | None
    """None: it cannot be read."""

    @property
    def ttl_s(self) -> float:
        return self.begun.ttl_s if self.begun else UNREADABLE_TTL_S


Waiting = Callable[[Life | None, float], None]
"""Told which life is watched (None: one that cannot be read) and for how many seconds more, before it counts as gone."""


class HeldLife:
    """The life that this process holds. Only `begin` makes one."""

    def __init__(self, repository: Repository, begun: Begun, lease: Lease, believed_since_s: float, surroundings: Surroundings) -> None:
        self._repository = repository
        self._begun = begun
        self._lease = lease
        self._believed_since_s = believed_since_s
        self._surroundings = surroundings

    @property
    def life(self) -> Life:
        """What was recorded when it began."""
        return self._begun.life

    @property
    def ttl_s(self) -> float:
        """How long the lease lasts, in seconds. Renew every third of it."""
        return self._begun.ttl_s

    @property
    def remaining_s(self) -> float:
        """Seconds for which this life may go on without another renewal; 0 or less: its workload must be stopped now."""
        return self._believed_since_s + self._begun.ttl_s - self._surroundings.now_s()

    def renew(self) -> None:
        """Renew the lease.

        Raises `errors.StaleLife` when a newer life has begun, or when the store did not answer and the lease is used up: the workload must
        be stopped then. Raises another `errors.StoreError` when it did not answer and `remaining_s` is left to try again.
        """
        workload, epoch = self.life.workload, self.life.epoch
        since_s = self._surroundings.now_s()
        lease = Lease(self._lease.counter + 1, self._surroundings.wall_ns())
        try:
            _write_lease(self._repository, workload, epoch, lease)
            newer = _newer(self._repository, workload, epoch)
        except errors.StoreError as error:
            if self.remaining_s > 0:
                raise
            raise errors.StaleLife(
                f"{workload}: life {epoch} could not renew its lease for {self.ttl_s:g} s: {error}",
                hint="another machine may have taken the workload over; the same command again continues it where that is not so",
            ) from error
        if newer is not None:
            raise errors.StaleLife(
                f"{workload}: life {newer} has begun: life {epoch} must not act any more", hint=f"see where it runs: perdure ps {workload}"
            )
        # Late is not too late: had somebody begun meanwhile, it would have been seen just now.
        self._lease, self._believed_since_s = lease, since_s

    def end(self, end: LifeEnd) -> None:
        """Record how the life ended. Nothing happens when an end was recorded already, by whoever took over."""
        _write_end(self._repository, self.life.workload, self.life.epoch, Ended(end))


def begin(
    repository: Repository,
    workload: str,
    *,
    restored_from: CheckpointId | None,
    surroundings: Surroundings,
    ttl_s: float = TTL_S,
    waiting: Waiting | None = None,
) -> HeldLife:
    """Begin a new life of `workload` with the next epoch.

    Returns at once when every older life has ended, or its process is known to be gone, which is recorded as its end. Otherwise waits
    until its lease was seen unchanged for longer than it lasts. `ttl_s` is how long the new life's lease lasts, at most 300.

    Raises `errors.WorkloadBusy` when an older life turns out to be alive, or another process begins one at the same time.
    """
    check_name(workload)
    if not 0 < ttl_s <= UNREADABLE_TTL_S:
        raise errors.UsageError(f"a lease of {ttl_s:g} s", hint=f"give more than 0 and at most {UNREADABLE_TTL_S:g} seconds")
    leases = _wait_for_older(repository, workload, surroundings, waiting)
    epoch = max(_epochs(repository, workload), default=0) + 1
    owner = surroundings.owner("run")
    begun = Begun(_life(workload, epoch, restored_from, owner, surroundings), owner, ttl_s)
    try:
        documents.write(repository, layout.life_key(workload, epoch), begun, replace=False)
    except errors.ObjectExists:
        raise errors.WorkloadBusy(f"{workload} is being started by another process", hint=f"see perdure ps {workload}") from None
    since_s = surroundings.now_s()
    lease = Lease(0, surroundings.wall_ns())
    _write_lease(repository, workload, epoch, lease)
    if _newer(repository, workload, epoch) is not None:
        raise errors.WorkloadBusy(f"{workload} was started by another process meanwhile", hint=f"see perdure ps {workload}")
    _look_again(repository, begun.life, leases, surroundings)
    for older in leases:
        _write_end(repository, workload, older, Ended(_given_up(f"life {epoch} took over: the lease ran out", surroundings)))
    return HeldLife(repository, begun, lease, since_s, surroundings)


def latest(repository: Repository, workload: str) -> Life | None:
    """Return the newest life that ran, with its end if it has one; None: there was none.

    Raises `errors.StoreCorrupt`, naming the object, when what is recorded of it cannot be read.
    """
    for epoch in reversed(_epochs(repository, workload)):
        life = _whole(repository, workload, epoch)
        if life is not None:
            return life
    return None


def every(repository: Repository, workload: str) -> tuple[Life, ...]:
    """Return all lives that ran, oldest first. Raises `errors.StoreCorrupt`."""
    found = (_whole(repository, workload, epoch) for epoch in _epochs(repository, workload))
    return tuple(life for life in found if life is not None)


def ended_with_lease(repository: Repository, workload: str) -> tuple[int, ...]:
    """Return the epochs of lives that have an end and still a lease, from keys alone. Such a lease says nothing any more."""
    ended = {layout.epoch_of(info.key) for info in repository.backend.list(layout.ends(workload))}
    leased = (layout.epoch_of(info.key) for info in repository.backend.list(layout.leases(workload)))
    return tuple(epoch for epoch in leased if epoch and epoch in ended)


def _whole(repository: Repository, workload: str, epoch: int) -> Life | None:
    """Return the life with its end; None for one that was withdrawn."""
    life = documents.read(repository, layout.life_key(workload, epoch), Begun).life
    ended = _read_end(repository, workload, epoch)
    if ended is None:
        return life
    return None if ended.withdrawn else msgspec.structs.replace(life, end=ended.end)


def _wait_for_older(
    repository: Repository, workload: str, surroundings: Surroundings, waiting: Waiting | None
) -> Mapping[int, Lease | None]:
    """Wait until no older life can be alive; return the leases of those that have no end, as they were seen, by epoch."""
    watched = {}
    here = surroundings.owner("run")
    for seen in _without_end(repository, workload):
        owner = seen.begun.owner if seen.begun else None
        if owner is not None and (surroundings.is_alive(owner) is False or owner == here):
            # Our own: the begin of this very process, whose answer was lost.
            _write_end(repository, workload, seen.epoch, Ended(_given_up("its supervisor died", surroundings)))
        elif owner is not None and surroundings.is_alive(owner):
            raise _busy(seen)
        else:
            watched[seen.epoch] = seen
    leases: dict[int, Lease | None] = {}
    longest_s = max((seen.ttl_s for seen in watched.values()), default=0.0)
    quiet = Quiet(longest_step_s=2 * longest_s / LOOKS_A_TTL)
    while watched:
        for epoch in tuple(watched):
            if _end_if_readable(repository, workload, epoch) is not None:
                return _wait_for_older(repository, workload, surroundings, waiting)
        leases = {epoch: _lease(repository, workload, epoch) for epoch in watched}
        newest = watched[max(watched)]
        if quiet.look(leases, surroundings.now_s()):
            raise _busy(newest)
        if quiet.quiet_s > longest_s * MARGIN:
            break
        if waiting is not None:
            waiting(newest.begun.life if newest.begun else None, longest_s * MARGIN - quiet.quiet_s)
        surroundings.pause(longest_s / LOOKS_A_TTL)
    return leases


def _look_again(repository: Repository, life: Life, leases: Mapping[int, Lease | None], surroundings: Surroundings) -> None:
    """Withdraw `life` when an older lease changed since it was seen, or another one came to be without an end."""
    for seen in _without_end(repository, life.workload):
        if seen.epoch >= life.epoch:
            continue
        if seen.epoch not in leases or _lease(repository, life.workload, seen.epoch) != leases[seen.epoch]:
            end = _given_up(f"withdrawn: life {seen.epoch} is alive", surroundings)
            _write_end(repository, life.workload, life.epoch, Ended(end, withdrawn=True))
            raise _busy(seen)


def _without_end(repository: Repository, workload: str) -> list[_Seen]:
    """Return the lives without an end that can be read, oldest first. One whose own record is damaged is among them."""
    found = []
    for epoch in _epochs(repository, workload):
        if _end_if_readable(repository, workload, epoch) is not None:
            continue
        begun = None
        with contextlib.suppress(errors.StoreCorrupt, errors.ObjectMissing):
            begun = documents.read(repository, layout.life_key(workload, epoch), Begun)
        found.append(_Seen(epoch, begun))
    return found


def _newer(repository: Repository, workload: str, epoch: int) -> int | None:
    """Return the epoch of a newer life that was not withdrawn, or None.

    Asks for each by its name: epochs have no gaps, and a listing may be late on a network file system.
    """
    while True:
        epoch += 1
        try:
            repository.backend.size(layout.life_key(workload, epoch))
        except errors.ObjectMissing:
            return None
        ended = _end_if_readable(repository, workload, epoch)
        if ended is None or not ended.withdrawn:
            return epoch


def _epochs(repository: Repository, workload: str) -> list[int]:
    """Return the epochs of all lives, ascending."""
    found = (layout.epoch_of(info.key) for info in repository.backend.list(layout.lives(workload)))
    return sorted(epoch for epoch in found if epoch)


def _read_end(repository: Repository, workload: str, epoch: int) -> Ended | None:
    """Return how a life ended; None: it has no end. Raises `errors.StoreCorrupt`."""
    try:
        return documents.read(repository, layout.end_key(workload, epoch), Ended)
    except errors.ObjectMissing:
        return None


def _end_if_readable(repository: Repository, workload: str, epoch: int) -> Ended | None:
    """Return how a life ended; None when it has no end, or one that cannot be read: then its lease is watched, which is always safe."""
    try:
        return _read_end(repository, workload, epoch)
    except errors.StoreCorrupt:
        return None


def _write_end(repository: Repository, workload: str, epoch: int, ended: Ended) -> None:
    # The first end that was written counts: whoever writes another one knows less.
    with contextlib.suppress(errors.ObjectExists):
        documents.write(repository, layout.end_key(workload, epoch), ended, replace=False)


def _write_lease(repository: Repository, workload: str, epoch: int, lease: Lease) -> None:
    documents.write(repository, layout.lease_key(workload, epoch), lease, replace=True)


def _lease(repository: Repository, workload: str, epoch: int) -> Lease | None:
    """Return the lease as it is now; None for one that is missing or cannot be read: both change when the life renews it."""
    try:
        return documents.read(repository, layout.lease_key(workload, epoch), Lease)
    except (errors.ObjectMissing, errors.StoreCorrupt):
        return None


def _life(workload: str, epoch: int, restored_from: CheckpointId | None, owner: Owner, surroundings: Surroundings) -> Life:
    return Life(
        workload=workload,
        epoch=epoch,
        started_ns=surroundings.wall_ns(),
        restored_from=restored_from,
        hostname=owner.host,
        boot_id=owner.boot_id,
        supervisor_pid=owner.pid,
        supervisor_start_ticks=owner.start_ticks,
    )


def _given_up(reason: str, surroundings: Surroundings) -> LifeEnd:
    return LifeEnd(at_ns=surroundings.wall_ns(), completed=False, status=None, reason=reason)


def _busy(seen: _Seen) -> errors.WorkloadBusy:
    if seen.begun is None:
        return errors.WorkloadBusy(f"life {seen.epoch} is alive, and its record cannot be read", hint="see perdure store verify")
    life = seen.begun.life
    return errors.WorkloadBusy(
        f"{life.workload} is running already: life {life.epoch}, process {life.supervisor_pid} on {life.hostname}",
        hint=f"stop it there: perdure stop {life.workload}, or wait until it ends",
    )
