"""The handle of one step while it is being done: its key for the outside, its token, and the form for ``with`` blocks."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from perdure import errors
from perdure.effects.beats import Held
from perdure.effects.flow import Flow, drive
from perdure.effects.how import How
from perdure.effects.rows import Outcome, Row, State
from perdure.effects.steps import Steps, unkept

_active: contextvars.ContextVar[tuple[Effect, ...]] = contextvars.ContextVar("perdure_effects", default=())


class Effect:
    """One step that was begun: what it may tell the other side, and whether it may still act."""

    def __init__(self, key: str, how: How, steps: Steps, got: Held | Row) -> None:
        self._key = key
        self._how = how
        self._steps = steps
        self._held = got if isinstance(got, Held) else None
        self._row = got if isinstance(got, Row) else None

    @property
    def key(self) -> str:
        """The step's key: send it along, so that the other side can deduplicate."""
        return self._key

    @property
    def needed(self) -> bool:
        """Whether the step is still to be done."""
        return self._row is None

    @property
    def attempt(self) -> int:
        """Counts the holders of this key from 1; 0 for a step that needs none."""
        return self._held.claim.attempt if self._held else 0

    @property
    def token(self) -> int | None:
        """The epoch of the life that began the step: a fencing token for systems that refuse a smaller one. None: not fenced."""
        return self._held.claim.epoch if self._held else None

    @property
    def result(self) -> Any:
        """The recorded result, as it is read back in every later run.

        Raises `errors.UsageError` before there is one, and `errors.EffectUnkept` when it was not kept.
        """
        if self._row is None or self._row.state is not State.DONE:
            raise errors.UsageError(f"{self._key} has no result yet", hint="call done(result) when the step is done")
        if self._row.result is None:
            raise unkept(self._row)
        return self._how.read(self._row.result)

    def check(self) -> None:
        """Make sure, at the ledger, that this process still holds the step. Call it right before a long step acts.

        Raises `errors.StaleLife`, `errors.EffectLost`, or a ledger's error.
        """
        self._steps.renew(self._holding())

    def done(self, result: Any = None) -> Any:
        """Record that the step happened, and return `result` as it is read back. Raises as `Ledger.once` does."""
        self._row = drive(self._returned(result))
        return self.result

    async def adone(self, result: Any = None) -> Any:
        """Do what `done` does, without blocking the event loop."""
        from perdure.effects.tasks import adrive

        self._row = await adrive(self._returned(result))
        return self.result

    def not_done(self) -> None:
        """Record that nothing reached the outside: the step may run again."""
        self._row = drive(self._steps.finish(self._holding(), Outcome(State.NOT_DONE, "step"), None))

    def _returned(self, result: Any) -> Flow[Row]:
        return self._steps.returned(self._holding(), result, self._how)

    def _holding(self) -> Held:
        if self._held is None or self._row is not None:
            raise errors.UsageError(f"{self._key} is not being done here", hint="ask effect.needed first, and end a step once")
        return self._held

    def ended_badly(self, error: BaseException | None) -> Flow[Row | None]:
        """Record what an exception tells (None: the block ended and nobody said done); a step that was ended stays as it is.

        So does one whose end could not be recorded yet: it is known, and the signs of life record it.
        """
        if self._row is not None or self._held is None or self._held.outcome is not None:
            return None
        fault = error or errors.UsageError(
            f"the block of {self._key} ended without done(): it is in doubt", hint="call effect.done(result) or effect.not_done() in it"
        )
        try:
            self._row = yield from self._steps.raised(self._held, fault, self._how)
        except errors.PerdureError as problem:
            fault.add_note(f"perdure: {problem}")
        if error is None:
            raise fault
        return self._row


@contextlib.contextmanager
def inside(effect: Effect) -> Iterator[Effect]:
    """Make `effect` the current one of the calling context."""
    token = _active.set((*_active.get(), effect))
    try:
        yield effect
    finally:
        _active.reset(token)


def current() -> Effect:
    """Return the step that is being done by the calling thread or task.

    Raises `errors.UsageError` outside of one.
    """
    active = _active.get()
    if not active:
        raise errors.UsageError("no step is being done here", hint="call it inside ledger.once, or inside the block of ledger.effect")
    return active[-1]


def refuse_nested(steps: Steps, key: str) -> None:
    """Refuse a step inside itself, which would wait for its own end. Raises `errors.UsageError`."""
    if any(effect.key == key and effect._steps is steps and effect.needed for effect in _active.get()):  # a friend
        raise errors.UsageError(f"{key} is begun inside itself", hint="give the inner step a key of its own")


class Block:
    """What `Ledger.effect` returns: ``with`` or ``async with`` begins the step and gives its `Effect`."""

    def __init__(self, begin: Callable[[], Flow[Effect]]) -> None:
        self._begin = begin
        self._open: list[tuple[Effect, contextlib.AbstractContextManager[Effect]]] = []

    def __enter__(self) -> Effect:
        return self._entered(drive(self._begin()))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        drive(self._left().ended_badly(error))

    async def __aenter__(self) -> Effect:
        from perdure.effects.tasks import adrive

        return self._entered(await adrive(self._begin()))

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        from perdure.effects.tasks import adrive

        await adrive(self._left().ended_badly(error))

    def _entered(self, effect: Effect) -> Effect:
        context = inside(effect)
        self._open.append((effect, context))
        return context.__enter__()

    def _left(self) -> Effect:
        effect, context = self._open.pop()
        context.__exit__(None, None, None)
        return effect
