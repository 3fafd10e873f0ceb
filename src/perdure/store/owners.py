"""Who holds something in a store, told so that others can find out whether it still lives; and clocks that nobody can set.

Called by `locks` and `lives`, and by whoever begins a life or takes a lock. Decisions of theirs rest on two things only: a process of
the same boot that is gone, and a record that did not change for a while by the observer's own clock.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from typing import Protocol

import msgspec

from perdure import errors
from perdure.base.proc import machine, process


class Owner(msgspec.Struct, frozen=True):
    """A process of one boot of one machine, and what it is doing."""

    host: str
    """Host name, for people."""
    boot_id: str
    namespaces: str
    """Identity of the PID and time namespaces that `pid` and `start_ticks` count in: with `boot_id` they say who can look it up."""
    pid: int
    start_ticks: int
    """Start in clock ticks after boot: tells a process from a later one with the same number."""
    purpose: str = ""
    """What for, in words, such as "gc"."""

    def __str__(self) -> str:
        """Return the form for messages, such as ``process 4711 on node7 (gc)``."""
        return f"process {self.pid} on {self.host}" + (f" ({self.purpose})" if self.purpose else "")


class Surroundings(Protocol):
    """What locks and lives know of the world."""

    def owner(self, purpose: str) -> Owner:
        """Return the calling process."""
        ...

    def is_alive(self, other: Owner) -> bool | None:
        """Tell whether `other` still lives; None: it cannot be told from here."""
        ...

    def now_s(self) -> float:
        """Return seconds of a clock that counts suspension and is never set."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds of UTC since 1970: shown to people, decides nothing."""
        ...

    def pause(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...

    def token(self) -> str:
        """Return 32 hexadecimal digits that nobody else draws."""
        ...

    def jitter(self) -> float:
        """Return a random factor between 0.5 and 1.5."""
        ...


class Linux:
    """The real surroundings."""

    def owner(self, purpose: str) -> Owner:
        """Read the calling process from /proc."""
        pid = os.getpid()
        return Owner(
            host=socket.gethostname(),
            boot_id=machine.boot_id(),
            namespaces=f"{_link('/proc/self/ns/pid')} {_link('/proc/self/ns/time')}",
            pid=pid,
            start_ticks=process.stat(pid).start_ticks,
            purpose=purpose,
        )

    def is_alive(self, other: Owner) -> bool | None:
        """Look `other` up in /proc: a zombie is gone; one of another boot or namespace cannot be told."""
        here = self.owner("")
        if (other.boot_id, other.namespaces) != (here.boot_id, here.namespaces):
            return None
        try:
            found = process.stat(other.pid)
        except errors.ProcessGone:
            return None if _is_hidden(other.pid) else False
        except errors.InputDenied:
            return None
        return not found.is_dead and found.start_ticks == other.start_ticks

    def now_s(self) -> float:
        """Read CLOCK_BOOTTIME: a suspended machine must not believe that no time has passed."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_ns(self) -> int:
        """Read the time of day."""
        return time.time_ns()

    def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def token(self) -> str:
        """Draw from the operating system."""
        return secrets.token_hex(16)

    def jitter(self) -> float:
        """Draw a factor; nothing secret depends on it."""
        return random.uniform(0.5, 1.5)  # noqa: S311


class Quiet:
    """How long something has not changed, as one observer saw it.

    A single step counts for at most `longest_step_s`: an observer that was itself frozen did not watch meanwhile.
    """

    def __init__(self, longest_step_s: float) -> None:
        self._longest_step_s = longest_step_s
        self._mark: object = None
        self._seen = False
        self._last_s = 0.0
        self.quiet_s = 0.0

    def look(self, mark: object, now_s: float) -> bool:
        """Note what is seen now; return whether it changed since the last look. The first look is no change."""
        changed = self._seen and mark != self._mark
        if changed or not self._seen:
            self.quiet_s = 0.0
        else:
            self.quiet_s += min(max(0.0, now_s - self._last_s), self._longest_step_s)
        self._mark, self._seen, self._last_s = mark, True, now_s
        return changed


def _is_hidden(pid: int) -> bool:
    """Tell whether a process that /proc does not show is there all the same (the mount option hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # kernels before 5.6 have no time namespaces
        return ""
