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

from perdure.store.lives import HeldLife


class DeadMan(threading.Thread):
    """Kills process `pid`, the workload's init, once `held` may not go on any more."""

    def __init__(self, held: HeldLife, pid: int) -> None:
        super().__init__(name="perdure-deadman", daemon=True)
        self._held = held
        self._pidfd = os.pidfd_open(pid)
        self._closed = threading.Event()
        self.has_struck = False
        """It has killed the workload."""

    def run(self) -> None:
        """Wait for the end of the lease, which each renewal puts off."""
        while not self._closed.wait(max(self._held.remaining_s, 0.0)):
            if self._held.remaining_s <= 0:
                self.has_struck = True
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                break
        os.close(self._pidfd)

    def close(self) -> None:
        """Wait for nothing any more: the workload has ended."""
        self._closed.set()
