"""The steps of a call as instructions, carried out by a blocking driver (here) or an asynchronous one (`tasks`).

A flow is a generator. It yields what is to be done and is sent the result, or thrown the exception.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from perdure import errors

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, slots=True)
class Do:
    """Call a function of ours that blocks for a short while: a transaction. Never given up half-way."""

    call: Callable[[], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """Call a function of the user's; it may be asynchronous where the caller is."""

    call: Callable[[], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


Flow = Generator[Do | Ask | Pause, Any, Result]


def drive(flow: Flow[Result]) -> Result:
    """Carry out `flow` on the calling thread and return its result."""
    step, argument = flow.send, None
    while True:
        try:
            instruction = step(argument)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # the declared result of the generator
        try:
            argument, step = _perform(instruction), flow.send
        except BaseException as error:  # noqa: BLE001  # handed to the flow, which raises it again or knows what to do
            argument, step = error, flow.throw


def _perform(instruction: Do | Ask | Pause) -> Any:
    match instruction:
        case Do(call):
            return call()
        case Pause(seconds):
            time.sleep(seconds)
            return None
        case Ask(call):
            return refuse_awaitable(call())


def refuse_awaitable(answer: Any) -> Any:
    """Return `answer`. Raises `errors.UsageError` for one that nobody would await."""
    if not inspect.isawaitable(answer):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()  # it never began
    raise errors.UsageError("a blocking call was given an asynchronous function", hint="use aonce, or `async with`")
