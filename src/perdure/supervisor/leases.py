"""The life's lease, renewed in the background. Called by `keeper`.

A life that cannot renew must stop, since another machine may have taken over, unless nobody else can reach the store at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from perdure import errors
from perdure.supervisor.deadman import DeadMan
from perdure.supervisor.jobs import Job
from perdure.supervisor.life import Life
from perdure.supervisor.reactor import Reactor, Timer
from perdure.supervisor.voice import Voice

LOCAL_TTL_S = 30.0
"""On a store that only this machine reaches, only a reboot makes anybody wait for a lease."""
REMOTE_TTL_S = 120.0
"""A store in the network may be away for a while without the workload having to stop; the next machine waits as long."""

_RENEWALS_A_TTL = 3.0
_FASTER = 3.0
"""So much sooner is the next try after one that failed."""


class Lease:
    """Renews the lease of `life` from `start` on. `lost` is told when the life must end."""

    def __init__(self, life: Life, reactor: Reactor, voice: Voice, *, lost: Callable[[errors.PerdureError], None]) -> None:
        self._life = life
        self._reactor = reactor
        self._voice = voice
        self._lost = lost
        self._timer: Timer | None = None
        self._said = False
        self._deadman: DeadMan | None = None
        self.is_busy = False
        """A renewal is going on."""

    def start(self) -> None:
        """Renew from now on."""
        if not self._life.place.is_here:
            with contextlib.suppress(ProcessLookupError):
                self._deadman = DeadMan(self._life.held, self._life.tree)
                self._deadman.start()
        self._again(self._life.held.ttl_s / _RENEWALS_A_TTL)

    def renew_now(self) -> None:
        """Renew at once and wait for it: after a pause in which somebody may have taken over. Tells `lost` of it then."""
        if self.is_busy:
            return
        try:
            self._life.held.renew()
        except errors.PerdureError as error:
            self._judge(error)

    def close(self) -> errors.StaleLife | None:
        """The workload has ended. Returns why, if it was for the lease: the store had not answered until it ran out."""
        if self._deadman is None:
            return None
        self._deadman.close()
        if not self._deadman.has_struck:
            return None
        error = errors.StaleLife(
            f"{self._life.name}: the store did not answer for {self._life.held.ttl_s:g} s: its lease ran out, and it was ended",
            hint="another machine may have taken it over; the same command again continues it where that is not so",
        )
        error.__cause__ = errors.StoreUnavailable("the store does not answer", hint="see whether its folder can be reached")
        return error

    def _again(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.after(pause_s, self._renew)

    def _renew(self) -> None:
        self.is_busy = True
        Job(self._reactor, "perdure-lease", self._life.held.renew, lambda _result, problem: self._renewed(problem))

    def _renewed(self, problem: BaseException | None) -> None:
        self.is_busy = False
        pause_s = self._life.held.ttl_s / _RENEWALS_A_TTL
        match problem:
            case None:
                if self._said:
                    self._said = False
                    self._voice.say("the store answers again")
                self._again(pause_s)
            case errors.PerdureError():
                if self._judge(problem):
                    self._again(pause_s / _FASTER)
            case _:
                # Whatever the fault is, a workload that runs is worth more than ending it here.
                self._judge(errors.StoreError(f"{type(problem).__name__}: {problem}"))
                self._again(pause_s / _FASTER)

    def _judge(self, error: errors.PerdureError) -> bool:
        """Return whether the life may go on after a renewal that raised `error`."""
        is_taken_over = isinstance(error, errors.StaleLife) and not isinstance(error.__cause__, errors.StoreError)
        if is_taken_over or (isinstance(error, errors.StaleLife) and not self._life.place.is_here):
            self._lost(error)
            return False
        if not self._said:
            self._said = True
            words = f"the store does not take the sign of life: {error}; trying again"
            self._voice.warn_of(self._life.name, error, about=self._life.place.url, words=words)
        return True
