"""Hosts, processes, clocks and a store in simulated time: what locks and lives meet in years, in a second, and again from the same seed.

Each process runs the real code in a thread of its own; only one runs at a time, and it gives way at every call of the store and every
pause. Between two such points any time may pass: networks are slow, processes are stopped, answers are lost, processes are killed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

from perdure import errors
from perdure.store.backends.contract import ObjectInfo
from perdure.store.backends.memory import MemoryBackend
from perdure.store.owners import Owner


class Killed(BaseException):
    """The simulated process ends here, with nothing run any more that would reach the store."""


class Process:
    """A simulated process: its surroundings, and its thread."""

    def __init__(self, world: World, host: str, pid: int, run: Callable[[Process], None]) -> None:
        self.world = world
        self.host = host
        self.pid = pid
        self.is_dead = False
        self.wake_s = world.now_s
        self.error: BaseException | None = None
        self.kill_s = float("inf")
        self._turn = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()

    # What locks and lives know of the world: `owners.Surroundings`.

    def owner(self, purpose: str) -> Owner:
        return Owner(self.host, f"boot-{self.host}", "namespaces", self.pid, self.pid, purpose)

    def is_alive(self, other: Owner) -> bool | None:
        if other.host != self.host:
            return None
        return not self.world.processes[other.host, other.pid].is_dead

    def now_s(self) -> float:
        offset_s, rate = self.world.clocks[self.host]
        return offset_s + rate * self.world.now_s

    def wall_ns(self) -> int:
        return self.world.random.randrange(10**18)  # a clock that jumps all the time

    def pause(self, seconds: float) -> None:
        self.give_way(seconds / self.world.clocks[self.host][1])

    def token(self) -> str:
        return f"{self.world.random.getrandbits(128):032x}"

    def jitter(self) -> float:
        return self.world.random.uniform(0.5, 1.5)

    def give_way(self, seconds: float) -> None:
        """Let others run until `seconds` of true time have passed; end here when killed meanwhile."""
        if self.is_dead:
            raise Killed
        self.wake_s = self.world.now_s + seconds
        self.world.turn.release()
        self._turn.acquire()
        if self.is_dead:
            raise Killed

    def step(self) -> None:
        """Run the process until it gives way or ends."""
        self._turn.release()
        self.world.turn.acquire()

    def _run(self, run: Callable[[Process], None]) -> None:
        self._turn.acquire()
        try:
            if not self.is_dead:
                run(self)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error
        self.is_dead = True
        self.world.turn.release()

    def end(self) -> None:
        """Kill the process and wait for its thread."""
        self.is_dead = True
        if self._thread.is_alive():
            self.step()
        self._thread.join()


class World:
    """True time, and everything that happens in it."""

    def __init__(self, seed: int, hosts: int, *, fault_rate: float = 0.02, stall_s: float = 60.0) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.fault_rate = fault_rate
        self.stall_s = stall_s
        self.turn = threading.Semaphore(0)
        self.objects = MemoryBackend()
        self.objects.create()
        self.processes: dict[tuple[str, int], Process] = {}
        self.clocks = {f"host{n}": (self.random.uniform(0, 1e6), self.random.uniform(0.95, 1.05)) for n in range(hosts)}

    def start(self, host: str, run: Callable[[Process], None], *, lives_s: float = float("inf")) -> Process:
        """Start a process on `host` that is killed after `lives_s`, if it has not ended by then."""
        pid = 100 + len(self.processes)
        process = Process(self, host, pid, run)
        process.kill_s = self.now_s + lives_s
        self.processes[host, pid] = process
        return process

    def run(self, until_s: float, check: Callable[[], None], *, on_end: Callable[[Process], None] = lambda process: None) -> None:
        """Let time pass until `until_s`, calling `check` after every step and `on_end` with every process that ended."""
        reported: set[int] = set()
        try:
            while True:
                alive = [process for process in self.processes.values() if not process.is_dead]
                if not alive:
                    return
                process = min(alive, key=lambda one: (min(one.wake_s, one.kill_s), one.pid))
                self.now_s = max(self.now_s, min(process.wake_s, process.kill_s))
                if self.now_s > until_s:
                    return
                if process.kill_s <= self.now_s:
                    process.end()
                else:
                    process.step()
                if process.error is not None:
                    raise process.error
                check()
                if process.is_dead and process.pid not in reported:
                    reported.add(process.pid)
                    on_end(process)
        finally:
            for process in self.processes.values():
                process.end()


class SlowBackend:
    """The world's objects as one process reaches them: each call takes time, may stall, and may fail before or after it happened."""

    parallel = 1

    def __init__(self, process: Process) -> None:
        self._process = process
        self.url = "simulated:"

    def create(self) -> None:
        self._call(self._process.world.objects.create)

    def exists(self) -> bool:
        return self._call(self._process.world.objects.exists)

    def put(self, key: str, content: bytes) -> None:
        self._call(self._process.world.objects.put, key, content)

    def put_if_absent(self, key: str, content: bytes) -> None:
        self._call(self._process.world.objects.put_if_absent, key, content)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        return self._call(lambda: self._process.world.objects.get(key, start=start, length=length))

    def size(self, key: str) -> int:
        return self._call(self._process.world.objects.size, key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._call(lambda: list(self._process.world.objects.list(prefix))))

    def delete(self, key: str, *, once: bool = False) -> None:
        del once
        self._call(self._process.world.objects.delete, key)

    def close(self) -> None:
        pass

    def _call(self, act: Callable, *arguments: object) -> object:
        world = self._process.world
        self._wait()
        failed = world.random.random() < world.fault_rate
        if failed and world.random.random() < 0.5:
            raise errors.StoreUnavailable("simulated: it did not happen")
        result = act(*arguments)
        self._wait()
        if failed:
            raise errors.StoreUnavailable("simulated: it happened, and the answer was lost")
        return result

    def _wait(self) -> None:
        world = self._process.world
        stalled = world.random.random() < 0.02
        self._process.give_way(world.random.uniform(0, world.stall_s) if stalled else world.random.expovariate(20))
