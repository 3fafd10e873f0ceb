"""Locks of a store: shared for writers and for readers that must not lose packs, exclusive for garbage collection.

A lock is an object ``locks/TOKEN``. Whoever wants one writes its own and then looks for others: of two that come at once, at least one
sees the other, takes its own back and tries again. A holder writes its lock anew every so often with a higher counter, and believes in it
for `ttl_s` after the last time that worked, by its own clock. A lock counts as left behind when its process is known to be gone, or when
it did not change for longer than that by the observer's own clock. Times of day are never compared. A process that is known to live keeps
its lock, however long it is silent: it may be stopped, and it is named so that somebody can end it.

Called by the saver, the restorer, `gc`, `prune`, `verify` and `transfer`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import documents, layout
from perdure.store.lock_records import MARGIN, TTL_S, Held, Kind, Others, Record
from perdure.store.owners import Owner, Surroundings
from perdure.store.repository import Repository

BEATS_A_TTL = 4
"""Signs of life in that time: one may be late and two lost."""
POLL_S = 1.0
"""Between two looks at a lock that is in the way."""
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
        self._record = Record(kind, surroundings.owner(purpose), tuple(using), ttl_s, 0)
        self._key = layout.lock_key(surroundings.token())
        self._believed_since_s = -float("inf")
        self._is_lost = False
        self._guard = threading.Lock()

    def acquire(self, *, wait_s: float = PATIENCE_S, waiting: Waiting | None = None) -> None:
        """Take the lock, waiting at most `wait_s` seconds for those in the way. Raises `errors.StoreLocked`, naming one of them."""
        others = Others(self._repository, self._surroundings, self._record.kind, self._key)
        began_s = self._surroundings.now_s()
        while True:
            found = others.look()
            if found is None:
                found, is_taken = self._try(others)
                if is_taken:
                    return
            waited_s = self._surroundings.now_s() - began_s
            if waited_s >= wait_s:
                raise _locked(found)
            if waiting is not None:
                waiting(found.owner if found else None, waited_s)
            self._surroundings.pause(min(POLL_S, self._record.ttl_s / 10) * self._surroundings.jitter())

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
                return
            self._check()

    def release(self) -> None:
        """Give the lock back."""
        with self._guard:
            self._is_lost = True
            self._withdraw()

    def _try(self, others: Others) -> tuple[Held | None, bool]:
        """Write the lock and look for others; return one that is in the way and whether the lock is taken. It is withdrawn if not."""
        since_s = self._surroundings.now_s()
        is_taken = False
        try:
            # The name is ours alone, so replacing is as good as creating, and can be done again after a lost answer.
            documents.write(self._repository, self._key, self._record, replace=True)
            self._believed_since_s = since_s
            found = others.look()
            is_taken = found is None and self._is_believed()
        finally:
            if not is_taken:
                self._withdraw()
        return found, is_taken

    def _withdraw(self) -> None:
        # One that cannot be deleted now is left behind: it is known to be when this process is gone.
        with contextlib.suppress(errors.StoreUnavailable):
            self._repository.backend.delete(self._key)

    def _is_believed(self) -> bool:
        return self._surroundings.now_s() - self._believed_since_s < self._record.ttl_s

    def _check(self) -> None:
        """Nobody but an observer that called the lock left behind deletes it."""
        if not self._is_lost and self._is_believed():
            try:
                self._repository.backend.size(self._key)
            except errors.ObjectMissing:
                self._is_lost = True
        if self._is_lost or not self._is_believed():
            self._is_lost = True
            raise errors.StoreLocked(
                f"the lock of this {self._record.owner.purpose} was lost: it gave no sign of life for {self._record.ttl_s:g} s",
                hint="nothing was damaged; try again",
            )

    def _refresh(self) -> None:
        self._check()
        since_s = self._surroundings.now_s()
        record = msgspec.structs.replace(self._record, counter=self._record.counter + 1)
        documents.write(self._repository, self._key, record, replace=True)
        self._record = record
        if not self._is_believed():
            # It took so long that somebody may have called the lock left behind, and this very call may have brought it back.
            self._withdraw()
            self._check()
        self._believed_since_s = since_s


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
    if found.record is None:
        return errors.StoreLocked(f"there is a lock that cannot be read: {found.key}", hint=f"try again in {TTL_S * MARGIN:g} s")
    return errors.StoreLocked(
        f"the store is in use: {found.record.owner}",
        hint=f"wait for it or end it; if its machine is gone, the lock is given up after {found.record.ttl_s * MARGIN:g} s of silence",
    )
