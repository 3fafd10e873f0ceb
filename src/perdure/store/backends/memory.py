"""A place for objects in this process's memory: what tests and trials use where a real place would only be slower."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from perdure import errors
from perdure.store.backends import names
from perdure.store.backends.contract import ObjectInfo


class MemoryBackend:
    """A `contract.Backend` that keeps objects in a dictionary. Any number of threads may use it; it is gone with the process."""

    def __init__(self, name: str = "memory") -> None:
        """Name the place, for its address and its errors. It is not there until `create`."""
        self._name = name
        self._objects: dict[str, bytes] | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The place, as ``memory:NAME``."""
        return f"memory:{self._name}"

    @property
    def parallel(self) -> int:
        """Four: copying is cheap, and callers' threads are to be tried."""
        return 4

    def create(self) -> None:
        """Make the place ready; one that is there keeps its objects."""
        with self._lock:
            if self._objects is None:
                self._objects = {}

    def exists(self) -> bool:
        """Tell whether `create` was called."""
        with self._lock:
            return self._objects is not None

    def put(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Keep a copy of `content` under `key`."""
        copy = bytes(names.check_content(names.check_key(key), content))
        with self._lock:
            self._present()[key] = copy

    def put_if_absent(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Keep a copy of `content` under `key`; raise `errors.ObjectExists` where there is one."""
        copy = bytes(names.check_content(names.check_key(key), content))
        with self._lock:
            objects = self._present()
            if key in objects:
                raise names.exists(key)
            objects[key] = copy

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of `key` from `start`, `length` of them at most."""
        names.check_range(start, length)
        content = self._content(key)
        return content[start:] if length is None else content[start : start + length]

    def size(self, key: str) -> int:
        """Return the number of bytes under `key`."""
        return len(self._content(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return the objects below `prefix` as they are now, in order of their keys."""
        names.check_prefix(prefix)
        with self._lock:
            found = [ObjectInfo(key, len(content)) for key, content in self._present().items() if key.startswith(prefix)]
        return iter(sorted(found, key=lambda info: info.key))

    def delete(self, key: str, *, once: bool = False) -> None:
        """Forget `key`."""
        del once
        names.check_key(key)
        with self._lock:
            self._present().pop(key, None)

    def close(self) -> None:
        """Do nothing: the objects stay for whoever uses the place next."""

    def _content(self, key: str) -> bytes:
        names.check_key(key)
        with self._lock:
            content = self._present().get(key)
        if content is None:
            raise names.missing(key)
        return content

    def _present(self) -> dict[str, bytes]:
        if self._objects is None:
            raise errors.StoreMissing(f"there is no store at {self.url}", hint="create it first")
        return self._objects
