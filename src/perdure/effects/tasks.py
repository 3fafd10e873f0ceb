"""The asynchronous driver of flows: apart, so that blocking callers need not load asyncio. Called by the ledger's async forms."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from perdure.effects.flow import Ask, Do, Flow, Pause, Result


async def adrive(flow: Flow[Result]) -> Result:
    """Carry out `flow` in the running event loop, with transactions in threads, and return its result."""
    step, argument = flow.send, None
    while True:
        try:
            instruction = step(argument)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # the declared result of the generator
        try:
            argument, step = await _aperform(instruction), flow.send
        except BaseException as error:  # noqa: BLE001  # handed to the flow, which raises it again or knows what to do
            argument, step = error, flow.throw


async def _aperform(instruction: Do | Ask | Pause) -> Any:
    match instruction:
        case Do(call):
            return await _uncancelled(call)
        case Pause(seconds):
            await asyncio.sleep(seconds)
            return None
        case Ask(call):
            answer = call()
            return await answer if inspect.isawaitable(answer) else answer


async def _uncancelled(call: Callable[[], Any]) -> Any:
    """Run `call` in a thread to its end; a cancellation is raised after it, so that no transaction is left unseen."""
    task = asyncio.ensure_future(asyncio.to_thread(call))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and task.exception() is None:
        raise cancelled
    return task.result()
