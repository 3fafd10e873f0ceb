"""Who runs a step and when it is: this process as others can find it again, and clocks that do not jump.

Called by the ledger at every use, never kept: a process that was restored from a checkpoint has another start time, and
perhaps another machine, than its memory says.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """One process of one boot of one machine."""

    host: str
    """Host name, for people."""
    boot: str
    """Identifies the boot and the time namespace: equal means that both read the same `CLOCK_BOOTTIME`."""
    pid_namespace: str
    pid: int
    started: int
    """Start in clock ticks since boot: tells a process from a later one with the same number."""

    def dump(self) -> str:
        """Return the process as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def load(cls, text: str) -> Process:
        """Read what `dump` wrote."""
        return cls(**json.loads(text))


class Surroundings(Protocol):
    """What a ledger knows of the world: injected, so that tests can move clocks and pretend to be other machines."""

    def process(self) -> Process:
        """Return the calling process as it is now."""
        ...

    def is_alive(self, other: Process) -> bool | None:
        """Say whether `other` still exists; None: cannot be told from here."""
        ...

    def boot_s(self) -> float:
        """Return seconds since boot, suspension included; never set back by anybody. Comparable where `Process.boot` is equal."""
        ...

    def wall_s(self) -> float:
        """Return seconds since 1970. Shown to people; decides nothing."""
        ...


class Linux:
    """The real surroundings."""

    def process(self) -> Process:
        """Read the calling process from /proc."""
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
            boot = handle.read().strip()
        pid = os.getpid()
        return Process(
            host=socket.gethostname(),
            boot=f"{boot}/{_link('/proc/self/ns/time')}",
            pid_namespace=_link("/proc/self/ns/pid"),
            pid=pid,
            started=_started(pid) or 0,
        )

    def is_alive(self, other: Process) -> bool | None:
        """Look for `other` in /proc; a zombie is dead, a process that may not be looked at is unknown."""
        here = self.process()
        if (other.boot, other.pid_namespace) != (here.boot, here.pid_namespace):
            return None
        started = _started(other.pid)
        if started is not None:
            return started == other.started
        try:
            os.kill(other.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return None
        return False if _exists(other.pid) else None

    def boot_s(self) -> float:
        """Read CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_s(self) -> float:
        """Read the wall clock."""
        return time.time()


def _started(pid: int) -> int | None:
    """Start time of a living process in ticks; None for a zombie or one that cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as handle:
            # The name in parentheses may itself hold parentheses and spaces.
            fields = handle.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}/stat")


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # kernels before 5.6 have no time namespaces
        return ""
