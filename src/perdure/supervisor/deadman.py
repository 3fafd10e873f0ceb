"""The last resort of a lease: a thread that ends the workload when the lease has run out, whatever the supervisor is doing then.

A store in the network need not refuse to answer, it may just not answer: then the renewal hangs, and with it whatever else touches a file
there, perhaps the supervisor's main thread. Another machine takes the workload over all the same. This thread touches no file. Called by
`leases`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from perdure import errors
from perdure.checkpoint import tree
from perdure.checkpoint.tree import Tree
from perdure.store.lives import HeldLife

_LOOKS_A_TTL = 10
_LATE_S = 0.5
"""Woken so much later than it asked for, this process stood still itself: suspended by a scheduler, or with its machine."""
RENEWAL_S = 60.0
"""So long a supervisor that stood still may take to renew, with the workload stopped: perhaps a whole cluster has just gone on."""
_LOOK_S = 0.05


class DeadMan(threading.Thread):
    """Kills the workload `root` once `held` may not go on any more.

    A supervisor that stood still could not renew. The workload, which stood still too, is stopped until the lease is renewed, which fails
    when somebody took over meanwhile.
    """

    def __init__(self, held: HeldLife, root: Tree) -> None:
        super().__init__(name="perdure-deadman", daemon=True)
        self._held = held
        self._root = root
        self._pidfd = os.pidfd_open(root.pid)
        self._closed = threading.Event()
        self._stood_still = False
        """This process did, since the lease was renewed."""
        self._seen_s = 0.0
        """When that was looked at last."""
        self.has_struck = False
        """It has killed the workload."""

    def run(self) -> None:
        """Wait for the end of the lease, which each renewal puts off."""
        self._seen_s = _now_s()
        while not self._closed.is_set():
            if self._held.remaining_s > 0:
                self._wait()
                continue
            self._look(0.0)
            if not (self._stood_still and self._renews()):
                self._strike()
                break
        os.close(self._pidfd)

    def close(self) -> None:
        """Wait for nothing any more: the workload has ended."""
        self._closed.set()

    def _wait(self) -> None:
        """Wait for a part of what is left of the lease, and find out whether this process stood still meanwhile."""
        left_s = self._held.remaining_s
        pause_s = max(min(left_s, self._held.ttl_s / _LOOKS_A_TTL), 0.0)
        self._closed.wait(pause_s)
        is_renewed = self._held.remaining_s > left_s
        if not self._look(pause_s) and is_renewed:
            self._stood_still = False

    def _look(self, pause_s: float) -> bool:
        """Find out whether this process stood still since it was looked at last, `pause_s` and hardly more ago; without a gap between."""
        before_s, self._seen_s = self._seen_s, _now_s()
        is_late = self._seen_s - before_s > pause_s + _LATE_S
        self._stood_still |= is_late
        return is_late

    def _renews(self) -> bool:
        """Give the supervisor, which has just woken as well, the time to renew, in which the workload does nothing; return whether it did.

        Whoever wakes both wakes one process after the other. So one that stands still is let alone: it may be about to be woken, and if it
        is not, somebody else stopped it before. One that goes on is stopped, however late it was woken.
        """
        until_s, stopped = _now_s() + RENEWAL_S, frozenset[int]()
        while self._held.remaining_s <= 0:
            if self._closed.is_set():
                return True
            if _now_s() > until_s:
                return False
            with contextlib.suppress(errors.ProcessGone):
                stopped |= tree.stop_running(self._root)
            time.sleep(_LOOK_S)
        self._stood_still = False
        self._seen_s = _now_s()
        with contextlib.suppress(errors.ProcessGone):
            tree.resume(self._root, only=stopped)
        return True

    def _strike(self) -> None:
        if self._closed.is_set():
            return
        self.has_struck = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def _now_s() -> float:
    """Return a time that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
