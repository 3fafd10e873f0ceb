"""What a store needs of a place: eight calls, the same on every backend, held by one contract suite.

Keys are relative, of ASCII letters, digits and ``._@-`` in parts joined by ``/``; no part is empty, ``.`` or ``..``. Objects are small
(at most `MAX_OBJECT_BYTES`) and written whole. A call that returns has happened durably: it survives a crash and a power cut.
A call that raises may or may not have happened, except that an object is never seen half.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

import msgspec

MAX_OBJECT_BYTES = 256 * 1024 * 1024
DELETE_S = 20.0
"""One try to delete has happened or failed after so many seconds, unless the operating system holds it back (a hard mount of NFS)."""
KEY = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|$))[A-Za-z0-9._@-]+(?:/[A-Za-z0-9._@-]+)*")


class ObjectInfo(msgspec.Struct, frozen=True):
    """One object in a listing."""

    key: str
    size_bytes: int


class Backend(Protocol):
    """A place for objects. Calls are made from one thread at a time unless `parallel` is above 1.

    Errors, all of `perdure.errors`: `ObjectMissing`, `ObjectExists`, `StoreFull`, `StoreUnavailable` (retryable; retries with
    growing pauses were already made where a try again is safe), `ObjectUnreadable` (a `StoreCorrupt`: one object is lost, others are not),
    `StoreError` for what a retry cannot mend (permissions, read-only).
    """

    @property
    def url(self) -> str:
        """The place, as given by the user, without secrets."""
        ...

    @property
    def parallel(self) -> int:
        """How many calls from different threads pay off, at least 1."""
        ...

    def create(self) -> None:
        """Make the place ready for objects; nothing happens when it is."""
        ...

    def exists(self) -> bool:
        """Tell whether the place is there (an empty one counts)."""
        ...

    def put(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the object, replacing one of that name atomically."""
        ...

    def put_if_absent(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the object unless one of that name exists: then raise `ObjectExists`. Of many callers exactly one succeeds.

        Where an answer was lost and the object now holds exactly `content`, the call succeeds.
        """
        ...

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read `length` bytes from `start`, or all from there. Fewer come back only at the object's end. Raises `ObjectMissing`."""
        ...

    def size(self, key: str) -> int:
        """Return the object's size in bytes. Raises `ObjectMissing`."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose key begins with `prefix` (which ends in ``/`` or is empty), in the order of their keys.

        An object written before the call began is seen; one written or deleted during it may be.
        """
        ...

    def delete(self, key: str, *, once: bool = False) -> None:
        """Remove the object; nothing happens when it is not there. With `once` it is not tried again: see `DELETE_S`."""
        ...

    def close(self) -> None:
        """Let go of connections and descriptors."""
        ...
