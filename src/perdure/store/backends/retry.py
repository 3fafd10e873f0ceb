"""Try again what is safe to try again, with growing pauses. Wrapped by `address` around every place that lies behind a network.

Only `errors.StoreUnavailable` is tried again, and not `errors.StoreFull`: room does not appear within seconds. Reads, `put` and
`delete` come out the same when they happen twice. `put_if_absent` does not by itself: the second try meets the object that the
first one wrote before its answer was lost. So a try that meets an object after an uncertain one compares: if it holds what was to
be written, it is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from perdure import errors
from perdure.store.backends.contract import Backend, ObjectInfo
from perdure.store.backends.wrapping import WrappingBackend

_T = TypeVar("_T")


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long to go on. The pause before try n is drawn between half and all of ``first_pause_s × 2^(n-1)``, at most `longest_pause_s`."""

    tries: int = 6
    first_pause_s: float = 0.25
    longest_pause_s: float = 8.0
    total_s: float = 300.0
    """No try begins later than this after the first: time for a second and a third behind one that met a silent server."""


class RetryingBackend(WrappingBackend):
    """A `contract.Backend` around `inner` that tries again. As many threads may use it as may use `inner`."""

    def __init__(
        self,
        inner: Backend,
        patience: Patience,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        random: Callable[[], float],
    ) -> None:
        """Wrap `inner`. `clock` gives monotonic seconds, `sleep` waits that many, `random` draws from [0, 1)."""
        super().__init__(inner)
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self._random = random

    def create(self) -> None:
        """Make the place ready."""
        self._again(self.inner.create)

    def exists(self) -> bool:
        """Tell whether the place is there."""
        return self._again(self.inner.exists)

    def put(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the object, replacing one of that name."""
        self._again(lambda: self.inner.put(key, content))

    def put_if_absent(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the object unless one is there that an earlier try did not write; then raise `errors.ObjectExists`."""
        view = memoryview(content).cast("B")
        uncertain = False

        def attempt() -> None:
            nonlocal uncertain
            try:
                self.inner.put_if_absent(key, view)
            except errors.StoreUnavailable:
                uncertain = True
                raise
            except errors.ObjectExists:
                if not (uncertain and self._holds(key, view)):
                    raise

        self._again(attempt)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of the object."""
        return self._again(lambda: self.inner.get(key, start=start, length=length))

    def size(self, key: str) -> int:
        """Return the object's size."""
        return self._again(lambda: self.inner.size(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below `prefix`. A listing that breaks off is begun again and goes on behind the last key that was given out."""
        last = reached = ""
        pauses = self._pauses()
        while True:
            try:
                for info in self.inner.list(prefix):
                    if info.key > last:
                        yield info
                        last = info.key
            except errors.StoreUnavailable as error:
                if last > reached:  # it gets on: patience begins anew
                    reached, pauses = last, self._pauses()
                self._pause_or_raise(pauses, error)
            else:
                return

    def delete(self, key: str, *, once: bool = False) -> None:
        """Remove the object. With `once` it is for the caller to try again."""
        if once:
            self.inner.delete(key, once=True)
        else:
            self._again(lambda: self.inner.delete(key))

    def _holds(self, key: str, content: memoryview) -> bool:
        """Tell whether the object holds exactly `content`. Raises `errors.StoreUnavailable`, which is then tried again."""
        try:
            return self.inner.size(key) == content.nbytes and self.inner.get(key) == content
        except errors.ObjectMissing as error:
            raise errors.StoreUnavailable(f"{key} was there and is gone", hint="try again") from error

    def _again(self, attempt: Callable[[], _T]) -> _T:
        pauses = self._pauses()
        while True:
            try:
                return attempt()
            except errors.StoreUnavailable as error:
                self._pause_or_raise(pauses, error)

    def _pause_or_raise(self, pauses: Iterator[float], error: errors.StoreUnavailable) -> None:
        """Wait before the next try; raise `error` where there is none."""
        pause_s = None if isinstance(error, errors.StoreFull) else next(pauses, None)
        if pause_s is None:
            raise error
        self._sleep(pause_s)

    def _pauses(self) -> Iterator[float]:
        """Return the pauses before each further try, until patience, which begins now, ends."""
        return self._pauses_until(self._clock() + self._patience.total_s)

    def _pauses_until(self, until_s: float) -> Iterator[float]:
        for number in range(self._patience.tries - 1):
            pause_s = min(self._patience.longest_pause_s, self._patience.first_pause_s * 2.0**number)
            pause_s *= 0.5 + 0.5 * self._random()
            if self._clock() + pause_s > until_s:
                return
            yield pause_s
