"""Stores for tests: new ones in memory, the same opened again in another way, and surroundings that stand still until told."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure.model.checkpoint import CheckpointId, HostFact, Manifest, Part, ProcessFact, Trigger
from perdure.store import layout
from perdure.store.backends import contract
from perdure.store.backends.memory import MemoryBackend
from perdure.store.backends.retry import Patience, RetryingBackend
from perdure.store.backends.wrapping import WrappingBackend
from perdure.store.owners import Owner
from perdure.store.repository import Repository


def new_repository(cache: Path, *, key: bytes | None = None, backend=None) -> Repository:
    """Make a store, in memory unless `backend` is given; `cache` is a folder."""
    backend = backend if backend is not None else MemoryBackend()
    backend.create()
    return Repository.create(backend, key=key, secret=bytes(range(32)), repository_id="0" * 32, cache=cache, threads=1, random=os.urandom)


def describe(checkpoint: str, **changes) -> Manifest:
    """Return what the checkpoint called `checkpoint` says of itself, before its content is known."""
    one = CheckpointId.parse(checkpoint)
    host = HostFact(
        hostname="node7",
        machine="x86_64",
        kernel="6.18",
        boot_id="b",
        cpu_model="cpu",
        cpu_flags=(),
        page_bytes=4096,
        criu_version="4.2.1",
        perdure_version="0",
        pid_max=4194304,
    )
    plain = Manifest(
        id=one,
        created_ns=1_800_000_000 * 10**9 + one.epoch * 10**12 + one.sequence * 10**9,
        trigger=Trigger.INTERVAL,
        reason="every 10 minutes",
        command=("python", "train.py"),
        working_directory="/home/me",
        host=host,
        processes=(ProcessFact(1, 0, 4711, "python", "/usr/bin/python3", 1000, 1000, 2, 1 << 20),),
        streams=(),
        durations_s={"stopped": 0.25},
    )
    return msgspec.structs.replace(plain, **changes)


def save(repository: Repository, checkpoint: str, files: Mapping[str, bytes], *, folder: Path, **changes) -> Manifest:
    """Make a checkpoint of `files` (name: content), as part memory; `folder` is for the time of the call."""
    older = [one for one in repository.checkpoints(checkpoint.partition("@")[0]) if str(one) != checkpoint]
    with repository.writer(previous=repository.head(older[-1]) if older else None, progress=lambda _done: None) as writer:
        for number, (name, content) in enumerate(files.items()):
            path = folder / f"source-{number}"
            path.write_bytes(content)
            writer.add(name, path, part=Part.MEMORY)
            path.unlink()
        return writer.commit(lambda sizes, stored: describe(checkpoint, sizes=sizes, files=stored, **changes))


def content(repository: Repository, checkpoint: str) -> dict[str, bytes]:
    """Return the files of a checkpoint, by name."""
    one = CheckpointId.parse(checkpoint)
    return {file.name: repository.read_file(one, file.name) for file in repository.head(one).files}


def noise(size_bytes: int, seed: int) -> bytes:
    """Return bytes that do not compress, the same for the same seed."""
    return random.Random(seed).randbytes(size_bytes)


def spoil(monkeypatch, path: Path, number: int, *, times: int | None = None, failing: Callable[[], object] = lambda: None) -> None:
    """Let reads of the file that is at `path` now fail with the error `number`, always or `times` times. `failing` is called before."""
    spoiled, left, pread = path.stat(), [times], os.pread

    def fail(descriptor: int, length: int, offset: int) -> bytes:
        if not os.path.samestat(os.fstat(descriptor), spoiled) or left[0] == 0:
            return pread(descriptor, length, offset)
        left[0] = None if left[0] is None else left[0] - 1
        failing()
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pread", fail)


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


class SilentDeletes(WrappingBackend):
    """A backend whose first `times` deletes of packs get no answer in the time that one may take: it passes for `here`."""

    def __init__(self, inner, here: Still, *, times: int) -> None:
        super().__init__(inner)
        self._here = here
        self._left = times
        self._signed_s = -float("inf")
        self.began_s: list[float] = []
        """Of each try to delete a pack, how long after the last sign of life of a lock it began."""

    def patient(self) -> RetryingBackend:
        """Return this backend as it is used over a network."""
        return RetryingBackend(self, Patience(), clock=self._here.now_s, sleep=self._here.pause, random=lambda: 1.0)

    def put(self, key: str, content: bytes) -> None:
        self.inner.put(key, content)
        if key.startswith(layout.LOCKS):
            self._signed_s = self._here.now_s()

    def delete(self, key: str, **more: bool) -> None:
        if key.startswith(layout.PACKS):
            self.began_s.append(self._here.now_s() - self._signed_s)
            if self._left:
                self._left -= 1
                self._here.pass_time(contract.DELETE_S)
                self._here.fail()
        self.inner.delete(key, **more)


class Crashed(BaseException):
    """The process ended here."""


class Crashing:
    """A backend that ends the process at its call number `at`, before or after it happened."""

    parallel = 1

    def __init__(self, backend: MemoryBackend, at: int, *, after: bool) -> None:
        self._backend = backend
        self._at = at
        self._after = after
        self.calls = 0

    def __getattr__(self, name: str):
        found = getattr(self._backend, name)
        if not callable(found):
            return found

        def call(*arguments, **more):
            self.calls += 1
            if self.calls > self._at:
                if self.calls == self._at + 1 and self._after:
                    found(*arguments, **more)
                raise Crashed
            return found(*arguments, **more)

        return call
