"""How one step is begun and ended: the protocol between a caller, the machine and the ledger's storage. Called by `ledger`.

Everything here is a flow (see `flow`) or one transaction, so that blocking and asynchronous callers share it.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
import secrets
from collections.abc import Callable
from typing import Any

from perdure import errors
from perdure.effects import gate, machine
from perdure.effects.backend import LOCK_WAIT_S, Backend, Change, Seen
from perdure.effects.backend import Answer as Answered
from perdure.effects.beats import BEATS_A_LEASE, Beats, Held
from perdure.effects.epoch import Life
from perdure.effects.flow import Ask, Do, Flow, Pause
from perdure.effects.how import NOT_DONE, UNKNOWN, Done, How, Lookup
from perdure.effects.identity import Surroundings
from perdure.effects.rows import Caller, Claim, Decision, Doubt, Outcome, Replay, Row, State, Take, Wait
from perdure.effects.watch import Stopwatch, Watch

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
_PERSON_PAUSE_S = 1.0


@dataclasses.dataclass(frozen=True)
class Steps:
    """What all steps of one ledger share."""

    backend: Backend
    surroundings: Surroundings
    life: Callable[[], Life | None]
    lease_s: float
    patience_s: float
    """For how long a ledger that does not answer is tried again."""
    max_result_bytes: int
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    @functools.cached_property
    def beats(self) -> Beats:
        """The signs of life of what is held, over a connection of their own."""
        beside = dataclasses.replace(self, backend=self.backend.twin())
        return Beats(self.lease_s, renew=beside.renew, settle=beside.settle, close=beside.backend.close)

    # -- beginning ------------------------------------------------------------------------------------------------------------

    def acquire(self, key: str, how: How) -> Flow[Held | Row]:
        """Become the holder of a step, or learn that it is done.

        Returns what is held, or the row of a step that is done. Raises as `Ledger.once` says.
        """
        nonce = secrets.token_hex(16)
        try:
            return (yield from self._acquired(key, nonce, how))
        except (GeneratorExit, errors.EffectUnrecorded):
            raise
        except BaseException:
            # The claim may be committed although nobody was told: without this, it would look alive as long as this process is.
            yield Do(lambda: self._give_up(key, nonce))
            raise

    def _acquired(self, key: str, nonce: str, how: How) -> Flow[Held | Row]:
        decision = yield from self._arrive_until(key, nonce, how)
        if isinstance(decision, Replay):
            self.counts["replayed"] += 1
            return decision.row
        held = Held(decision.claim)
        self.beats.add(held)
        if held.claim.must_look and how.lookup is not None:
            return (yield from self._look(held, how.lookup, how))
        return held

    def _arrive_until(self, key: str, nonce: str, how: How) -> Flow[Replay | Take]:
        watch = Watch()
        stopwatch = Stopwatch(self.surroundings)
        pause_s = _FIRST_PAUSE_S
        is_polling = False
        while True:
            decision = yield from self._patiently(functools.partial(self.arrive, key, nonce, how, watch, is_polling=is_polling))
            waited_s = stopwatch.elapsed_s()
            match decision:
                case Replay() | Take():
                    return decision
                case Doubt(row):
                    if waited_s >= how.person_wait_s:
                        self.counts["in_doubt"] += 1
                        raise in_doubt(row)
                    yield Pause(min(_PERSON_PAUSE_S, how.person_wait_s - waited_s))
                case Wait(at_most_s):
                    if waited_s >= how.wait_s:
                        self.counts["busy"] += 1
                        raise errors.EffectBusy(
                            f"{key} is being done by another process, or was a moment ago",
                            hint=f"waited {how.wait_s:g} s; try again, or raise wait_s",
                            key=key,
                        )
                    self.counts["waited"] += not is_polling
                    # Many may wait for one: they look at different moments.
                    yield Pause(min(pause_s * random.uniform(0.5, 1.0), max(at_most_s, 0.001), how.wait_s - waited_s + 0.001))  # noqa: S311  # no secret
                    pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S, self.lease_s / BEATS_A_LEASE)
            is_polling = True

    def arrive(self, key: str, nonce: str, how: How, watch: Watch, *, is_polling: bool) -> Decision:
        """Decide, in one transaction, what this caller does about the step, and claim it when it is to be done."""
        life = self.life()
        caller = Caller(
            nonce=nonce,
            inputs=how.digest(),
            workload=life.workload if life else None,
            epoch=life.epoch if life else None,
            holder=self.surroundings.process().dump(),
            lease_s=self.lease_s,
            can_look=how.lookup is not None,
            provider_idempotent=how.provider_idempotent,
        )
        if is_polling:
            # Waiting needs no lock. Whatever else there is to decide, is decided again with it.
            decision = machine.decide(row := self.backend.read(key)[0], caller, watch.sight(row, self.surroundings))
            if isinstance(decision, Wait | Doubt):
                return decision
        claimed: Decision | None = None
        # Within from before the claim until the step is ended, so that no checkpoint falls between: see `beats` for the end.
        gate.enter(nonce)
        try:
            claimed = self.backend.transact(key, life, self._arrival(key, life, caller, watch))
        except errors.LedgerLocked:
            return Wait(LOCK_WAIT_S)  # a transaction of the caller's own may hold it for as long as its step takes
        finally:
            if not isinstance(claimed, Take):
                gate.leave(nonce)
        return claimed

    def _arrival(self, key: str, life: Life | None, caller: Caller, watch: Watch) -> Change[Decision]:
        def change(seen: Seen) -> tuple[Row | None, Decision]:
            if life:
                self._admit(seen.highest, life)
            try:
                decision = machine.decide(seen.row, caller, watch.sight(seen.row, self.surroundings))
            except errors.EffectChanged:
                self.counts["changed"] += 1
                raise
            if not isinstance(decision, Take) or (seen.row and seen.row.nonce == caller.nonce):
                return None, decision
            claim = dataclasses.replace(decision.claim, key=key)
            boot_s = self.surroundings.boot_s()
            return machine.claimed(key, seen.row, caller, claim, boot_s=boot_s, now_s=seen.now_s), Take(claim)

        return change

    def _admit(self, highest: int | None, life: Life) -> None:
        try:
            machine.admit(highest, life.workload, life.epoch)
        except errors.StaleLife:
            self.counts["stale"] += 1
            raise

    def _look(self, held: Held, lookup: Lookup, how: How) -> Flow[Held | Row]:
        """Ask the caller's lookup about a step in doubt: returns its row when it is done, or the claim to go on with."""
        self.counts["looked_up"] += 1
        key = held.claim.key
        finding = yield Ask(functools.partial(lookup, key))
        if isinstance(finding, Done):
            text, note = how.write(finding.result, self.max_result_bytes)
            row: Row = yield from self.finish(held, Outcome(State.DONE, "lookup", text, note), finding.result)
            return row
        if finding is NOT_DONE:
            held.claim = yield from self._patiently(lambda: self._clear(held))
            return held
        if finding is UNKNOWN and how.provider_idempotent:
            return held
        if finding is UNKNOWN:
            self.counts["in_doubt"] += 1
            raise errors.EffectInDoubt(f"{key} is in doubt, and its lookup cannot tell", hint=_RESOLVE.format(key=key), key=key)
        raise errors.UsageError(
            f"the lookup of {key} returned {type(finding).__name__}",
            hint="return effects.Done(result), effects.NOT_DONE or effects.UNKNOWN",
        )

    def _clear(self, held: Held) -> Claim:
        def change(seen: Seen) -> tuple[Row, Claim]:
            return machine.cleared(seen.row, held.claim)

        return self.backend.transact(held.claim.key, self.life(), change)

    def _give_up(self, key: str, nonce: str) -> None:
        """Let go of a claim, if there is one, before anything was done under it."""
        claim = Claim(key, nonce, 0, None, is_doubtful=False, must_look=False)

        def change(seen: Seen) -> tuple[Row | None, None]:
            if seen.row is None or seen.row.nonce != nonce or seen.row.state is not State.RUNNING:
                return None, None
            # A note tells that an earlier attempt was in doubt.
            right = dataclasses.replace(claim, is_doubtful=bool(seen.row.note))
            return self._settled(seen, right, Outcome(State.NOT_DONE, "step")), None

        try:
            self.backend.transact(key, None, change)
        except (errors.LedgerMissing, errors.LedgerCorrupt, errors.LedgerSchema):
            pass  # it was never one to claim anything in
        except (errors.LedgerError, OSError):
            # Kept, to be let go of when the ledger can be written; nothing is known of an earlier attempt, so it stays doubtful.
            doubtful = dataclasses.replace(claim, is_doubtful=True)
            self.beats.add(Held(doubtful, Outcome(State.NOT_DONE, "step", note="the ledger could not be written")))
            return
        self.beats.remove(Held(claim))

    # -- holding --------------------------------------------------------------------------------------------------------------

    def renew(self, held: Held) -> None:
        """Give a sign of life. Raises `errors.EffectLost`, `errors.StaleLife` or a ledger's error."""
        life = self.life()

        def change(seen: Seen) -> tuple[Row, None]:
            if life:
                self._admit(seen.highest, life)
            holder, boot_s = self.surroundings.process().dump(), self.surroundings.boot_s()
            return machine.renewed(seen.row, held.claim, holder=holder, boot_s=boot_s, now_s=seen.now_s), None

        self.backend.transact(held.claim.key, life, change)

    # -- ending ---------------------------------------------------------------------------------------------------------------

    def raised(self, held: Held, error: BaseException, how: How) -> Flow[Row]:
        """Record that the step raised: not done when the exception proves it, in doubt otherwise."""
        is_not_done = isinstance(error, (errors.EffectNotDone, *how.not_done))
        self.counts["not_done" if is_not_done else "raised"] += 1
        state = State.NOT_DONE if is_not_done else State.IN_DOUBT
        return (yield from self.finish(held, Outcome(state, "step", note=f"raised {type(error).__name__}"), None))

    def returned(self, held: Held, result: Any, how: How) -> Flow[Row]:
        """Record that the step returned `result`. Raises `errors.EffectUnkept` after recording when it cannot be kept."""
        text, note = how.write(result, self.max_result_bytes)
        self.counts["repeated" if held.claim.is_doubtful else "ran"] += 1
        return (yield from self.finish(held, Outcome(State.DONE, "step", text, note), result))

    def finish(self, held: Held, outcome: Outcome, result: Any) -> Flow[Row]:
        """Record how a step ended; `result` travels with the errors, so that the caller loses nothing.

        What cannot be recorded now, for whatever reason, is recorded by the signs of life. What was said first stands, but
        done is stronger than the rest, as in `machine.settled`.
        """
        if held.outcome is None or outcome.state is State.DONE:
            held.outcome = outcome
        outcome = held.outcome
        try:
            row, problem = yield from self._patiently(lambda: self.settle(held, outcome))
        except errors.EffectLost as error:
            self.counts["lost"] += 1
            error.result = result
            self.beats.remove(held)
            raise
        except BaseException as error:
            self.beats.add(held)  # it is no longer there when its life is over
            if not isinstance(error, errors.LedgerError | OSError):
                raise  # the caller is interrupted
            self.counts["unrecorded"] += 1
            raise errors.EffectUnrecorded(
                f"{held.claim.key} ended ({outcome.state.value.replace('_', ' ')}), and the ledger cannot be written: {error}",
                hint="it is recorded as soon as the ledger can be written while this process lives; otherwise it is in doubt",
                key=held.claim.key,
                result=result,
            ) from error
        self.beats.remove(held)
        if problem is not None:
            raise problem
        if row.state is State.DONE and row.result is None:
            self.counts["unkept"] += 1
            raise unkept(row, result)
        return row

    def settle(self, held: Held, outcome: Outcome) -> tuple[Row, Exception | None]:
        """Record `outcome` of what is held in one transaction.

        What happened is recorded whatever life this is. Returns the row, and what the caller must be told after that.
        """
        life, problem = self._life_or_problem()

        def change(seen: Seen) -> tuple[Row, tuple[Row, Exception | None]]:
            row = self._settled(seen, held.claim, outcome)
            return row, (row, problem or self._staleness(seen.highest, life))

        return self.backend.transact(held.claim.key, life, change)

    def _settled(self, seen: Seen, claim: Claim, outcome: Outcome) -> Row:
        holder, boot_s = self.surroundings.process().dump(), self.surroundings.boot_s()
        return machine.settled(seen.row, claim, outcome, holder=holder, boot_s=boot_s, now_s=seen.now_s)

    def _life_or_problem(self) -> tuple[Life | None, Exception | None]:
        try:
            return self.life(), None
        except Exception as error:  # noqa: BLE001  # foreign code may tell the epoch, and what happened is recorded all the same
            return None, error

    def _staleness(self, highest: int | None, life: Life | None) -> errors.StaleLife | None:
        try:
            if life:
                self._admit(highest, life)
        except errors.StaleLife as error:
            return error
        return None

    def _patiently(self, call: Callable[[], Answered]) -> Flow[Answered]:
        """Make one transaction, again and again for `patience_s` while the ledger does not answer."""
        stopwatch = Stopwatch(self.surroundings)
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                answer: Answered = yield Do(call)
            except errors.LedgerUnavailable:
                if stopwatch.elapsed_s() >= self.patience_s:
                    raise
                yield Pause(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            else:
                return answer


_RESOLVE = "find out whether it happened, then: perdure effects resolve {key} --done or --not-done"


def in_doubt(row: Row) -> errors.EffectInDoubt:
    """Return the error for a step that is in doubt and stays so."""
    why = row.note or "its holder is gone"
    return errors.EffectInDoubt(
        f"{row.key} is in doubt: it was begun and never recorded as done ({why})", hint=_RESOLVE.format(key=row.key), key=row.key
    )


def unkept(row: Row, result: Any = None) -> errors.EffectUnkept:
    """Return the error for a step that is done and whose result is not there."""
    return errors.EffectUnkept(
        f"{row.key} is done; its result is not kept: {row.note or 'none was given'}",
        hint=f"return something smaller, such as where the result lies; or: perdure effects resolve {row.key} --done --result JSON",
        key=row.key,
        result=result,
    )
