"""A backend in front of another one, which passes every call on. Base of `retry`, `bounded` and `faulty`, which change some of them."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.store.backends.contract import Backend, ObjectInfo


class WrappingBackend:
    """A `contract.Backend` that is `inner`, whose promises are in the contract. As many threads may use it as may use `inner`."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        """The place of what is wrapped."""
        return self.inner.url

    @property
    def parallel(self) -> int:
        """As what is wrapped."""
        return self.inner.parallel

    def create(self) -> None:
        """Make the place ready."""
        self.inner.create()

    def exists(self) -> bool:
        """Tell whether the place is there."""
        return self.inner.exists()

    def put(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the object, replacing one of that name."""
        self.inner.put(key, content)

    def put_if_absent(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the object unless one of that name exists."""
        self.inner.put_if_absent(key, content)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of the object."""
        return self.inner.get(key, start=start, length=length)

    def size(self, key: str) -> int:
        """Return the object's size."""
        return self.inner.size(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below `prefix`."""
        return self.inner.list(prefix)

    def delete(self, key: str, *, once: bool = False) -> None:
        """Remove the object."""
        self.inner.delete(key, once=once)

    def close(self) -> None:
        """Close what is wrapped."""
        self.inner.close()
