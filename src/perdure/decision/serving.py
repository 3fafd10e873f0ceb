"""A serving worker: what rebuilding it costs, and whether to restore it or to start it fresh. Called by `decide --serving`.

A serving worker has no work to redo: what it answered stays answered. An interruption costs the time until it serves again:

- fresh: F = load + N·(T + k·t)/p, the start-up (weights) plus every live session's context through prefill, where N sessions hold
  T context tokens each, grow by t tokens in each of k turns, and the worker prefills p tokens a second;
- restored: R plus the prefill of what was said since the checkpoint. When a session takes a turn every s, g = N·t/(p·s) minutes of
  prefill are added a minute; over an interval a that is g·a/2 on average, and never more than the prefill P of all live contexts.

Serving for a horizon H takes H·(1 + D/M)·e^{F/M} minutes when started fresh (the renewal argument of `stats.completion` for work
of which nothing is destroyed) and H·(1 + C/a)·(1 + D/M)·e^{(R + catch-up)/M} when restored. The interval is the better of
a = √(2CM/g), Young's for destruction at the rate g, and a = H: one checkpoint of the loaded worker, which saves the load alone.
"""

from __future__ import annotations

import math

import msgspec

from perdure import errors
from perdure.decision.words import amount, duration
from perdure.model.advice import BreakEven, Costs, FourInputs, InputPoint, Interval, PolicyOutcome, Size, Verdict, VerdictKind

SERVING_INDIFFERENCE = 0.1
"""A tenth of what fresh starts lose: load times differ by that much from one start to the next. Not a part of the horizon, as for
work that is redone: a worker that serves 99.9 % of the time is judged by the rest."""

_SHORTEST_MINUTES = 1.0 / 60.0
"""Free checkpoints would be taken without end; a second between them is as good."""

_MOST_EXPONENT = 100.0  # as completion.NEVER_EXPONENT: beyond it nothing ends


class Sessions(msgspec.Struct, frozen=True):
    """What a serving worker holds when it is interrupted."""

    count: float
    """N: live sessions, 0 or more."""
    context_tokens: float
    """T: context tokens of a session before its turns, 0 or more."""
    prefill_tokens_per_s: float
    """p: tokens that the worker prefills a second, all sessions together, > 0."""
    load_minutes: float
    """Start-up: process, weights, graph capture, warm-up."""
    turns: float = 0.0
    """k: turns that each session has taken."""
    tokens_per_turn: float = 0.0
    """t: tokens that a turn adds to a session's context."""
    turn_every_minutes: float | None = None
    """s: time between two turns of a session; None: not known, contexts taken as not growing between checkpoints."""


class Rebuild(msgspec.Struct, frozen=True):
    """What starting a serving worker fresh costs."""

    load_minutes: float
    prefill_minutes: float
    """Every live session's context through prefill."""
    rebuild_minutes: float
    """F = load + prefill."""
    context_tokens: float
    """All sessions' tokens."""
    minutes_per_turn: float
    """What each further turn of all sessions adds to F."""
    growth_per_minute: float
    """g: minutes of prefill that a minute of serving adds; 0 where turns are not timed."""


def rebuild(sessions: Sessions) -> Rebuild:
    """Return what rebuilding a worker costs now and how it grows. Raises `errors.QuantityError` for a figure out of its range."""
    for name in ("count", "context_tokens", "load_minutes", "turns", "tokens_per_turn"):
        _check(name, getattr(sessions, name), above=None)
    _check("prefill_tokens_per_s", sessions.prefill_tokens_per_s, above=0.0)
    if sessions.turn_every_minutes is not None:
        _check("turn_every_minutes", sessions.turn_every_minutes, above=0.0)
    per_minute = sessions.prefill_tokens_per_s * 60.0
    tokens = sessions.count * (sessions.context_tokens + sessions.turns * sessions.tokens_per_turn)
    per_turn = sessions.count * sessions.tokens_per_turn / per_minute
    growth = per_turn / sessions.turn_every_minutes if sessions.turn_every_minutes else 0.0
    prefill = tokens / per_minute
    return Rebuild(sessions.load_minutes, prefill, sessions.load_minutes + prefill, tokens, per_turn, growth)


class ServingQuestion(msgspec.Struct, frozen=True):
    """One serving worker to decide about; minutes."""

    sessions: Sessions
    mttf_minutes: float
    """M > 0: mean time to interruption of a worker of this size."""
    horizon_minutes: float
    """H > 0: how long it is to serve, until it is replaced on purpose."""
    mttf_interval: Interval | None = None
    size: Size = Size(1)
    costs: Costs = Costs()
    """`fresh_cost_minutes` is not used: the sessions say what a fresh start costs."""


def decide_serving(question: ServingQuestion) -> Verdict:
    """Return the verdict for a serving worker: RETRY starts it fresh, RESUME restores it from a checkpoint.

    The rules are those of `verdict`, with a margin of its own, `SERVING_INDIFFERENCE`; there is no deadline, no wall-time limit and
    no work to redo.
    Raises `errors.QuantityError` for a figure out of its range.
    """
    _check("mttf_minutes", question.mttf_minutes, above=0.0, finite=False)
    _check("horizon_minutes", question.horizon_minutes, above=0.0)
    cost = rebuild(question.sessions)
    fresh, restored, interval = _outcomes(question, cost, question.mttf_minutes)
    margin = SERVING_INDIFFERENCE * (fresh - question.horizon_minutes) if fresh < math.inf else 0.0
    gain = _gain(fresh, restored)
    ends = question.mttf_interval or Interval(question.mttf_minutes, question.mttf_minutes)
    gains = [_gain(*_outcomes(question, cost, max(mttf, 1e-9))[:2]) for mttf in (ends.low, ends.high)]
    if math.isinf(fresh) and math.isinf(restored):
        kind = VerdictKind.NEITHER
    elif max(gains) > margin and min(gains) <= 0:
        kind = VerdictKind.EITHER
    elif gain > margin:
        kind = VerdictKind.RESUME
    else:
        kind = VerdictKind.EITHER if gain > 0 else VerdictKind.RETRY
    chunks = max(2, math.ceil(question.horizon_minutes / interval))  # never without one checkpoint
    return Verdict(
        kind,
        _reason(kind, question, cost, interval, gain),
        PolicyOutcome(_finite(fresh), math.isinf(fresh), 1, None, None),
        PolicyOutcome(_finite(restored), math.isinf(restored), chunks, interval if interval < question.horizon_minutes else None, None),
        BreakEven(None, _dearest_checkpoint(question, cost), None),
        _inputs(question, cost, interval),
        _warnings(question, cost),
        _settling(kind, ends),
    )


def _outcomes(question: ServingQuestion, cost: Rebuild, mttf: float) -> tuple[float, float, float]:
    """Return the minutes to serve the horizon started fresh and restored, and the interval between checkpoints."""
    costs, horizon = question.costs, question.horizon_minutes
    fresh = _serving(horizon, mttf, costs.downtime_minutes, cost.rebuild_minutes)
    intervals = [horizon]
    if cost.growth_per_minute > 0 and math.isfinite(mttf):
        young = math.sqrt(2.0 * costs.checkpoint_cost_minutes * mttf / cost.growth_per_minute)
        intervals.append(min(max(young, costs.checkpoint_cost_minutes, _SHORTEST_MINUTES), horizon))
    outcomes = []
    for interval in intervals:
        restart = costs.restore_cost_minutes + _catching_up(cost, interval)
        taken = 1.0 + costs.checkpoint_cost_minutes / interval
        outcomes.append((taken * _serving(horizon, mttf, costs.downtime_minutes, restart), interval))
    restored, interval = min(outcomes)
    return fresh, restored, interval


def _catching_up(cost: Rebuild, interval: float) -> float:
    """Mean of min(g·x, P) over the age x of a checkpoint, even from 0 to `interval`."""
    grown = cost.growth_per_minute * interval
    if grown <= cost.prefill_minutes:
        return grown / 2.0
    return cost.prefill_minutes - cost.prefill_minutes**2 / (2.0 * grown)


def _serving(horizon: float, mttf: float, downtime: float, restart: float) -> float:
    if restart / mttf > _MOST_EXPONENT:
        return math.inf
    return horizon * (1.0 + downtime / mttf) * math.exp(restart / mttf)


def _gain(fresh: float, restored: float) -> float:
    return 0.0 if math.isinf(restored) else fresh - restored


def _dearest_checkpoint(question: ServingQuestion, cost: Rebuild) -> float | None:
    """C_max to first order: one checkpoint in the horizon, C = H·(F − R − catch-up)/M, or many, √(2Cg/M) = (F − R)/M."""
    won = cost.rebuild_minutes - question.costs.restore_cost_minutes
    if won <= 0 or math.isinf(question.mttf_minutes):
        return None
    horizon = question.horizon_minutes
    dearest = horizon * (won - _catching_up(cost, horizon)) / question.mttf_minutes
    if cost.growth_per_minute > 0:
        dearest = max(dearest, won * won / (2.0 * cost.growth_per_minute * question.mttf_minutes))
    return dearest if dearest > 0 else None


def _reason(kind: VerdictKind, question: ServingQuestion, cost: Rebuild, interval: float, gain: float) -> str:
    fresh, restore = duration(cost.rebuild_minutes), duration(question.costs.restore_cost_minutes)
    if kind is VerdictKind.NEITHER:
        return f"A fresh start takes {fresh} and a restore {restore}, far longer than it stays up: find what interrupts it first."
    parts = f"{duration(cost.load_minutes)} to load, {duration(cost.prefill_minutes)} to prefill {amount(cost.context_tokens)} tokens"
    beginning = f"A fresh start takes {fresh} ({parts}), a restore {restore}"
    if kind is VerdictKind.EITHER:
        return f"{beginning}; at this rate of interruptions the difference is small or not sure."
    if kind is VerdictKind.RETRY:
        return f"{beginning}; checkpoints would cost more than restoring wins back."
    often = "once it is loaded" if interval >= question.horizon_minutes else f"every {duration(interval)}"
    saved = f" saves {duration(gain)} in {duration(question.horizon_minutes)} of serving" if gain < math.inf else " is the only way"
    return f"{beginning}; a checkpoint {often}{saved}."


def _inputs(question: ServingQuestion, cost: Rebuild, interval: float) -> FourInputs:
    count = question.horizon_minutes / question.mttf_minutes
    mttf = "no interruption was seen" if count == 0 else f"one interruption in {duration(question.mttf_minutes)}"
    restore = question.costs.restore_cost_minutes
    won = cost.rebuild_minutes - restore
    pays = count * won > question.costs.checkpoint_cost_minutes
    stale = _catching_up(cost, interval)
    return FourInputs(
        InputPoint(
            "resume" if pays else "retry",
            count,
            "interruptions per run",
            f"{mttf}, {amount(count)} in {duration(question.horizon_minutes)} of serving",
        ),
        InputPoint(
            "either",
            stale,
            "minutes",
            f"answers stay answered; restored sessions have {duration(stale)} of prefill to catch up on",
        ),
        InputPoint(
            "resume" if won > 0 else "either" if won == 0 else "retry",
            cost.rebuild_minutes,
            "minutes",
            f"starting fresh takes {duration(cost.rebuild_minutes)}, each turn adds {duration(cost.minutes_per_turn)};"
            f" restoring takes {duration(restore)}",
        ),
        InputPoint("either", None, "minutes", "a serving worker has no deadline"),
    )


def _warnings(question: ServingQuestion, cost: Rebuild) -> tuple[str, ...]:
    warnings = []
    if question.sessions.tokens_per_turn > 0 and cost.growth_per_minute == 0:
        warnings.append("How often a session takes a turn is not given: contexts are taken as not growing between checkpoints.")
    if question.costs.idempotent is False:
        warnings.append("Running it twice is not safe: a restored session repeats what it did since its checkpoint. Guard those effects.")
    return tuple(warnings)


def _settling(kind: VerdictKind, ends: Interval) -> str | None:
    if kind is not VerdictKind.EITHER:
        return None
    if ends.low < ends.high:
        return f"a longer history: one interruption in {duration(ends.low)} to {duration(ends.high)} is too wide"
    return "the restore's and the checkpoint's real cost"


def _finite(minutes: float) -> float | None:
    return minutes if minutes < math.inf else None


def _check(name: str, value: float, *, above: float | None, finite: bool = True) -> None:
    bad = not value > above if above is not None else not value >= 0
    if bad or (finite and math.isinf(value)):
        raise errors.QuantityError(
            f"{name}: {value:g} is out of range", hint=f"it must be {'above 0' if above is not None else '0 or more'}"
        )
