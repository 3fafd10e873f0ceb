"""What the commands that make runs share: how they are stopped, and what they say meanwhile."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from perdure import errors
from perdure.base import units
from perdure.cli import console

if TYPE_CHECKING:
    from perdure.evaluation.harness import Step
    from perdure.evaluation.runs import Glimpse
    from perdure.evaluation.standing import Standing


@contextlib.contextmanager
def stoppable() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set: runs in progress are then ended, and recorded as cut short."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def shown(common: console.Common) -> Iterator[Callable[[tuple[Glimpse, ...]], None]]:
    """Yield a function that shows how far runs are, on a terminal, unless --quiet."""
    err = console.err()
    if common.quiet or not err.is_terminal:
        yield lambda _glimpses: None
        return
    with err.status("") as display:

        def show(glimpses: tuple[Glimpse, ...]) -> None:
            parts = (
                f"{each.run_id}: {'starting' if each.counter is None else f'{each.counter:g}'}, {each.faults} faults" for each in glimpses
            )
            display.update("; ".join(parts))

        yield show


def teller(common: console.Common) -> Callable[[Step], None]:
    """Return a function that tells of a run when it has ended."""

    def tell(step: Step) -> None:
        run = step.run
        faults = sum(event.kind.value == "fault-injected" for event in run.events)
        took_s = run.events[-1].at_s - run.events[0].at_s if run.events else 0.0
        ended = next((event.data for event in reversed(run.events) if event.kind.value == "ended"), {})
        how = ", cut short" if not run.finished else "" if ended.get("completed") else ", not completed"
        console.note(common, f"{step.done} of {step.wanted}: {run.id}: {seconds(took_s)}, {faults} faults{how}")

    return tell


def refuse_locked(found: Standing) -> None:
    """Raise `errors.UsageError` when the plan is locked: its baseline stays."""
    if found.is_locked:
        raise errors.UsageError("the plan is locked: its baseline was measured before", hint="perdure eval run makes the runs of both arms")


def seconds(duration_s: float | None) -> str:
    """Return a duration for people, or that it is not known."""
    return "not known" if duration_s is None else units.format_duration(duration_s)
