"""The life of one step as a machine without I/O: a row and an event in, a decision or the next row out.

Called by the ledger inside the backends' transactions. The states of a row::

    state      what is known                                     leaves by
    ────────   ───────────────────────────────────────────────   ─────────────────────────────────────────────────────
    (no row)   it did not happen                                 claim → running
    running    a holder said that it begins; it may have         recorded → done · refused before acting → not_done ·
               happened, whoever looks                           raised → in_doubt · silent for a lease: as in_doubt
    in_doubt   it may have happened, and nobody is at it         claim (to look, or to repeat it where the other side
                                                                 deduplicates) → running · a person → done | not_done
    not_done   it is known not to have happened                  claim → running
    done       it happened; the result, or why there is none     (end; pruned after the retention)

A holder is known by its nonce, which nobody else can have. Every write compares it first, so that a holder that was replaced
cannot record anything. A row that is claimed out of doubt stays doubtful: should this attempt refuse before acting, the
earlier one may still have happened.
"""

from __future__ import annotations

import dataclasses

from perdure import errors
from perdure.effects.rows import Caller, Claim, Decision, Doubt, Outcome, Replay, Row, Sight, State, Take, Wait


def decide(row: Row | None, caller: Caller, sight: Sight) -> Decision:
    """Say what a caller that arrives at `row` does.

    Raises `errors.EffectChanged` when the key was used with other inputs.
    """
    if row is None:
        return _take(None, caller, is_doubtful=False)
    if row.nonce == caller.nonce and row.state is State.RUNNING:
        # The claim was committed and the answer lost: it is ours.
        return Take(_claim_of(row, is_doubtful=row.note != "", must_look=caller.can_look and row.note != ""))
    if row.inputs is not None and caller.inputs is not None and row.inputs != caller.inputs:
        raise errors.EffectChanged(
            f"the key {row.key} was used before with other inputs", hint="use another key for another step, or the same inputs", key=row.key
        )
    match row.state:
        case State.DONE:
            return Replay(row)
        case State.NOT_DONE:
            return _take(row, caller, is_doubtful=False)
        case State.RUNNING if sight.alive:
            return Wait(caller.lease_s)
    return _decide_doubt(row, caller, sight)


def _decide_doubt(row: Row, caller: Caller, sight: Sight) -> Decision:
    lease_s = max(row.lease_s, caller.lease_s)
    # A request may still be on its way when its sender is gone: a look too early would miss it.
    must_be_quiet = row.state is State.RUNNING or caller.can_look
    if must_be_quiet and sight.quiet_s < lease_s:
        return Wait(lease_s - sight.quiet_s)
    if caller.can_look or caller.provider_idempotent:
        return _take(row, caller, is_doubtful=True)
    return Doubt(row)


def _take(row: Row | None, caller: Caller, *, is_doubtful: bool) -> Take:
    attempt = row.attempt + 1 if row else 1
    key = row.key if row else ""
    return Take(Claim(key, caller.nonce, attempt, caller.epoch, is_doubtful, caller.can_look and is_doubtful))


def _claim_of(row: Row, *, is_doubtful: bool, must_look: bool) -> Claim:
    return Claim(row.key, row.nonce, row.attempt, row.epoch, is_doubtful, must_look)


def claimed(key: str, row: Row | None, caller: Caller, claim: Claim, *, boot_s: float, now_s: float) -> Row:
    """Return the row of a step that `caller` has just claimed. `now_s`: seconds since 1970 by the ledger's clock."""
    return Row(
        key=key,
        state=State.RUNNING,
        inputs=row.inputs if row and row.inputs is not None else caller.inputs,
        result=None,
        note=(row.note or "the holder fell silent") if row and claim.is_doubtful else "",
        attempt=claim.attempt,
        nonce=caller.nonce,
        workload=caller.workload,
        epoch=caller.epoch,
        holder=caller.holder,
        lease_s=caller.lease_s,
        beat=row.beat + 1 if row else 1,
        beat_boot_s=boot_s,
        beat_at_s=now_s,
        begun_at_s=row.begun_at_s if row else now_s,
        changed_at_s=now_s,
        settled_by="",
    )


def settled(row: Row | None, claim: Claim, outcome: Outcome, *, holder: str, boot_s: float, now_s: float) -> Row:
    """Return the row after the holder of `claim` said how its attempt ended.

    An attempt that refused before acting leaves the step in doubt when an earlier one may have happened. What was
    recorded before under the same claim stands (the answer was lost, not the record), but done is stronger than not done: a
    process that was rolled back into the step may end it otherwise than it did the first time.

    Raises `errors.EffectLost` when somebody else holds or settled the step.
    """
    if row is None or row.nonce != claim.nonce:
        raise _lost(claim)
    if row.state is State.DONE or (row.state is not State.RUNNING and outcome.state is not State.DONE):
        return row
    state = State.IN_DOUBT if outcome.state is State.NOT_DONE and claim.is_doubtful else outcome.state
    note = outcome.note or (row.note if state is State.IN_DOUBT else "")
    return dataclasses.replace(
        row,
        state=state,
        result=outcome.result,
        note=note,
        settled_by=outcome.settled_by if state in (State.DONE, State.NOT_DONE) else "",
        holder=holder,
        beat=row.beat + 1,
        beat_boot_s=boot_s,
        beat_at_s=now_s,
        changed_at_s=now_s,
    )


def renewed(row: Row | None, claim: Claim, *, holder: str, boot_s: float, now_s: float) -> Row:
    """Return the row after a sign of life. Raises `errors.EffectLost` when somebody else holds or settled the step."""
    if row is None or row.nonce != claim.nonce or row.state is not State.RUNNING:
        raise _lost(claim)
    return dataclasses.replace(row, holder=holder, beat=row.beat + 1, beat_boot_s=boot_s, beat_at_s=now_s)


def cleared(row: Row | None, claim: Claim) -> tuple[Row, Claim]:
    """Return row and claim after a lookup said that no earlier attempt happened. Raises `errors.EffectLost`."""
    if row is None or row.nonce != claim.nonce or row.state is not State.RUNNING:
        raise _lost(claim)
    return dataclasses.replace(row, note=""), dataclasses.replace(claim, is_doubtful=False, must_look=False)


def resolved(row: Row, outcome: Outcome, sight: Sight, *, nonce: str, now_s: float) -> Row:
    """Return the row after a person said what happened. `nonce` is a fresh one: it shuts a late holder out.

    A step that is done with its result, or done and said not to be, is left to `prune`.

    Raises `errors.EffectBusy` while its holder lives, and `errors.UsageError` when there is nothing to resolve.
    """
    if row.state is State.RUNNING and (sight.alive or sight.quiet_s < row.lease_s):
        raise errors.EffectBusy(f"{row.key} is being done now", hint="wait until its holder has ended and its lease is over", key=row.key)
    if row.state is State.DONE and (row.result is not None or outcome.state is not State.DONE):
        raise errors.UsageError(
            f"{row.key} is recorded as done: there is nothing to resolve", hint="perdure effects show tells what is recorded"
        )
    return dataclasses.replace(
        row, state=outcome.state, result=outcome.result, note=outcome.note, settled_by=outcome.settled_by, nonce=nonce, changed_at_s=now_s
    )


def appearance(row: Row, sight: Sight) -> State:
    """Return the state as a person should see it: a holder that is gone, or silent for its lease, leaves its step in doubt."""
    if row.state is State.RUNNING and (sight.alive is False or (not sight.alive and sight.quiet_s >= row.lease_s)):
        return State.IN_DOUBT
    return row.state


def admit(highest: int | None, workload: str, epoch: int) -> None:
    """Refuse a life that is not the newest of its workload. Raises `errors.StaleLife`."""
    if highest is not None and epoch < highest:
        raise errors.StaleLife(
            f"life {epoch} of {workload} is over: life {highest} has begun", hint="end this process: the newer life goes on with the work"
        )


def _lost(claim: Claim) -> errors.EffectLost:
    return errors.EffectLost(
        f"attempt {claim.attempt} of {claim.key} was replaced: its late result is refused",
        hint="call again for what is recorded; raise lease_s if this process was only slow",
        key=claim.key,
    )
