"""A backend that fails on purpose, by a schedule: how everything above the backends is tried against full disks and bad servers.

    faulty = FaultyBackend(MemoryBackend(), at_write(3, Fault.LOST_ANSWER))

The same schedule, seed and sequence of calls give the same faults. Every call is counted and kept in `history`.
"""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from perdure import errors
from perdure.store.backends.contract import Backend, ObjectInfo
from perdure.store.backends.wrapping import WrappingBackend

_T = TypeVar("_T")

WRITES = ("put", "put_if_absent", "delete")
READS = ("get", "size", "list")
CALLS = ("create", "exists", *WRITES, *READS)


class Fault(enum.StrEnum):
    """What goes wrong."""

    FULL = "full"
    """No room: `StoreFull`, nothing written. Deleting works on a full disk."""
    READ_ONLY = "read-only"
    """Writing is refused for good: `StoreError`."""
    IO_ERROR = "io-error"
    """The disk fails (EIO): `StoreUnavailable`, nothing happened."""
    TIMEOUT = "timeout"
    """No answer, and nothing happened: `StoreUnavailable`."""
    SERVER_ERROR = "server-error"
    """A server answers 500, and nothing happened: `StoreUnavailable`."""
    LOST_ANSWER = "lost-answer"
    """It happened, and the answer was lost: `StoreUnavailable`."""
    PARTIAL = "partial"
    """It broke off in the middle: `StoreUnavailable`. A write left nothing to be seen; a listing gave its first half."""
    SLOW = "slow"
    """It works, late: `sleep(slow_s)` first."""
    TORN = "torn"
    """Breaks the contract, as a disk that lies does: half of the object is there, and `StoreUnavailable` is raised."""
    SHORT_READ = "short-read"
    """Breaks the contract: half of the bytes, and no error."""
    STALE_LISTING = "stale-listing"
    """Breaks the contract: the listing of the last time (empty the first time), as some object stores and caches give."""


_TOUCHES: dict[Fault, tuple[str, ...]] = {
    Fault.FULL: ("create", "put", "put_if_absent"),
    Fault.READ_ONLY: ("create", *WRITES),
    Fault.TORN: ("put", "put_if_absent"),
    Fault.SHORT_READ: ("get",),
    Fault.STALE_LISTING: ("list",),
}
"""The calls that a fault can befall; all of them where it is not named."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When a fault befalls. A rule looks at the calls that it can befall and that match; the first rule that applies wins."""

    fault: Fault
    calls: tuple[str, ...] = ()
    """Names of calls, of `CALLS`; empty: all that the fault can befall."""
    prefix: str = ""
    """What the key begins with."""
    after: int = 0
    """How many matching calls go well first."""
    times: int | None = 1
    """How often it befalls after that; None: always."""
    chance: float = 1.0
    """Probability, from 0 to 1, that it befalls a call it could."""

    def touches(self, call: str, key: str) -> bool:
        """Tell whether the rule looks at this call."""
        possible = _TOUCHES.get(self.fault, CALLS)
        return call in possible and call in (self.calls or possible) and key.startswith(self.prefix)


class Call(msgspec.Struct, frozen=True):
    """A call that was made, and what befell it."""

    name: str
    key: str
    fault: Fault | None


def at_write(number: int, fault: Fault, *, times: int | None = 1) -> tuple[Rule, ...]:
    """Return the schedule in which `fault` befalls the write of that `number`, from 0, of those it can befall."""
    return (Rule(fault=fault, calls=WRITES, after=number, times=times),)


def at_random(chance: float, faults: Sequence[Fault], *, calls: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Return the schedule in which each of `faults` befalls a call with probability `chance`."""
    return tuple(Rule(fault=fault, calls=calls, times=None, chance=chance) for fault in faults)


class FaultyBackend(WrappingBackend):
    """A `contract.Backend` around `inner` that fails as `schedule` says. Threads may share it; their order then decides who meets what."""

    def __init__(
        self,
        inner: Backend,
        schedule: Sequence[Rule] = (),
        *,
        seed: int = 0,
        sleep: Callable[[float], None] = lambda _seconds: None,
        slow_s: float = 5.0,
    ) -> None:
        """Wrap `inner`. `seed` decides the chances; `sleep` is told to wait `slow_s` seconds for each slow call."""
        super().__init__(inner)
        self.schedule: Sequence[Rule] = schedule
        self.history: list[Call] = []
        self._random = random.Random(seed)  # noqa: S311  # a schedule of faults is no secret
        self._sleep = sleep
        self._slow_s = slow_s
        self._lock = threading.Lock()
        self._met: dict[Rule, tuple[int, int]] = {}
        self._listed: dict[str, list[ObjectInfo]] = {}

    def count(self, *calls: str) -> int:
        """Return how many calls of these names were made; of all without a name."""
        return sum(1 for call in self.history if not calls or call.name in calls)

    def heal(self) -> None:
        """Let everything go well from now on."""
        self.schedule = ()

    def create(self) -> None:
        """Make the place ready, or fail."""
        self._do("create", "", self.inner.create)

    def exists(self) -> bool:
        """Tell whether the place is there, or fail."""
        return self._do("exists", "", self.inner.exists)

    def put(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the object, or fail."""
        self._write("put", key, content, self.inner.put)

    def put_if_absent(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the object unless it is there, or fail."""
        self._write("put_if_absent", key, content, self.inner.put_if_absent)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read a range, or fail."""
        fault = self._befalls("get", key)
        content = self._with(fault, lambda: self.inner.get(key, start=start, length=length))
        return content[: len(content) // 2] if fault is Fault.SHORT_READ else content

    def size(self, key: str) -> int:
        """Return the object's size, or fail."""
        return self._do("size", key, lambda: self.inner.size(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List the objects, or fail: at once, or after the first half."""
        fault = self._befalls("list", prefix)
        if fault is Fault.STALE_LISTING:
            return iter(self._listed.get(prefix, []))
        found = list(self.inner.list(prefix))
        if fault is Fault.PARTIAL:
            return _broken_off(found)
        self._listed[prefix] = found
        return iter(self._with(fault, lambda: found))

    def delete(self, key: str, *, once: bool = False) -> None:
        """Remove the object, or fail."""
        self._do("delete", key, lambda: self.inner.delete(key, once=once))

    def _do(self, name: str, key: str, act: Callable[[], _T]) -> _T:
        return self._with(self._befalls(name, key), act)

    def _write(
        self,
        name: str,
        key: str,
        content: bytes | bytearray | memoryview,
        act: Callable[[str, bytes | bytearray | memoryview], None],
    ) -> None:
        fault = self._befalls(name, key)
        if fault is Fault.TORN:
            view = memoryview(content).cast("B")
            act(key, view[: len(view) // 2])
            raise _unavailable("the write broke off")
        self._with(fault, lambda: act(key, content))

    def _with(self, fault: Fault | None, act: Callable[[], _T]) -> _T:
        match fault:
            case Fault.FULL:
                raise errors.StoreFull(f"{self.url}: no space left", hint="free some space")
            case Fault.READ_ONLY:
                raise errors.StoreError(f"{self.url}: read-only file system", hint="mount it writable")
            case Fault.IO_ERROR:
                raise _unavailable("input/output error")
            case Fault.TIMEOUT:
                raise _unavailable("no answer in time")
            case Fault.SERVER_ERROR:
                raise _unavailable("the server answered 500")
            case Fault.PARTIAL:
                raise _unavailable("the connection broke off")
            case Fault.LOST_ANSWER:
                act()
                raise _unavailable("the answer was lost")
            case Fault.SLOW:
                self._sleep(self._slow_s)
        return act()

    def _befalls(self, name: str, key: str) -> Fault | None:
        """Decide what befalls this call, and keep it."""
        with self._lock:
            fault = None
            for rule in self.schedule:
                if rule.touches(name, key):
                    seen, befallen = self._met.get(rule, (0, 0))
                    due = fault is None and self._is_due(rule, seen, befallen)
                    self._met[rule] = (seen + 1, befallen + due)
                    fault = rule.fault if due else fault
            self.history.append(Call(name, key, fault))
            return fault

    def _is_due(self, rule: Rule, seen: int, befallen: int) -> bool:
        if seen < rule.after or (rule.times is not None and befallen >= rule.times):
            return False
        return rule.chance >= 1.0 or self._random.random() < rule.chance


def _broken_off(found: list[ObjectInfo]) -> Iterator[ObjectInfo]:
    yield from found[: len(found) // 2]
    raise _unavailable("the listing broke off")


def _unavailable(what: str) -> errors.StoreUnavailable:
    return errors.StoreUnavailable(f"the store fails by schedule: {what}", hint="try again")
