"""What the runs of a cold start say: two clocks beside each other, every run, and restore time against the bytes that were moved.

Called by `report` and by `perdure eval coldstart` at its end. Pure. Restores of the two arms take part in the fit: they were measured too.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from perdure.model.evaluation import Arm, Event, EventKind, Run
from perdure.stats import line
from perdure.stats.line import Line

Side = Literal["native", "restore", "first life"]
Answers = Literal["same", "different", "not asked"]


class ColdRun(msgspec.Struct, frozen=True, kw_only=True):
    """One start: from the command to the same ready state on both sides."""

    run: str
    side: Side
    cache: str
    """``cold``: the page cache was emptied before; ``warm``: the same start was made just before."""
    ready_s: float | None
    """None: it was not ready in time; `excluded` says why."""
    restored_s: float | None
    """Until the engine said that the workload runs; of a restore."""
    logical_bytes: int | None
    """Of the checkpoint: what is brought back."""
    stored_bytes: int | None
    """Of the checkpoint: what lies in the store, compressed."""
    answers: Answers
    """To the same requests as before the checkpoint; of a native start: as before, too."""
    excluded: str | None
    host: str
    memory_bytes: int

    @property
    def is_failed(self) -> bool:
        """It was never ready, or it was to be a restore and does not count as one."""
        return self.ready_s is None or (self.side == "restore" and self.excluded is not None)


class ColdGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All counted starts of one side with one state of the cache."""

    side: Side
    cache: str
    runs: int
    """Starts that count."""
    failed: int
    """Starts that were never ready."""
    excluded: int
    """Starts that were ready and do not count, such as the one that fills the page cache; each says why."""
    median_s: float | None
    fastest_s: float | None
    slowest_s: float | None


class Restore(msgspec.Struct, frozen=True):
    """One restore in the fit: from the command to the engine's word that it runs."""

    run: str
    cache: str
    logical_bytes: int
    restored_s: float


class RestoreFit(msgspec.Struct, frozen=True, kw_only=True):
    """Restore time against bytes, for one state of the cache."""

    cache: str
    restores: int
    line: Line | None
    """Seconds against bytes; None: `why_not`."""
    why_not: str
    formula: str
    """Empty without a line."""


class ColdStart(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of the cold start."""

    runs: tuple[ColdRun, ...]
    groups: tuple[ColdGroup, ...]
    restores: tuple[Restore, ...]
    fits: tuple[RestoreFit, ...]
    asked: int
    """Restores whose answers were compared."""
    same: int
    """Restores that gave the same answers."""


def summarise(runs: Iterable[Run], *, level: float) -> ColdStart:
    """Return what runs say of cold starts and restores. `level` is that of the slope's interval."""
    every = tuple(runs)
    cold = tuple(_cold_run(run) for run in every if run.purpose == "coldstart")
    restores = tuple(each for run in every if run.excluded is None for each in _restores(run))
    compared = [one for one in cold if one.side == "restore" and one.answers != "not asked"]
    return ColdStart(
        runs=cold,
        groups=_groups(cold),
        restores=restores,
        fits=tuple(_fit(cache, restores, level) for cache in sorted({one.cache for one in restores})),
        asked=len(compared),
        same=sum(one.answers == "same" for one in compared),
    )


def _cold_run(run: Run) -> ColdRun:
    begun = _begun(run)
    ended = _first(run.events, EventKind.ENDED)
    data = {} if begun is None else begun.data
    return ColdRun(
        run=run.id,
        side=_side(run, begun),
        cache=str(data.get("cache", "unknown")),
        ready_s=_since(begun, _first(run.events, EventKind.READY)),
        restored_s=_since(begun, _first(run.events, EventKind.RESTORED)),
        logical_bytes=_count(data.get("logical_bytes")),
        stored_bytes=_count(data.get("stored_bytes")),
        answers=_answers(ended),
        excluded=run.excluded if run.excluded is not None or run.finished else "the harness was interrupted in it",
        host=run.environment.host,
        memory_bytes=run.environment.memory_bytes,
    )


def _side(run: Run, begun: Event | None) -> Side:
    if begun is not None and begun.kind is EventKind.RESTARTED:
        return "restore"
    return "first life" if run.arm is Arm.MANAGED else "native"


def _answers(ended: Event | None) -> Answers:
    match None if ended is None else ended.data.get("answers"):
        case "same":
            return "same"
        case "different":
            return "different"
    return "not asked"


def _groups(runs: Sequence[ColdRun]) -> tuple[ColdGroup, ...]:
    keys = dict.fromkeys(sorted((one.cache, one.side) for one in runs))
    return tuple(_group(side, cache, [one for one in runs if (one.cache, one.side) == (cache, side)]) for cache, side in keys)


def _group(side: Side, cache: str, runs: Sequence[ColdRun]) -> ColdGroup:
    counted = [one.ready_s for one in runs if one.excluded is None and one.ready_s is not None]
    failed = sum(one.ready_s is None for one in runs)
    return ColdGroup(
        side=side,
        cache=cache,
        runs=len(counted),
        failed=failed,
        excluded=len(runs) - len(counted) - failed,
        median_s=statistics.median(counted) if counted else None,
        fastest_s=min(counted, default=None),
        slowest_s=max(counted, default=None),
    )


def _restores(run: Run) -> Iterable[Restore]:
    """Every restore whose size is known: the begin's own, or that of the newest checkpoint before it."""
    size: int | None = None
    begun: Event | None = None
    for event in sorted(run.events, key=lambda one: one.at_s):
        match event.kind:
            case EventKind.CHECKPOINT_DONE:
                size = _count(event.data.get("logical_bytes")) or size
            case EventKind.RESTARTED:
                begun = event if event.data.get("how") == "restore" else None
                size = _count(event.data.get("logical_bytes")) or size
            case EventKind.RESTORED if begun is not None and size:
                cache = str(begun.data.get("cache", "as it was, in the arms"))
                yield Restore(run.id, cache, size, event.at_s - begun.at_s)
                begun = None


def _fit(cache: str, restores: Sequence[Restore], level: float) -> RestoreFit:
    chosen = [one for one in restores if one.cache == cache]
    sizes = [float(one.logical_bytes) for one in chosen]
    found = line.fit(sizes, [one.restored_s for one in chosen], level=level)
    why_not = ""
    if len(chosen) < line.FEWEST:
        why_not = f"{len(chosen)} restores: a line needs {line.FEWEST}"
    elif found is None:
        why_not = f"all checkpoints are about as large: a line needs sizes that differ by a factor of {line.SPREAD:g}"
    formula = "" if found is None else f"restore_s = {found.intercept:.4g} + {found.slope * 1e9:.4g} · logical_bytes / 10⁹"
    return RestoreFit(cache=cache, restores=len(chosen), line=found, why_not=why_not, formula=formula)


def _begun(run: Run) -> Event | None:
    return next((event for event in run.events if event.kind in (EventKind.LAUNCHED, EventKind.RESTARTED)), None)


def _first(events: Iterable[Event], kind: EventKind) -> Event | None:
    return next((event for event in events if event.kind is kind), None)


def _since(first: Event | None, last: Event | None) -> float | None:
    return None if first is None or last is None else last.at_s - first.at_s


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
