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

_LATE_S = 0.5
"""Woken so much later than it asked for, this process stood still itself: suspended by a scheduler, or with its machine."""
_SHARE_OF_TTL = 1 / 3
"""So long it then waits for a renewal, with the workload stopped."""
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
        self.has_struck = False
        """It has killed the workload."""

    def run(self) -> None:
        """Wait for the end of the lease, which each renewal puts off."""
        while not self._waits():
            if self._held.remaining_s <= 0:
                self.has_struck = True
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                break
        os.close(self._pidfd)

    def close(self) -> None:
        """Wait for nothing any more: the workload has ended."""
        self._closed.set()

    def _waits(self) -> bool:
        """Wait for as long as the lease lasts now; returns whether nobody waits any more."""
        left_s, began_s = max(self._held.remaining_s, 0.0), _now_s()
        if self._closed.wait(left_s):
            return True
        if self._held.remaining_s <= 0 and _now_s() - began_s > left_s + _LATE_S:
            self._wait_stopped()
        return self._closed.is_set()

    def _wait_stopped(self) -> None:
        """Give the supervisor, which has just woken as well, the time to renew, in which the workload does nothing."""
        until_s = _now_s() + self._held.ttl_s * _SHARE_OF_TTL
        with contextlib.suppress(errors.ProcessGone):
            before = frozenset(each.pid for each in tree.members(self._root) if each.is_stopped)
            tree.stop(self._root)
            while self._held.remaining_s <= 0 and _now_s() < until_s and not self._closed.wait(_LOOK_S):
                pass
            if self._held.remaining_s > 0:
                tree.resume(self._root, leave=before)


def _now_s() -> float:
    """Return a time that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
