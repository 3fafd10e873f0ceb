"""Stores for tests: new ones in memory, the same opened again in another way, and surroundings that stand still until told."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from perdure import errors
from perdure.store.backends.memory import MemoryBackend
from perdure.store.owners import Owner
from perdure.store.repository import Repository


def new_repository(cache: Path, *, key: bytes | None = None, backend=None) -> Repository:
    """Make a store, in memory unless `backend` is given; `cache` is a folder."""
    backend = backend if backend is not None else MemoryBackend()
    backend.create()
    return Repository.create(backend, key=key, secret=bytes(range(32)), repository_id="0" * 32, cache=cache, threads=1, random=os.urandom)


class Hooked:
    """A backend that calls `before_put` with every key that is about to be written."""

    def __init__(self, backend, before_put: Callable[[str], object]) -> None:
        self._backend = backend
        self._before_put = before_put

    def __getattr__(self, name: str):
        return getattr(self._backend, name)

    def put(self, key: str, content: bytes) -> None:
        self._before_put(key)
        self._backend.put(key, content)

    def put_if_absent(self, key: str, content: bytes) -> None:
        self._before_put(key)
        self._backend.put_if_absent(key, content)


def reopened(
    repository: Repository, cache: Path, *, backend=None, before_put: Callable[[str], object] | None = None, key: bytes | None = None
) -> Repository:
    """Open the same store again, as another process would; through `backend`, or watched by `before_put`."""
    place = backend if backend is not None else repository.backend
    if before_put is not None:
        place = Hooked(place, before_put)
    return Repository.open(place, key=key, cache=cache, threads=1, random=os.urandom)


class Still:
    """`owners.Surroundings` of a process on a machine where time passes only in pauses, each told to `on_pause`."""

    def __init__(
        self, *, host: str = "here", pid: int = 1, alive: Collection[int] = (), on_pause: Callable[[], object] = lambda: None
    ) -> None:
        self._host = host
        self._pid = pid
        self._alive = {*alive, pid}
        self._on_pause = on_pause
        self._now_s = 1000.0
        self._drawn = 0
        self.paused_s = 0.0

    def owner(self, purpose: str) -> Owner:
        return Owner(self._host, f"boot-{self._host}", "namespaces", self._pid, self._pid, purpose)

    def is_alive(self, other: Owner) -> bool | None:
        return other.pid in self._alive if other.host == self._host else None

    def now_s(self) -> float:
        return self._now_s

    def wall_ns(self) -> int:
        return 1_800_000_000 * 10**9

    def pause(self, seconds: float) -> None:
        self.pass_time(seconds)
        self.paused_s += seconds
        self._on_pause()

    def pass_time(self, seconds: float) -> None:
        """Let time pass without a pause, as when the process is stopped."""
        self._now_s += seconds

    def token(self) -> str:
        self._drawn += 1
        return f"{self._host.encode().hex():0>16}{self._pid:08x}{self._drawn:08x}"[:32]

    def jitter(self) -> float:
        return 1.0

    def fail(self) -> None:
        """Be a store that does not answer."""
        raise errors.StoreUnavailable("does not answer")
