"""A place for objects of which one user may take only a part. Put around another by whoever opens a user's store.

Only what checkpoints are made of, packs, is held back: a life's lease, its end, or a lock are a few hundred bytes each, and a workload that
runs needs them. What other processes write to the same store meanwhile is counted every `RECOUNT_BYTES`: so far may each of them go beyond.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import msgspec

from perdure import errors
from perdure.base import units
from perdure.store import layout
from perdure.store.backends.contract import Backend
from perdure.store.backends.wrapping import WrappingBackend

RECOUNT_BYTES = 1 << 30


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """How much a store may hold: `most_bytes`, or a `share` (above 0, at most 1) of the room that there would be without it.

    A share bounds only a store in a folder, whose file system says how much is free.
    """

    most_bytes: int | None = None
    share: float | None = None

    def limit_bytes(self, used_bytes: int, folder: str | None) -> int | None:
        """Return how much a store that holds `used_bytes` and lies in `folder` (None: in no folder) may hold; None: nothing bounds it."""
        if self.most_bytes is not None:
            return self.most_bytes
        free_bytes = _free_bytes(folder) if folder is not None and self.share is not None else None
        return None if free_bytes is None or self.share is None else int(self.share * (used_bytes + free_bytes))


def _free_bytes(folder: str) -> int | None:
    """Return what ordinary programs may still write below `folder`, or below what there is of the way to it; None: nobody says."""
    at = os.path.abspath(folder)
    while not os.path.isdir(at) and at != "/":
        at = os.path.dirname(at)
    try:
        there = os.statvfs(at)
    except OSError:
        return None
    return there.f_bavail * there.f_frsize


class BoundedBackend(WrappingBackend):
    """A `contract.Backend` in front of `inner` that refuses packs beyond `allowance` with `errors.StoreFull`.

    What a removal frees is counted at the next recount, or before a pack is refused.
    """

    def __init__(self, inner: Backend, allowance: Allowance) -> None:
        """Nothing is counted before the first pack."""
        super().__init__(inner)
        self._allowance = allowance
        url = inner.url.removeprefix("file://")
        self._folder = url if url.startswith("/") else None
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._uncounted_bytes = RECOUNT_BYTES
        self._writing: dict[str, int] = {}
        """Sizes of packs that are being written, by key: a listing shows them late."""

    def require_room(self) -> None:
        """Raise `errors.StoreFull` when not one more pack would be taken now."""
        with self._lock:
            self._count()
            self._require(1)

    def put(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the object."""
        with self._counted(key, memoryview(content).nbytes):
            self.inner.put(key, content)

    def put_if_absent(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the object unless one of that name exists."""
        with self._counted(key, memoryview(content).nbytes):
            self.inner.put_if_absent(key, content)

    @contextlib.contextmanager
    def _counted(self, key: str, size_bytes: int) -> Iterator[None]:
        """Count a pack before it is written, which the caller does within this context. Raises `errors.StoreFull`."""
        if not key.startswith(layout.PACKS):
            yield
            return
        self._take(key, size_bytes)
        try:
            yield
        finally:
            with self._lock:
                self._writing.pop(key, None)

    def _take(self, key: str, size_bytes: int) -> None:
        with self._lock:
            if self._uncounted_bytes >= RECOUNT_BYTES:
                self._count()
            try:
                self._require(size_bytes)
            except errors.StoreFull:
                # What was removed since it was counted may have made room.
                self._count()
                self._require(size_bytes)
            self._writing[key] = size_bytes
            self._used_bytes += size_bytes
            self._uncounted_bytes += size_bytes

    def _count(self) -> None:
        there_bytes = sum(info.size_bytes for info in self.inner.list("") if info.key not in self._writing)
        self._used_bytes = there_bytes + sum(self._writing.values())
        self._uncounted_bytes = 0

    def _require(self, size_bytes: int) -> None:
        limit_bytes = self._allowance.limit_bytes(self._used_bytes, self._folder)
        if limit_bytes is not None and self._used_bytes + size_bytes > limit_bytes:
            used, most = units.format_size(self._used_bytes), units.format_size(limit_bytes)
            raise errors.StoreFull(
                f"your checkpoints take {used} of the {most} that one user may, and this one does not fit",
                hint="keep fewer of them: perdure store prune, perdure rm --checkpoints, or a smaller --keep; the site sets user-quota",
            )
