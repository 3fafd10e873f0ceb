"""A step inside the caller's own database transaction: its row and the caller's are committed together. Called by `ledger`."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from perdure import errors
from perdure.effects import gate, postgres
from perdure.effects.beats import Held
from perdure.effects.effect import Effect, inside, refuse_nested
from perdure.effects.flow import refuse_awaitable
from perdure.effects.how import How
from perdure.effects.rows import Doubt, Outcome, Replay, Row, State, Take
from perdure.effects.steps import Steps, in_doubt, unkept
from perdure.effects.watch import Watch


def once(steps: Steps, connection: Any, key: str, fn: Callable[[], Any], how: How) -> Any:
    """Do a step in a transaction on `connection` (a savepoint, where one is open already) and return its result.

    When `fn` raises, what it wrote and the row go away together: there is no doubt. A result that cannot be kept undoes the step
    too. Others with the same key wait for the end of the transaction. Raises as `Ledger.once` says; `errors.EffectBusy` at
    once when a step that was begun without a transaction is at it, since its holder could not record anything while this
    transaction waits.
    """
    if not isinstance(steps.backend, postgres.Postgres):
        raise errors.Unsupported(
            "only a ledger on PostgreSQL shares a transaction", hint="use Ledger('postgresql://…'), or once without connection="
        )
    if how.lookup or how.provider_idempotent:
        raise errors.UsageError(
            "lookup= and provider_idempotent= are for steps that leave the transaction", hint="leave them out, or leave out connection="
        )
    refuse_nested(steps, key)
    steps.backend.prepare()
    # All rules are those of any other step, on the caller's connection and without signs of life.
    here = dataclasses.replace(steps, backend=postgres.Borrowed(steps.backend, connection), patience_s=0.0)
    nonce = secrets.token_hex(16)
    # Within from its claim, see `Steps.arrive`, until the transaction, or the savepoint, has ended.
    with _within_until_its_end(nonce), postgres.shared(connection, how.wait_s):
        decision = here.arrive(key, nonce, how, Watch(), is_polling=False)
        match decision:
            case Take(claim):
                return _do(here, Held(claim), fn, how)
            case Replay(row):
                steps.counts["replayed"] += 1
                return _read(row, how)
            case Doubt(row):
                steps.counts["in_doubt"] += 1
                raise in_doubt(row)
        steps.counts["busy"] += 1
        raise errors.EffectBusy(f"{key} is being done outside a transaction", hint="roll back and try again", key=key)


@contextlib.contextmanager
def _within_until_its_end(nonce: str) -> Iterator[None]:
    try:
        yield
    finally:
        gate.leave(nonce)


def _do(here: Steps, held: Held, fn: Callable[[], Any], how: How) -> Any:
    with inside(Effect(held.claim.key, how, here, held)):
        result = refuse_awaitable(fn())
    text, note = how.write(result, here.max_result_bytes)
    row, problem = here.settle(held, Outcome(State.DONE, "step", text, note))
    if problem is not None:
        raise problem  # rolls back: a life that is over does nothing
    here.counts["ran"] += 1
    return _read(row, how, result)


def _read(row: Row, how: How, result: Any = None) -> Any:
    if row.result is None:
        raise unkept(row, result)
    return how.read(row.result)
