"""Signs of life of the steps that this process holds, and outcomes that could not be recorded yet. Called by `steps`.

One thread a ledger, with a connection of its own, alive only while something is held: a step may take longer than its lease.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

from perdure import errors
from perdure.effects import forks, gate
from perdure.effects.rows import Claim, Outcome

BEATS_A_LEASE = 3
"""Signs of life in the length of a lease: one may be late and one lost."""


@dataclasses.dataclass(slots=True, eq=False)
class Held:
    """A step that this process holds."""

    claim: Claim
    outcome: Outcome | None = None
    """How it ended, when that is known and not yet recorded."""


class Beats:
    """Renews what is held every third of `lease_s`. `close` lets go of the connection.

    `renew` and `settle` do one transaction for one step; they raise `errors.EffectLost` or `errors.StaleLife` when the step is lost,
    and anything else when it is to be tried again.
    """

    def __init__(
        self, lease_s: float, *, renew: Callable[[Held], object], settle: Callable[[Held, Outcome], object], close: Callable[[], None]
    ) -> None:
        self._interval_s = lease_s / BEATS_A_LEASE
        self._renew = renew
        self._settle = settle
        self._close = close
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """Begin with nothing held: a forked child has neither its parent's threads nor its steps."""
        self._changed = threading.Condition()
        self._held: dict[str, Held] = {}
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def add(self, held: Held) -> None:
        """Renew `held` from now on, or record its outcome when it has one."""
        with self._changed:
            self._held[held.claim.nonce] = held
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="perdure-effects-beats", daemon=True)
                self._thread.start()

    def remove(self, held: Held) -> None:
        """Stop renewing `held`: its step is over, and a checkpoint may be made as far as it goes."""
        with self._changed:
            self._held.pop(held.claim.nonce, None)
        gate.leave(held.claim.nonce)

    def close(self) -> None:
        """Forget what is held, wait for the thread to end, and try once more to record what ended."""
        with self._changed:
            unrecorded = [held for held in self._held.values() if held.outcome is not None]
            for nonce in self._held:
                gate.leave(nonce)
            self._held.clear()
            self._is_closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        for held in unrecorded:
            self._beat(held)
        with self._changed:
            self._is_closing = False
        self._close()

    def _run(self) -> None:
        while True:
            with self._changed:
                # With nothing held, stay for one round: the next step often follows at once, and a thread costs more than a wait.
                # Whoever closes may have said so before this thread came here.
                self._changed.wait_for(lambda: self._is_closing, self._interval_s)
                if self._is_closing or not self._held:
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
        except (errors.EffectLost, errors.StaleLife):
            pass  # there is no more to renew, and the end of the step will tell its caller
        except Exception:  # noqa: BLE001  # without this thread, nothing that is held would ever be renewed or recorded
            return  # the ledger, or what tells the epoch, cannot be read now: tried again at the next beat
        else:
            if outcome is None:
                return
        self.remove(held)
