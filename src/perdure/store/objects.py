"""A backend as the store uses it: from as many threads at once as pay off there. Called by whatever in this room touches objects."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from perdure import errors
from perdure.store.backends.contract import Backend, ObjectInfo
from perdure.store.hashing import Bytes


class Objects:
    """Forwards to `backend`, never with more calls at a time than its `parallel`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._gate = threading.BoundedSemaphore(max(1, backend.parallel))

    @property
    def parallel(self) -> int:
        """How many calls from different threads pay off."""
        return max(1, self._backend.parallel)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """See `Backend.get`."""
        with self._gate:
            return self._backend.get(key, start=start, length=length)

    def size(self, key: str) -> int:
        """See `Backend.size`."""
        with self._gate:
            return self._backend.size(key)

    def find(self, key: str) -> int | None:
        """Return the size of the object, or None when it is not there. Unlike a listing, which may be late, this says what is."""
        try:
            return self.size(key)
        except errors.ObjectMissing:
            return None

    def put(self, key: str, content: Bytes) -> None:
        """See `Backend.put`."""
        with self._gate:
            self._backend.put(key, content)

    def put_if_absent(self, key: str, content: Bytes) -> None:
        """See `Backend.put_if_absent`."""
        with self._gate:
            self._backend.put_if_absent(key, content)

    def delete(self, key: str) -> None:
        """See `Backend.delete`."""
        with self._gate:
            self._backend.delete(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Backend.list`; the whole list is read before the first is returned, so that no call is open in between."""
        with self._gate:
            found = list(self._backend.list(prefix))
        return iter(found)
