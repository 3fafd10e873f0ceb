"""Signs of life of the steps that this process holds, and outcomes that could not be recorded yet. Called by `steps`.

One thread a ledger, with a connection of its own, alive only while something is held: a step may take longer than its lease.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable

from perdure import errors
from perdure.effects.machine import Claim, Outcome

BEATS_A_LEASE = 3
"""Signs of life in the length of a lease: one may be late and one lost."""


@dataclasses.dataclass(slots=True, eq=False)
class Held:
    """A step that this process holds."""

    claim: Claim
    outcome: Outcome | None = None
    """How it ended, when that is known and not yet recorded."""
    lost: errors.PerdureError | None = None
    """Why this process is not the holder any more."""


class Beats:
    """Renews what is held every third of `lease_s`. `close` lets go of the connection.

    `renew` and `settle` do one transaction for one step; they raise `errors.LedgerUnavailable` when it is to be tried again, and
    another `errors.PerdureError` when the step is lost.
    """

    def __init__(
        self, lease_s: float, *, renew: Callable[[Held], object], settle: Callable[[Held, Outcome], object], close: Callable[[], None]
    ) -> None:
        self._interval_s = lease_s / BEATS_A_LEASE
        self._renew = renew
        self._settle = settle
        self._close = close
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._held: dict[str, Held] = {}
        self._thread: threading.Thread | None = None

    def add(self, held: Held) -> None:
        """Renew `held` from now on, or record its outcome when it has one."""
        if self._pid != os.getpid():
            self._forget()  # a forked child has neither its parent's threads nor its steps
        with self._changed:
            self._held[held.claim.nonce] = held
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="perdure-effects-beats", daemon=True)
                self._thread.start()

    def remove(self, held: Held) -> None:
        """Stop renewing `held`."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._held.pop(held.claim.nonce, None)

    def close(self) -> None:
        """Forget what is held, and wait for the thread to end."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._held.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._close()

    def _run(self) -> None:
        while True:
            with self._changed:
                # With nothing held, stay for one round: the next step often follows at once, and a thread costs more than a wait.
                self._changed.wait(self._interval_s)
                if not self._held:
                    self._thread = None
                    return
                current = list(self._held.values())
            for held in current:
                self._beat(held)

    def _beat(self, held: Held) -> None:
        outcome = held.outcome
        try:
            if outcome is None:
                self._renew(held)
            else:
                self._settle(held, outcome)
        except errors.LedgerUnavailable:
            return  # tried again at the next beat
        except errors.PerdureError as error:
            held.lost = error
        else:
            if outcome is None:
                return
        self.remove(held)
