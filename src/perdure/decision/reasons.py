"""Why: the cases of a verdict, each with its sentence, and what would settle an open one. Called by `verdict`."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from perdure.decision.figures import Figures
from perdure.decision.words import duration, durations, share


class Case(enum.IntEnum):
    """What decided. `verdict` says which verdict each leads to. Numbers, since each is looked up a hundred thousand times."""

    OWN_FAILURE = enum.auto()
    LIMIT_TOO_SHORT = enum.auto()
    NEVER_UP = enum.auto()
    OVER_LIMIT = enum.auto()
    NO_ROOM = enum.auto()
    STRADDLES = enum.auto()
    RETRY_NEVER_ENDS = enum.auto()
    SMALL_GAIN = enum.auto()
    GAIN = enum.auto()
    NO_GAIN = enum.auto()


class Row(msgspec.Struct, frozen=True, gc=False):
    """One job's figures as plain numbers; fields as in `figures.Figures` and `completion.Terms`, and those in words that most jobs need."""

    work: float
    mttf: float
    checkpoint: float
    restore: float
    fresh: float
    downtime: float
    durable: float
    limit: float
    mttf_low: float
    mttf_high: float
    deadline: float
    own_failure: float
    retry: float
    resume: float
    chunks: float
    gain: float
    gain_low: float
    gain_high: float
    retry_meets: float
    resume_meets: float
    over_limit: bool
    no_room: bool
    break_even_work: float
    break_even_checkpoint: float
    break_even_mttf: float
    destroyed: float
    work_text: str
    retry_text: str
    resume_text: str
    every_text: str
    """W/K."""
    even_text: str
    destroyed_text: str


_NUMBERS = [name for name in Row.__struct_fields__ if not name.endswith("_text")]


def rows(found: Figures) -> Iterator[Row]:
    """Yield one plain row a job from the figures' arrays."""
    terms = found.terms
    columns = [getattr(terms, name) if hasattr(terms, name) else getattr(found, name) for name in _NUMBERS]
    spoken = (terms.work, found.retry, found.resume, terms.work / found.chunks, found.break_even_mttf, found.destroyed)
    return map(Row, *(np.asarray(column).tolist() for column in columns), *map(durations, spoken))


def sentence(case: Case, row: Row) -> str:
    """Return the one sentence that a person can act on."""
    return _SENTENCES[case](row)


def _gain(row: Row) -> str:
    return (
        f"Interrupted once in {duration(row.mttf)}, {row.work_text} of work takes {row.retry_text} on average when it is"
        f" run again, {row.resume_text} with a checkpoint every {row.every_text}."
    )


def _over_limit(row: Row) -> str:
    return (
        f"The work ({row.work_text}) is longer than one attempt may run ({duration(row.limit)}): running it again never ends,"
        f" resuming takes {row.resume_text} on average."
    )


def _no_room(row: Row) -> str:
    return (
        f"The deadline ({duration(row.deadline)}) has no room for a second run of {row.work_text}: retrying meets it in"
        f" {share(row.retry_meets)} of cases, resuming every {row.every_text} in {share(row.resume_meets)}."
    )


def _straddles(row: Row) -> str:
    return (
        f"The time between interruptions is known only as {_between(row)}: at its lower end resuming saves"
        f" {_saving(row.gain_low)}, at its upper end it saves nothing."
    )


def _retry_never_ends(row: Row) -> str:
    return (
        f"Interrupted once in {duration(row.mttf)}, {row.work_text} of work in one go never ends; with a checkpoint every"
        f" {row.every_text} it takes {row.resume_text} on average."
    )


def _small_gain(row: Row) -> str:
    return f"Resuming would save {duration(row.gain)} of {row.retry_text}, less than two runs of one job differ by: take the simpler way."


def _own_failure(row: Row) -> str:
    return f"{share(row.own_failure)} of its GPU-hours ended by its own failure: fix that first, neither policy helps against it."


def _limit_too_short(row: Row) -> str:
    return (
        f"One attempt may run {duration(row.limit)}: too short for the work ({row.work_text}) and too short to restore"
        f" ({duration(row.restore)}), get on and checkpoint ({duration(row.checkpoint)}). Raise the limit first."
    )


def _never_up(row: Row) -> str:
    return (
        f"Interrupted once in {duration(row.mttf)}, it does not get through a restart and one piece of work under either policy:"
        " find what interrupts it first."
    )


def _no_gain(row: Row) -> str:
    if math.isinf(row.mttf):
        return "No interruption is to be expected: checkpoints would only cost time."
    lost = row.retry - row.work
    if not row.work < row.break_even_work < math.inf:  # which is of first order
        return f"Interruptions cost {duration(lost)} a run on average, and checkpoints would win back less than they cost."
    return (
        f"Interruptions cost {duration(lost)} a run of {row.work_text} on average, less than checkpoints would; those pay beyond"
        f" about {duration(row.break_even_work)} of work."
    )


def settling(case: Case, row: Row, *, extrapolated: bool) -> str | None:
    """Return the measurement that would settle an EITHER, None for other verdicts."""
    if case is Case.SMALL_GAIN:
        return (
            f"the checkpoint's real cost: {duration(row.checkpoint)} is assumed, and up to {duration(row.break_even_checkpoint)} resuming"
            " still gains; nothing is lost by leaving it open"
        )
    if case is not Case.STRADDLES:
        return None
    if extrapolated:
        return f"runs of this size: the time between interruptions ({_between(row)}) is extrapolated from other sizes"
    # To first order C_max is proportional to 1/M: the factor by which M misses the break-even is the one by which C would.
    nearest = min(row.mttf_high / row.break_even_mttf, row.break_even_mttf / row.mttf_low) if row.break_even_mttf > 0 else math.inf
    if nearest <= _COST_GUESS and row.checkpoint > 0:
        cheap = row.checkpoint * row.break_even_mttf / row.mttf_high
        dear = row.checkpoint * row.break_even_mttf / row.mttf_low
        bounds = [f"below {duration(cheap)} resume"] if cheap > 0 else []
        return (
            f"the checkpoint's real cost ({duration(row.checkpoint)} is assumed): {', '.join([*bounds, f'above {duration(dear)} retry'])}"
        )
    return (
        f"a longer history: the break-even is one interruption in {row.even_text}, inside the interval ({_between(row)})"
        if row.break_even_mttf > 0
        else "a longer history: the interval of the time between interruptions is too wide"
    )


_COST_GUESS = 3.0
"""A checkpoint's cost that nobody measured may be wrong by this factor; within it, measuring that is the quicker way to settle."""


def _between(row: Row) -> str:
    if math.isinf(row.mttf_high):
        return f"at least {duration(row.mttf_low)}"
    return f"{duration(row.mttf_low)} to {duration(row.mttf_high)}"


def _saving(minutes: float) -> str:
    return duration(minutes) + " a run" if minutes < math.inf else "a run that otherwise never ends"


_SENTENCES: dict[Case, Callable[[Row], str]] = {
    Case.OWN_FAILURE: _own_failure,
    Case.LIMIT_TOO_SHORT: _limit_too_short,
    Case.NEVER_UP: _never_up,
    Case.OVER_LIMIT: _over_limit,
    Case.NO_ROOM: _no_room,
    Case.STRADDLES: _straddles,
    Case.RETRY_NEVER_ENDS: _retry_never_ends,
    Case.SMALL_GAIN: _small_gain,
    Case.GAIN: _gain,
    Case.NO_GAIN: _no_gain,
}
