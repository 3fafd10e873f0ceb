"""The four inputs: where each, looked at alone, points, with its figure and a sentence. Called by `verdict`.

- interruption: is it interrupted more often than the rate at which checkpoints break even for this work?
- destroyed: does one interruption destroy more work than a checkpoint and the dearer restart cost?
- rebuild: is a restore cheaper than a fresh start?
- schedule: does the limit hold the work, and the deadline a second run?

They may disagree: work that is rarely interrupted but long points to retry by the first and to resume by the second. The
verdict weighs them by expected completion.
"""

from __future__ import annotations

import math
from typing import Literal

from perdure.decision.reasons import Row
from perdure.decision.words import amount, duration
from perdure.model.advice import FourInputs, InputPoint, Size

Direction = Literal["retry", "resume", "either"]

_NO_SCHEDULE = InputPoint("either", None, "minutes", "there is no deadline, and no limit that the work would meet")


class _Known(dict[float, str]):
    """Quantities that repeat over many jobs, in words: rates, limits and costs are few."""

    def __missing__(self, minutes: float) -> str:
        text = self[minutes] = duration(minutes)
        return text


class Teller:
    """Tell the four inputs of many jobs; costs repeat, and what was said of them is said again."""

    def __init__(self) -> None:
        self._rebuild: dict[tuple[float, float], InputPoint] = {}
        self._known = _Known()

    def four_inputs(self, row: Row, size: Size) -> FourInputs:
        """Return the four inputs of one job."""
        costs = (row.restore, row.fresh)
        rebuild = self._rebuild.get(costs)
        if rebuild is None:
            rebuild = self._rebuild[costs] = _rebuild(*costs)
        return FourInputs(_interruption(row, self._known), _destroyed(row, size, self._known), rebuild, _schedule(row, self._known))


def _interruption(row: Row, known: _Known) -> InputPoint:
    even = row.break_even_mttf
    # The break-even is of first order: for work that is interrupted many times a run, the exact gain knows better.
    pays = row.mttf < even or (row.gain > 0 and not row.over_limit)
    points: Direction = "either" if row.mttf_low < even < row.mttf_high else "resume" if pays else "retry"
    if math.isinf(row.mttf):
        seen = "no interruption was seen"
    else:
        seen = f"one interruption in {known[row.mttf]} of running, {amount(row.work / row.mttf)} a run"
    if not even > 0:
        turn = "checkpoints pay at this rate" if pays else "checkpoints pay at no rate"
    elif math.isinf(even):
        turn = "free checkpoints pay at any rate"
    else:
        turn = f"checkpoints pay from about one in {row.even_text}"
    return InputPoint(points, row.work / row.mttf, "interruptions per run", f"{seen}; {turn}")


def _destroyed(row: Row, size: Size, known: _Known) -> InputPoint:
    price = row.checkpoint + max(row.restore - row.fresh, 0.0)
    points: Direction = "resume" if row.destroyed > price else "retry"
    hours = f"{amount(row.destroyed / 60.0 * size.count)} {'GPU' if size.unit == 'gpu' else 'node'}-hours"
    reason = f"an interruption destroys {row.destroyed_text} of work ({hours}); a checkpoint"
    if row.restore > row.fresh:
        reason += " and the dearer restart"
    return InputPoint(points, row.destroyed, "minutes", f"{reason} cost {known[price]}")


def _rebuild(restore: float, fresh: float) -> InputPoint:
    points: Direction = "either" if restore == fresh else "resume" if restore < fresh else "retry"
    return InputPoint(points, fresh, "minutes", f"starting fresh takes {duration(fresh)}, restoring {duration(restore)}")


def _schedule(row: Row, known: _Known) -> InputPoint:
    if row.over_limit:
        return InputPoint(
            "resume", row.limit - row.work, "minutes", f"one attempt may run {duration(row.limit)}, the work takes {row.work_text}"
        )
    if not math.isnan(row.deadline):
        return _deadline(row)
    if math.isinf(row.limit):
        return _NO_SCHEDULE
    if row.work > row.limit:
        return InputPoint(
            "either",
            row.limit - row.work,
            "minutes",
            f"one attempt may run {duration(row.limit)}, the work takes {row.work_text} and goes on from its own state",
        )
    return InputPoint("either", row.limit - row.work, "minutes", f"the work fits its limit of {known[row.limit]}; there is no deadline")


def _deadline(row: Row) -> InputPoint:
    slack = row.deadline - row.work
    if slack < 0:
        return InputPoint(
            "either", slack, "minutes", f"the deadline ({duration(row.deadline)}) is over before the work ({row.work_text}) can be"
        )
    if row.no_room:
        return InputPoint("resume", slack, "minutes", f"the deadline leaves {duration(slack)}: no room for a second run")
    if slack >= row.work * (1.0 - row.durable) + row.downtime + row.fresh:
        return InputPoint("retry", slack, "minutes", f"the deadline leaves {duration(slack)}: room for a second run")
    return InputPoint(
        "either",
        slack,
        "minutes",
        f"the deadline leaves {duration(slack)}: no room for a second run, but resuming would not make it noticeably likelier to be met",
    )
