"""The schedule of faults as it was realised, and whether it is one that the plan draws. Called by `report` and `doubts`. Pure.

A Poisson process that is watched to the end of a run strikes evenly within it, whatever its rate: given their number, its points are
uniform. So the places of all faults, as shares of their run's whole work, are held against the uniform distribution. Gaps would not do: the
end of a run cuts long ones off. The runs of a pair meet the same faults; a pair counts once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from perdure.evaluation import schedule
from perdure.evaluation.course import Course
from perdure.model.evaluation import EventKind

DOUBTFUL = 0.001
"""A schedule that is drawn as the plan says is called doubtful once in a thousand evaluations."""


class Realised(msgspec.Struct, frozen=True, kw_only=True):
    """What was planned, and what struck, over all runs that count."""

    planned: int
    struck: int
    kinds: dict[str, int]
    """How often each kind struck."""
    pairs: int
    places: tuple[float, ...] = ()
    """Where the faults that were drawn at a rate struck, as shares of their run's work; one run a pair."""
    distance: float | None = None
    """Largest distance between their distribution function and the uniform one, 0 to 1; None: nothing was drawn at a rate."""
    probability: float | None = None
    """Of one at least as large if they are drawn as the plan says."""

    def describe(self) -> str:
        """Say it in a sentence."""
        kinds = ", ".join(f"{number} × {kind}" for kind, number in sorted(self.kinds.items()))
        said = f"{self.struck} of {self.planned} planned faults struck" + (f": {kinds}" if kinds else "")
        if self.probability is None or self.distance is None:
            return f"{said}; the plan names their places"
        return (
            f"{said}; where they struck, in {self.pairs} pairs, differs from an even chance by D = {self.distance:.3f} "
            f"(Kolmogorov and Smirnov, p = {self.probability:.3f}, {len(self.places)} places)"
        )


def read(courses: Sequence[Course]) -> Realised:
    """Return the realised schedule of the runs that count."""
    planned = [
        event for course in courses for event in course.events if event.kind is EventKind.FAULT_PLANNED and "failed" not in event.data
    ]
    struck = [each for course in courses for each in course.interruptions if not each.fault.data.get("by_hand")]
    first: dict[int, Course] = {}
    for course in courses:
        if course.completed:
            first.setdefault(course.run.pair, course)
    places = tuple(place for course in first.values() for place in _places(course))
    distance, probability = schedule.evenness(places) if places else (None, None)
    return Realised(
        planned=len(planned),
        struck=len(struck),
        kinds=dict(Counter("unnamed" if each.kind is None else each.kind.value for each in struck)),
        pairs=len(first),
        places=places,
        distance=distance,
        probability=probability,
    )


def _places(course: Course) -> list[float]:
    """Return where the faults struck that were drawn at a rate; a fault that stands at no counter says nothing."""
    drawn = {event.value for event in course.events if event.kind is EventKind.FAULT_PLANNED and "drawn_s" in event.data}
    whole = course.reached
    found = []
    for each in course.interruptions:
        counter = course.counter_at(each.fault.at_s)
        if each.fault.value in drawn and counter is not None and whole > 0 and math.isfinite(counter):
            found.append(min(counter / whole, 1.0))
    return found
