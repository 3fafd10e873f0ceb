"""The timelines of faults as bars with words under them, all on one scale. Called by `page`. Pure.

A bar is cut into what happened between two moments. Its words say the same in figures, so that no colour carries a meaning alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.evaluation import wording
from perdure.evaluation.timeline import Timeline
from perdure.report import theme
from perdure.report.charts import LegendEntry

LENGTH = 1000.0
"""Units of a whole bar; the page stretches it."""

_PARTS: dict[str, tuple[str, str]] = {
    "detection": (theme.SLATE, "nobody knows yet"),
    "scheduling": (theme.AMBER, "found, not yet started again"),
    "start": (theme.BLUE, "start or restore"),
    "warm_up": (theme.PURPLE, "restored, not yet useful"),
    "recomputed": (theme.VERMILLION, "computed again"),
}
SOURCES = {"perdure": "a checkpoint of Perdure's", "own": "a checkpoint of its own", "start": "the start of the job"}


class Segment(msgspec.Struct, frozen=True):
    """A piece of a bar, in units of `LENGTH`."""

    x: float
    width: float
    colour: str
    is_shaded: bool


class Bar(msgspec.Struct, frozen=True):
    """One fault on one side."""

    arm: str
    run: str
    segments: tuple[Segment, ...]
    words: str


class Group(msgspec.Struct, frozen=True):
    """One fault, both sides."""

    title: str
    bars: tuple[Bar, ...]


class Bars(msgspec.Struct, frozen=True):
    """All faults; `whole` says how long a bar over the full width is."""

    groups: tuple[Group, ...]
    whole: str
    legend: tuple[LegendEntry, ...]


def draw(timelines: Sequence[Timeline], unit: str) -> Bars:
    """Return the bars of `timelines`, which are in order; `unit` is what the workload's counter counts, in the singular."""
    whole_s = max((_end(one) for one in timelines), default=0.0) or 1.0
    groups: dict[tuple[int, int], list[Timeline]] = {}
    for one in timelines:
        groups.setdefault((one.pair, one.number), []).append(one)
    return Bars(
        groups=tuple(
            Group(_title(pair, number, members, unit), tuple(_bar(one, whole_s, unit) for one in members))
            for (pair, number), members in groups.items()
        ),
        whole=wording.seconds(whole_s),
        legend=tuple(LegendEntry(words, colour, "block") for colour, words in _PARTS.values()),
    )


def _title(pair: int, number: int, members: Sequence[Timeline], unit: str) -> str:
    faults = " / ".join(dict.fromkeys(one.fault for one in members))
    counters = [wording.counter(one.counter) for one in members if one.counter is not None]
    at = f", at {unit} {' / '.join(dict.fromkeys(counters))}" if counters else ""
    return f"Pair {pair}, fault {number}: {faults}{at}"


def _end(one: Timeline) -> float:
    known = [moment for moment in (one.detected_s, one.restarted_s, one.restored_s, one.useful_s, one.caught_up_s) if moment is not None]
    return max(known) if one.useful_s is not None else max([*known, one.observed_s])


def _bar(one: Timeline, whole_s: float, unit: str) -> Bar:
    segments = []
    for part, begin_s, end_s in _pieces(one):
        x = begin_s / whole_s * LENGTH
        width = max(0.0, end_s - begin_s) / whole_s * LENGTH
        segments.append(Segment(x, width, _PARTS[part][0], part == "recomputed"))
    return Bar(one.arm.value, one.run, tuple(segments), _words(one, unit))


def _pieces(one: Timeline) -> list[tuple[str, float, float]]:
    """Cut the time after a fault at the moments that were seen; a moment that nobody saw leaves its neighbours together."""
    if not one.interrupted:
        return []
    moments = [("detection", one.detected_s), ("scheduling", one.restarted_s)]
    moments += [("start", one.restored_s), ("warm_up", one.useful_s)] if one.restored_s is not None else [("start", one.useful_s)]
    moments.append(("recomputed", one.caught_up_s))
    pieces, begin_s = [], 0.0
    for part, end_s in moments:
        if end_s is not None and end_s >= begin_s:
            pieces.append((part, begin_s, end_s))
            begin_s = end_s
    if one.useful_s is None:
        following = next((part for part, end_s in moments if end_s is None), "start")
        pieces.append((following, begin_s, max(begin_s, one.observed_s)))
    return pieces


def _words(one: Timeline, unit: str) -> str:
    if not one.interrupted:
        return "the fault did not interrupt it"
    said = []
    for words, moment_s in (("found", one.detected_s), ("command given", one.restarted_s), ("restored", one.restored_s)):
        if moment_s is not None:
            said.append(f"{words} after {wording.seconds(moment_s)}")
    if one.useful_s is None:
        return ", ".join((*said, f"did not come back in the {wording.seconds(one.observed_s)} that it was watched"))
    said.append(f"useful after {wording.seconds(one.useful_s)}")
    return f"{', '.join(said)}; {_again(one, unit)}"


def _again(one: Timeline, unit: str) -> str:
    source = f"went on from {SOURCES.get(one.source, one.source)}"
    if one.counter is None:
        return source
    again = max(0.0, one.counter - one.recoverable)
    counted = f"{wording.counter(again)} {unit}{'' if again == 1 else 's'}"
    if one.caught_up_s is None:
        return f"{source}, {counted} to compute again, not done when the run ended"
    return f"{source}, {counted} again in {wording.seconds(one.recomputed_s)}"
