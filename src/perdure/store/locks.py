"""Locks of a store: shared for writers and for readers that must not lose packs, exclusive for garbage collection.

A lock is an object ``locks/TOKEN``. Whoever wants one writes its own and then looks for others: of two that come at once, at least one
sees the other, takes its own back and tries again. One that wants to be alone and finds only shared locks lets its own stand for a while:
newcomers then wait, and those inside leave one by one.

A holder replaces its lock by a new one every so often: it writes the new one, makes sure that the old one is still there, and removes
that a turn later, so that no listing can miss both. A lock counts as left behind when its process is known to be gone, or when an observer
has seen the same one for longer than `ttl_s` by its own clock; whoever wants to be let in removes it first. So a holder that was silent for
too long, since it stood still or the store was away, can tell: if its old lock is there after the new one was written, nobody was let in
meanwhile. Times of day are never compared.

Called by the saver, the restorer, `gc`, `verify` and `transfer`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import documents, layout, lock_records
from perdure.store.backends.contract import DELETE_S
from perdure.store.lock_records import MARGIN, TTL_S, Held, Kind, Known, Others, Record
from perdure.store.owners import Owner, Surroundings
from perdure.store.repository import Repository

BEATS_A_TTL = 4
"""Signs of life in that time: one may be late and two lost."""
POLL_S = 1.0
"""Between two looks at a lock that is in the way."""
DRAIN_S = 15.0
"""How long one that wants to be alone keeps newcomers out while others are in; then it lets them in for as long, so that no checkpoint
waits long for garbage collection. Shorter than a turn of signs of life."""
DELETE_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Between tries to delete an object under a lock."""
PATIENCE_S = 2 * TTL_S
"""How long to wait by default: longer than a lock that was left behind on another machine stands in the way."""


Waiting = Callable[[Owner | None, float], None]
"""Told whom a lock waits for (None: a lock that cannot be read) and how many seconds it has waited."""


class Lock:
    """One lock, wanted or held. `acquire` first; `release` at the end."""

    def __init__(
        self,
        repository: Repository,
        kind: Kind,
        *,
        purpose: str,
        surroundings: Surroundings,
        using: Sequence[CheckpointId] = (),
        ttl_s: float = TTL_S,
    ) -> None:
        """Describe the lock; nothing is written yet. `purpose` is a word for others, such as ``gc``."""
        self._repository = repository
        self._surroundings = surroundings
        self._known = Known(repository)
        self._record = Record(kind, surroundings.owner(purpose), tuple(using), ttl_s)
        self._keys: list[str] = []
        """The lock that counts is the last one; one before it is on its way out."""
        self._believed_since_s = -float("inf")
        self._is_lost = False
        self._guard = threading.Lock()

    def acquire(self, *, wait_s: float = PATIENCE_S, waiting: Waiting | None = None) -> None:
        """Take the lock, waiting at most `wait_s` seconds for those in the way. Raises `errors.StoreLocked`, naming one of them."""
        others = self._others()
        began_s = self._surroundings.now_s()
        while True:
            found, pause_s = others.look(), min(POLL_S, self._record.ttl_s / 10)
            left_s = began_s + wait_s - self._surroundings.now_s()
            if found is not None and waiting is not None and left_s > 0:
                waiting(found.owner, wait_s - left_s)
            if found is None or (self._may_outstay(found) and left_s > 0):
                stay_s = max(0.0, min(DRAIN_S, self._record.ttl_s / BEATS_A_TTL, left_s))
                pause_s = pause_s if found is None else stay_s
                found, is_taken = self._try(others, stay_s)
                if is_taken:
                    return
            if self._surroundings.now_s() - began_s >= wait_s:
                raise _locked(found)
            self._surroundings.pause(pause_s * self._surroundings.jitter())

    def refresh(self) -> None:
        """Give a sign of life. Raises `errors.StoreLocked` when the lock is lost; another `errors.StoreError` may mend by itself."""
        with self._guard:
            self._refresh()

    def still_held(self) -> bool:
        """Tell whether the lock is held now, and refresh it when that is due. Ask right before what the lock is there to protect."""
        try:
            self.require()
        except errors.StoreLocked:
            return False
        return True

    def require(self) -> None:
        """Raise `errors.StoreLocked` unless the lock is held now; refresh it when that is due."""
        with self._guard:
            if self._surroundings.now_s() - self._believed_since_s >= self._record.ttl_s / BEATS_A_TTL:
                self._refresh()
            elif self._is_lost or not self._is_there():
                raise self._lost()
            while not self._is_believed():
                # The answer took so long that it says nothing of now.
                self._refresh()

    def delete(self, key: str) -> None:
        """Delete an object that is needed by nobody as long as the lock is held: of somebody let in later that cannot be known.

        A try that went on after the lock ran out could take away what others have built on since. So each begins only while it ends before
        anybody can be let in, and between two the lock is asked for. Threads may call this.

        Raises `errors.StoreLocked` when the lock is lost, `errors.StoreUnavailable` when no try succeeds.
        """
        pauses = iter(DELETE_PAUSES_S)
        while True:
            while self._is_lost or self._left_s() < min(DELETE_S, self._record.ttl_s / 2):
                self.require()
            try:
                return self._repository.backend.delete(key, once=True)
            except errors.StoreUnavailable:
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
            self._surroundings.pause(pause_s * self._surroundings.jitter())
            self.require()

    def release(self) -> None:
        """Give the lock back."""
        with self._guard:
            self._is_lost = True
            self._remove(*self._keys)
            self._keys = []

    def _may_outstay(self, other: Held) -> bool:
        """Tell whether `other` leaves by itself while this one only waits: two that both want to be alone would wait for each other."""
        return self._record.kind is Kind.EXCLUSIVE and other.record is not None and other.record.kind is Kind.SHARED

    def _try(self, others: Others, stay_s: float) -> tuple[Held | None, bool]:
        """Write the lock and look for others, for `stay_s` seconds if they may leave meanwhile; withdraw it if they do not.

        Returns one that is in the way, and whether the lock is taken.
        """
        since_s = self._surroundings.now_s()
        is_taken = False
        self._keys = [layout.lock_key(self._surroundings.token())]
        others.own |= {self._keys[0]}
        try:
            documents.write(self._repository, self._keys[0], self._record, replace=True)
            self._believed_since_s = since_s
            found = others.look()
            while found is not None and self._may_outstay(found) and self._surroundings.now_s() - since_s < stay_s:
                self._surroundings.pause(min(POLL_S, stay_s / 10) * self._surroundings.jitter())
                found = others.look()
            is_taken = found is None and self._is_believed()
        finally:
            if not is_taken:
                self._remove(*self._keys)
        return found, is_taken

    def _refresh(self) -> None:
        if self._is_lost:
            raise self._lost()
        since_s = self._surroundings.now_s()
        new = layout.lock_key(self._surroundings.token())
        is_held = False
        try:
            documents.write(self._repository, new, self._record, replace=True)
            # In time, nobody can have called the old one left behind; late, somebody may be on the way in, and will see one of the two.
            others = self._others(new)
            is_held = (self._is_believed() or others.look() is None) and self._is_there()
            self._is_lost = not is_held
        finally:
            if not is_held:
                self._remove(new)
        if self._is_lost:
            raise self._lost()
        self._remove(*self._keys[:-1])
        self._keys = [self._keys[-1], new]
        self._believed_since_s = since_s

    def _others(self, *own: str) -> Others:
        mine = frozenset((*self._keys, *own))
        return Others(self._repository, self._surroundings, self._record.kind, own=mine, known=self._known)

    def _remove(self, *keys: str) -> None:
        # One that cannot be deleted now is left behind, and is taken for that after a while.
        for key in keys:
            with contextlib.suppress(errors.StoreUnavailable):
                self._repository.backend.delete(key)

    def _is_believed(self) -> bool:
        return self._left_s() > 0

    def _left_s(self) -> float:
        """Return for how long nobody can have been let in, counted from now."""
        return self._believed_since_s + self._record.ttl_s - self._surroundings.now_s()

    def _is_there(self) -> bool:
        """Tell whether the lock that counts is there: whoever is let in removes it before."""
        try:
            self._repository.backend.size(self._keys[-1])
        except errors.ObjectMissing:
            return False
        return True

    def _lost(self) -> errors.StoreLocked:
        self._is_lost = True
        return errors.StoreLocked(
            f"the lock of this {self._record.owner.purpose} was lost: it was silent for too long, and somebody else was let in",
            hint="nothing was damaged; try again",
        )


@contextlib.contextmanager
def shared(
    repository: Repository,
    *,
    purpose: str,
    surroundings: Surroundings,
    using: Sequence[CheckpointId] = (),
    wait_s: float = PATIENCE_S,
    waiting: Waiting | None = None,
) -> Iterator[Lock]:
    """Hold a shared lock: many may, none while somebody collects garbage. Raises `errors.StoreLocked`."""
    lock = Lock(repository, Kind.SHARED, purpose=purpose, surroundings=surroundings, using=using)
    with _holding(repository, lock, wait_s, waiting):
        yield lock


@contextlib.contextmanager
def exclusive(
    repository: Repository,
    *,
    purpose: str,
    surroundings: Surroundings,
    wait_s: float = PATIENCE_S,
    waiting: Waiting | None = None,
) -> Iterator[Lock]:
    """Hold the lock alone. Raises `errors.StoreLocked`."""
    lock = Lock(repository, Kind.EXCLUSIVE, purpose=purpose, surroundings=surroundings)
    with _holding(repository, lock, wait_s, waiting):
        yield lock


@contextlib.contextmanager
def _holding(repository: Repository, lock: Lock, wait_s: float, waiting: Waiting | None) -> Iterator[None]:
    lock.acquire(wait_s=wait_s, waiting=waiting)
    ended = threading.Event()
    beats = None
    if repository.backend.parallel > 1:
        # Otherwise a backend may be called from one thread at a time only, and `require` refreshes when it is asked.
        beats = threading.Thread(target=_beat, args=(lock, ended), name="perdure-store-lock", daemon=True)
        beats.start()
    try:
        yield
    finally:
        ended.set()
        if beats is not None:
            beats.join()
        lock.release()


def _beat(lock: Lock, ended: threading.Event) -> None:
    while not ended.wait(TTL_S / BEATS_A_TTL):
        try:
            lock.refresh()
        except errors.StoreLocked:
            return  # `require` tells the holder
        except errors.StoreError:
            continue  # it does not answer now: the next beat tries again, and `require` tells when it has been too long


def _locked(found: Held | None) -> errors.StoreLocked:
    if found is None:
        return errors.StoreLocked("others are taking locks of this store at this moment", hint="try again")
    if found is lock_records.UNTOLD:
        return lock_records.untold()
    if found.record is None:
        return errors.StoreLocked(f"there is a lock that cannot be read: {found.key}", hint=f"try again in {TTL_S * MARGIN:g} s")
    return errors.StoreLocked(
        f"the store is in use: {found.record.owner}",
        hint=f"wait for it or end it; if its machine is gone, the lock is given up after {found.record.ttl_s * MARGIN:g} s of silence",
    )
