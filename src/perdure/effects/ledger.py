"""The ledger: the one door for jobs that reach outside. Every form of a call ends in `steps`."""

from __future__ import annotations

import functools
import getpass
import inspect
import os
import secrets
from collections.abc import Awaitable, Callable, Generator
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from perdure import errors
from perdure.effects import address, epoch, keys, machine, shared, watch
from perdure.effects.backend import Seen
from perdure.effects.effect import Block, Effect, inside, refuse_nested
from perdure.effects.epoch import EpochSource, Life
from perdure.effects.flow import Flow, drive, refuse_awaitable
from perdure.effects.how import How, Options, checked, unfit
from perdure.effects.identity import Linux, Surroundings
from perdure.effects.outbox import Outbox
from perdure.effects.rows import Outcome, Row, State
from perdure.effects.steps import Steps

P = ParamSpec("P")
R = TypeVar("R")

LEASE_S = 30.0
"""Longer than most requests take, so that one still on its way when its sender dies has arrived when the lease is over."""
MAX_RESULT_BYTES = 64 * 1024
"""A ledger holds receipts, not data."""


class Ledger:
    """Steps that reach outside, each done once whichever way the job comes back.

    Safe to share between threads, tasks and forked children. ``with Ledger(…) as ledger:`` closes it at the end.
    """

    def __init__(
        self,
        where: str | os.PathLike[str],
        *,
        workload: str | None = None,
        epoch: EpochSource = None,
        lease_s: float = LEASE_S,
        patience_s: float | None = None,
        max_result_bytes: int = MAX_RESULT_BYTES,
        create: bool = True,
        surroundings: Surroundings | None = None,
    ) -> None:
        """Name the ledger; it is opened, and made when it is absent, at its first use.

        Parameters
        ----------
        where
            A file (SQLite: the processes of one host at a time) or ``postgresql://USER@HOST/DATABASE`` (many hosts).
        workload, epoch
            Which life this is: `epoch` is a number, a file that holds it, or a function, read at every use. By default the
            file that ``perdure run`` names in PERDURE_EPOCH_FILE, or Slurm's restart count; otherwise nothing is fenced.
        lease_s
            A holder that gives no sign of life for so long may be replaced. Longer than a request may take to arrive.
        patience_s
            For how long a ledger that does not answer is tried again; by default `lease_s`.
        max_result_bytes
            Bound of a result's text.
        create
            False: an absent ledger is an error.
        surroundings
            Clocks and processes, by default the machine's.

        Raises `errors.UsageError`, `errors.MissingExtra` for a server without psycopg.
        """
        if not 0 < lease_s < 86400 * 365:
            raise errors.UsageError(f"lease_s is {lease_s}", hint="give seconds, more than 0")
        around = surroundings or Linux()
        self._steps = Steps(
            backend=address.open_backend(where, around, create=create),
            surroundings=around,
            life=_epoch_reader(epoch, workload),
            lease_s=lease_s,
            patience_s=lease_s if patience_s is None else patience_s,
            max_result_bytes=max_result_bytes,
        )

    def __repr__(self) -> str:
        return f"Ledger({str(self._steps.backend)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the renewal of what is held, and close connections. A later use opens them again."""
        self._steps.beats.close()
        self._steps.backend.close()

    # -- doing ----------------------------------------------------------------------------------------------------------------

    def once(self, key: str, fn: Callable[[], R], *, connection: Any = None, **options: Unpack[Options]) -> R:
        """Call `fn` unless the step of this key was done before, and return its result as it is read back in every run.

        The intent is durable before `fn` is called, the result before this returns. `options` are those of `How`.

        With `connection`, an open `psycopg.Connection` to the ledger's own database, the ledger's row is part of the caller's
        transaction, with the rows that `fn` writes on it: the caller commits both, or none, and no doubt is possible.

        Raises what `fn` raises, and before it is called
        `errors.EffectInDoubt` when an earlier attempt may have happened and there is no way to tell,
        `errors.EffectChanged` for other inputs, `errors.EffectBusy` when another process is at it for longer than `wait_s`,
        `errors.StaleLife` in a life that is over, `errors.LedgerError` when the ledger cannot be used; after it,
        `errors.EffectUnkept` when the result cannot be kept, `errors.EffectUnrecorded` when the ledger cannot be written,
        `errors.EffectLost` when this process was replaced meanwhile, each with `result`.
        """
        how = checked(options)
        if connection is not None:
            return shared.once(self._steps, connection, self._key(key), fn, how)  # type: ignore[no-any-return]  # as it was read
        effect = drive(self._begin(key, how))
        if effect.needed:
            try:
                with inside(effect):
                    result = refuse_awaitable(fn())
                effect.done(result)
            except BaseException as error:
                drive(effect.ended_badly(error))
                raise
        return effect.result  # type: ignore[no-any-return]  # the result as it is read back

    async def aonce(self, key: str, fn: Callable[[], Awaitable[R] | R], **options: Unpack[Options]) -> R:
        """Do what `once` does in an event loop: awaits what `fn` returns, and makes its transactions in threads.

        A cancellation while `fn` runs leaves the step in doubt: the request may be on its way.
        """
        from perdure.effects.tasks import adrive

        how = checked(options)
        effect = await adrive(self._begin(key, how))
        if effect.needed:
            try:
                with inside(effect):
                    returned = fn()
                    result = await returned if inspect.isawaitable(returned) else returned
                await effect.adone(result)
            except BaseException as error:
                await adrive(effect.ended_badly(error))
                raise
        return effect.result  # type: ignore[no-any-return]  # the result as it is read back

    def effect(self, key: str, **options: Unpack[Options]) -> Block:
        """Return a block: ``with ledger.effect(key) as effect: if effect.needed: effect.done(act())``, also ``async with``.

        An exception in the block, or an end without ``done``, leaves a needed step in doubt. Raises as `once` does.
        """
        how = checked(options)
        return Block(lambda: self._begin(key, how))

    def step(
        self, *, key: str | Callable[..., str] | None = None, name: str | None = None, **options: Unpack[Options]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Return a decorator: each call of the function is a step, done once. For plain and for coroutine functions.

        `key` is a function of the call's arguments, or one key. Without it, the key is derived from `name` (by default
        the function's module and qualified name) and the arguments, which must then have a canonical text.
        The arguments are not compared as inputs unless they make the key.

        Raises `errors.UsageError` when neither is given for a function of a script, or a lambda: all scripts' modules have the same name.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            find_key = _key_finder(function, key, name)
            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def acall(*args: P.args, **kwargs: P.kwargs) -> Any:
                    return await self.aonce(find_key(*args, **kwargs), functools.partial(function, *args, **kwargs), **options)

                return acall  # type: ignore[return-value]  # a coroutine function for a coroutine function

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                return self.once(find_key(*args, **kwargs), functools.partial(function, *args, **kwargs), **options)

            return call

        return decorate

    def _begin(self, key: str, how: How) -> Flow[Effect]:
        refuse_nested(self._steps, self._key(key))
        got = yield from self._steps.acquire(key, how)
        return Effect(key, how, self._steps, got)

    @staticmethod
    def _key(key: str) -> str:
        return keys.check_key(key)

    # -- lives ----------------------------------------------------------------------------------------------------------------

    @property
    def life(self) -> Life | None:
        """This life, read now from where it is kept; None: not fenced."""
        return self._steps.life()

    @property
    def token(self) -> int | None:
        """The epoch of this life, read now: a fencing token for systems that refuse a smaller one. None: not fenced."""
        life = self.life
        return life.epoch if life else None

    # -- looking, and deciding as a person --------------------------------------------------------------------------------

    @property
    def outbox(self) -> Outbox:
        """Messages that leave with the caller's own transaction, at least once; PostgreSQL only."""
        return Outbox(self._steps.backend, self._steps.max_result_bytes)

    def look(self, key: str) -> tuple[Row, State] | None:
        """Return what is recorded of a step, and its state as a person should see it; None for an unknown key."""
        row, now_s = self._steps.backend.read(self._key(key))
        return (row, machine.appearance(row, watch.from_stamps(row, self._steps.surroundings, now_s))) if row else None

    def rows(self, *states: State) -> Generator[tuple[Row, State]]:
        """Yield rows with their state as a person should see it: a silent holder's step is in doubt. Ordered by key.

        With `states`, only those.
        """
        now_s = self._steps.backend.now_s()
        wanted = states or tuple(State)
        for row in self._steps.backend.rows(done=State.DONE in wanted):
            seen = machine.appearance(row, watch.from_stamps(row, self._steps.surroundings, now_s))
            if seen in wanted:
                yield row, seen

    def resolve(self, key: str, *, done: bool, result: str | None = None, person: str | None = None) -> Row:
        """Record what a person found out about a step in doubt. `result` is the encoded result of a step that was done.

        Returns the row. Raises `errors.InputMissing` for an unknown key, `errors.EffectBusy` while its holder lives,
        and `errors.UsageError` when there is nothing to resolve.
        """
        if result is not None and (not done or unfit(result, self._steps.max_result_bytes)):
            raise errors.UsageError(f"not a result for {key}", hint=f"give one with done, of at most {self._steps.max_result_bytes} bytes")
        note = "resolved without a result" if done and result is None else ""
        outcome = Outcome(State.DONE if done else State.NOT_DONE, f"person:{person or getpass.getuser()}", result, note)

        def change(seen: Seen) -> tuple[Row, Row]:
            if seen.row is None:
                raise errors.InputMissing(f"there is no step {key}", hint="perdure effects ls lists them")
            sight = watch.from_stamps(seen.row, self._steps.surroundings, seen.now_s)
            row = machine.resolved(seen.row, outcome, sight, nonce=secrets.token_hex(16), now_s=seen.now_s)
            return row, row

        return self._steps.backend.transact(self._key(key), None, change)

    def prune(self, older_than_s: float, *, dry_run: bool = False) -> int:
        """Delete steps that were settled, and messages that were sent, longer ago than `older_than_s`: their keys can be used again.

        Returns how many. What is running, in doubt or waiting is never deleted.
        """
        if not older_than_s >= 0:
            raise errors.UsageError(f"older_than_s is {older_than_s}", hint="give seconds, 0 or more")
        return self._steps.backend.prune(self._steps.backend.now_s() - older_than_s, dry_run=dry_run)

    def counts(self) -> dict[str, int]:
        """Count the ledger's steps by recorded state."""
        found = self._steps.backend.count()
        return {str(state): found.get(state, 0) for state in State}

    def metrics(self) -> dict[str, int]:
        """Return what this process did since the ledger was opened; `metrics.NAMES` says what each counts."""
        return dict(self._steps.counts)


def _epoch_reader(source: EpochSource, workload: str | None) -> Callable[[], Life | None]:
    return epoch.reader(source, workload)


def _name_of(function: Callable[..., Any]) -> str:
    """Return a name that no other function has, and that this one has in every process. Raises `errors.UsageError`."""
    own = function.__qualname__
    if function.__module__ in ("__main__", "__mp_main__") or function.__name__ == "<lambda>":
        what = "lambdas" if function.__name__ == "<lambda>" else "a script's functions"
        raise errors.UsageError(
            f"the step {own} needs name= or key=: {what} have no name of their own",
            hint="give one that stays: @ledger.step(name='mail-report')",
        )
    return f"{function.__module__}.{own}".replace("<", "").replace(">", "")


def _key_finder(function: Callable[..., Any], key: str | Callable[..., str] | None, name: str | None) -> Callable[..., str]:
    if callable(key):
        return key
    if key is not None:
        return lambda *_args, **_kwargs: key
    signature = inspect.signature(function)
    label = name or _name_of(function)

    def derive(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return keys.derive_key(label, dict(bound.arguments))

    return derive
