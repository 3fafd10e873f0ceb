"""Lives of a workload: numbered by an epoch that the store hands out, kept alive by a lease, ended once.

A life holds a lease that it renews; `life_records` says which objects that takes. Two copies of one workload can never both go on:

- a newer life begins when every older one has an end, or its process is known to be gone, or its lease was seen not to change for longer
  than it lasts. It first writes its own life and lease and then looks at the older leases again;
- a life that renews writes its lease first and then looks for newer lives.

Of two that cross, at least one sees the other: the older stops, or the newer withdraws. A life believes in itself until `ttl_s` after the
start of its last renewal that worked, by its own clock; an observer waits for longer than that by its own. Times of day decide nothing.

Called by the supervisor, which stops its workload when `HeldLife.renew` raises or `remaining_s` is used up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

import msgspec

from perdure import errors
from perdure.base import text
from perdure.model.checkpoint import CheckpointId, Life, LifeEnd, check_name
from perdure.store import documents, layout, life_records
from perdure.store.life_records import UNREADABLE_TTL_S, Begun, Ended, Lease, Seen
from perdure.store.owners import Owner, Quiet, Surroundings
from perdure.store.repository import Repository

TTL_S = 30.0
"""How long a lease lasts by default, in seconds."""
MARGIN = 1.25
"""How much longer than a lease lasts an observer waits: clocks run at slightly different speeds."""
LOOKS_A_TTL = 10
"""How often an observer looks in that time."""


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
        lease = Lease(self._lease.counter + 1, self._surroundings.wall_ns(), self._begun)
        try:
            life_records.write_lease(self._repository, workload, epoch, lease)
            newer = life_records.newer(self._repository, workload, epoch)
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
        self._finish(Ended(_storable(end)))

    def withdraw(self, end: LifeEnd) -> None:
        """Record that the life never ran: to whoever comes after it is as if it had not begun. `end` says why."""
        self._finish(Ended(_storable(end), withdrawn=True))

    def _finish(self, ended: Ended) -> None:
        workload, epoch = self.life.workload, self.life.epoch
        if life_records.write_end(self._repository, workload, epoch, ended):
            lease = Lease(self._lease.counter + 1, self._surroundings.wall_ns(), self._begun, ended.end)
            # A second copy; the end stands without it.
            with contextlib.suppress(errors.StoreUnavailable):
                life_records.write_lease(self._repository, workload, epoch, lease)


def _storable(end: LifeEnd) -> LifeEnd:
    """Return `end` with a reason that JSON can hold, whatever names stand in it."""
    return msgspec.structs.replace(end, reason=text.visible(end.reason))


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
    while True:
        leases = _wait_for_older(repository, workload, surroundings, waiting)
        held = _try_to_begin(repository, workload, restored_from, surroundings, ttl_s=ttl_s, leases=leases)
        if held is not None:
            return held


def _try_to_begin(
    repository: Repository,
    workload: str,
    restored_from: CheckpointId | None,
    surroundings: Surroundings,
    *,
    ttl_s: float,
    leases: Mapping[int, Lease | None],
) -> HeldLife | None:
    """Begin a life, where the `leases` of older ones ran out. Returns None when an older one was begun at the same time.

    Of two that begin at once the older withdraws when it sees the newer, and the newer when it sees the older first. If both do, the newer
    tries again once the older has an end: else none would live.
    """
    epoch = max(life_records.epochs(repository, workload), default=0) + 1
    owner = surroundings.owner("run")
    begun = Begun(_life(workload, epoch, restored_from, owner, surroundings), owner, ttl_s)
    try:
        documents.write(repository, layout.life_key(workload, epoch), begun, replace=False)
    except errors.ObjectExists:
        raise errors.WorkloadBusy(f"{workload} is being started by another process", hint=f"see perdure ps {workload}") from None
    since_s = surroundings.now_s()
    lease = Lease(0, surroundings.wall_ns(), begun)
    life_records.write_lease(repository, workload, epoch, lease)
    if life_records.newer(repository, workload, epoch) is not None:
        withdrawn = Ended(_given_up("withdrawn: a newer life has begun", surroundings), withdrawn=True)
        life_records.write_end(repository, workload, epoch, withdrawn)
        raise errors.WorkloadBusy(f"{workload} was started by another process meanwhile", hint=f"see perdure ps {workload}")
    if not _look_again(repository, begun.life, leases, surroundings):
        return None
    for older in leases:
        life_records.write_end(repository, workload, older, Ended(_given_up(f"life {epoch} took over: the lease ran out", surroundings)))
    return HeldLife(repository, begun, lease, since_s, surroundings)


def latest(repository: Repository, workload: str) -> Life | None:
    """Return the newest life that ran, with its end if it has one; None: there was none.

    Raises `errors.StoreCorrupt`, naming the object, when what is recorded of it cannot be read.
    """
    for epoch in reversed(life_records.epochs(repository, workload)):
        life = _whole(repository, workload, epoch)
        if life is not None:
            return life
    return None


def every(repository: Repository, workload: str) -> tuple[Life, ...]:
    """Return all lives that ran, oldest first. Raises `errors.StoreCorrupt`."""
    found = (_whole(repository, workload, epoch) for epoch in life_records.epochs(repository, workload))
    return tuple(life for life in found if life is not None)


def completed_since(repository: Repository, workload: str, ended: Collection[int]) -> tuple[int, LifeEnd] | None:
    """Return the newest life that ended by itself, its epoch and its end, but for those in `ended`: epochs that had an end before.

    None: none did. Raises `errors.StoreCorrupt` when that cannot be told: a completed workload must not be gone on with.
    """
    for epoch in sorted(life_records.ended(repository, workload) - frozenset(ended), reverse=True):
        found = life_records.read_end(repository, workload, epoch)
        if found is not None and found.end.completed and not found.withdrawn:
            return epoch, found.end
    return None


def ended(repository: Repository, workload: str) -> frozenset[int]:
    """Return the epochs of the lives that have an end, from keys alone."""
    return life_records.ended(repository, workload)


def alive(repository: Repository, workload: str, surroundings: Surroundings) -> Life | None:
    """Return the newest life that may be going on: it has no end, and its process is not known to be gone. None: there is none.

    A look, not a decision: `begin` decides. A life whose record cannot be read is left out.
    """
    for seen in reversed(life_records.without_end(repository, workload)):
        if seen.begun is not None and surroundings.is_alive(seen.begun.owner) is not False:
            return seen.begun.life
    return None


def record_past(repository: Repository, checkpoint: CheckpointId, *, started_ns: int, end: LifeEnd, surroundings: Surroundings) -> bool:
    """Record the life that made `checkpoint` in another store, as ended: the next epoch is then above it.

    One that is there stays, unless it was withdrawn. Returns whether it was recorded now. Raises `errors.WorkloadBusy` when a life of that
    very epoch has begun here and may be going on.
    """
    workload, epoch = checkpoint.workload, checkpoint.epoch
    owner = surroundings.owner("import")
    life = msgspec.structs.replace(_life(workload, epoch, None, owner, surroundings), started_ns=started_ns)
    begun = Begun(life, owner, TTL_S)
    # The end first: at no moment is there a life that others would wait for.
    is_new = life_records.write_end(repository, workload, epoch, Ended(end))
    is_recorded = is_new or _replace_withdrawn(repository, workload, epoch, end)
    try:
        documents.write(repository, layout.life_key(workload, epoch), begun, replace=False)
    except errors.ObjectExists:
        there = life_records.read_begun(repository, workload, epoch) if is_new else None
        if there is not None and surroundings.is_alive(there.owner) is not False:
            repository.backend.delete(layout.end_key(workload, epoch))  # it is not that one's
            raise _busy(Seen(epoch, there)) from None
    if is_recorded:
        life_records.write_lease(repository, workload, epoch, Lease(0, end.at_ns, begun, end))
    return is_recorded


def withdraw_past(repository: Repository, checkpoint: CheckpointId, end: LifeEnd) -> None:
    """Take back what `record_past` recorded just now: to older lives it is again as if that one had never run. `end` says why."""
    withdrawn = Ended(_storable(end), withdrawn=True)
    documents.write(repository, layout.end_key(checkpoint.workload, checkpoint.epoch), withdrawn, replace=True)


def _replace_withdrawn(repository: Repository, workload: str, epoch: int, end: LifeEnd) -> bool:
    there = life_records.end_if_readable(repository, workload, epoch)
    if there is None or not there.withdrawn:
        return False
    documents.write(repository, layout.end_key(workload, epoch), Ended(end), replace=True)
    return True


def _whole(repository: Repository, workload: str, epoch: int) -> Life | None:
    """Return the life with its end; None for one that was withdrawn."""
    life = life_records.read_begun(repository, workload, epoch).life
    ended = life_records.read_end(repository, workload, epoch)
    if ended is None:
        return life
    return None if ended.withdrawn else msgspec.structs.replace(life, end=ended.end)


def _wait_for_older(
    repository: Repository, workload: str, surroundings: Surroundings, waiting: Waiting | None
) -> Mapping[int, Lease | None]:
    """Wait until no older life can be alive; return the leases of those that have no end, as they were seen, by epoch."""
    watched = {}
    here = surroundings.owner("run")
    for seen in life_records.without_end(repository, workload):
        owner = seen.begun.owner if seen.begun else None
        if owner is not None and (surroundings.is_alive(owner) is False or owner == here):
            # Our own: the begin of this very process, whose answer was lost.
            life_records.write_end(repository, workload, seen.epoch, Ended(_given_up("its supervisor died", surroundings)))
        elif owner is not None and surroundings.is_alive(owner):
            raise _busy(seen)
        else:
            watched[seen.epoch] = seen
    leases: dict[int, Lease | None] = {}
    longest_s = max((seen.ttl_s for seen in watched.values()), default=0.0)
    quiet = Quiet(longest_step_s=2 * longest_s / LOOKS_A_TTL)
    while watched:
        for epoch in tuple(watched):
            if life_records.end_if_readable(repository, workload, epoch) is not None:
                return _wait_for_older(repository, workload, surroundings, waiting)
        leases = {epoch: life_records.lease(repository, workload, epoch) for epoch in watched}
        newest = watched[max(watched)]
        if quiet.look(leases, surroundings.now_s()):
            raise _busy(newest)
        if quiet.quiet_s > longest_s * MARGIN:
            break
        if waiting is not None:
            waiting(newest.begun.life if newest.begun else None, longest_s * MARGIN - quiet.quiet_s)
        surroundings.pause(longest_s / LOOKS_A_TTL)
    return leases


def _look_again(repository: Repository, life: Life, leases: Mapping[int, Lease | None], surroundings: Surroundings) -> bool:
    """Withdraw `life` when an older lease changed since it was seen, or another one came to be without an end.

    Returns whether it goes on; false: the other one was begun meanwhile. Raises `errors.WorkloadBusy`: it was there before, and is alive.
    """
    for seen in life_records.without_end(repository, life.workload):
        if seen.epoch >= life.epoch:
            continue
        is_new = seen.epoch not in leases
        if is_new or life_records.lease(repository, life.workload, seen.epoch) != leases[seen.epoch]:
            end = _given_up(f"withdrawn: life {seen.epoch} is alive", surroundings)
            life_records.write_end(repository, life.workload, life.epoch, Ended(end, withdrawn=True))
            if is_new:
                return False
            raise _busy(seen)
    return True


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


def _busy(seen: Seen) -> errors.WorkloadBusy:
    if seen.begun is None:
        return errors.WorkloadBusy(f"life {seen.epoch} is alive, and its record cannot be read", hint="see perdure store verify")
    life = seen.begun.life
    return errors.WorkloadBusy(
        f"{life.workload} is running already: life {life.epoch}, process {life.supervisor_pid} on {life.hostname}",
        hint=f"stop it there: perdure stop {life.workload}, or wait until it ends",
    )
