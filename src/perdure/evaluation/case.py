"""An evaluation as its own witness: plan, lock, runs and measures, arranged for those who look for mistakes in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from perdure.evaluation import course as courses
from perdure.evaluation.course import Course
from perdure.evaluation.paper import Change
from perdure.evaluation.plan import Plan
from perdure.evaluation.standing import Standing
from perdure.model.evaluation import Arm, MeasureResult, Mistake, Run

_OWN_PLACE = re.compile(r"\\\{[a-z_]+\\\}")
"""As `re.escape` writes it."""
_SHOWN = 3
"""So many findings of one kind are written out; the rest is counted."""

_TREATMENT = ("arms", "faults", "workload", "site.slurm", "site.where")
"""What of a plan is done to the runs."""
_OF_COLD_STARTS = ("workload.ready", "workload.requests")
"""What asks for more when it is added, and is measured by a command of its own."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to judge."""

    standing: Standing
    measures: tuple[MeasureResult, ...]
    courses: tuple[Course, ...]
    """The counted runs of both arms, in the order in which they began."""

    @property
    def plan(self) -> Plan:
        """The plan as its file says now."""
        return self.standing.plan

    @property
    def recorded(self) -> tuple[Run, ...]:
        """Every run of the two arms, counted or not."""
        return tuple(run for run in self.standing.log.runs if run.purpose == "arms")

    @property
    def cut(self) -> tuple[Run, ...]:
        """The runs of the two arms that were broken off."""
        return tuple(run for run in self.recorded if not run.finished)

    def side(self, arm: Arm) -> tuple[Course, ...]:
        """Return the counted runs of one arm."""
        return tuple(course for course in self.courses if course.run.arm is arm)

    def pairs(self) -> tuple[tuple[Course, Course], ...]:
        """Return unmanaged and managed run of each pair that has both."""
        sides = {arm: {course.run.pair: course for course in self.side(arm)} for arm in Arm}
        both = sides[Arm.UNMANAGED].keys() & sides[Arm.MANAGED].keys()
        return tuple((sides[Arm.UNMANAGED][number], sides[Arm.MANAGED][number]) for number in sorted(both))


def gather(standing: Standing, measures: Sequence[MeasureResult]) -> Case:
    """Arrange an evaluation whose measures are computed."""
    counted = sorted((run for run in standing.log.runs if courses.counts(run)), key=lambda run: run.begun_unix_s)
    return Case(standing=standing, measures=tuple(measures), courses=tuple(courses.read(run) for run in counted))


def is_within(key: str, tables: Sequence[str]) -> bool:
    """Tell whether a key of the plan is one of `tables`, or lies in one of them."""
    return any(key == table or key.startswith(f"{table}.") for table in tables)


def changes_treatment(change: Change) -> bool:
    """Tell whether runs before and after a change of the plan were treated differently."""
    is_added = change.old is msgspec.UNSET and is_within(change.key, _OF_COLD_STARTS)
    return is_within(change.key, _TREATMENT) and not is_added


def around(command: tuple[str, ...], core: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return what stands before `core` at the end of `command`, None when it does not end with it.

    A word of the plan may hold a name in braces: it stands for a place of each run's own.
    """
    before, behind = command[: len(command) - len(core)], command[len(command) - len(core) :]
    if len(command) < len(core) or not all(_is_word(one, other) for one, other in zip(behind, core, strict=True)):
        return None
    return before


def _is_word(word: str, planned: str) -> bool:
    return word == planned or bool(re.fullmatch(_OWN_PLACE.sub(".*", re.escape(planned)), word, re.DOTALL))


def verdict(code: str, title: str, problems: Sequence[str], clear: str) -> Mistake:
    """Return a mistake, flagged with its problems, or clear with what speaks for that."""
    shown = [*dict.fromkeys(problems)]
    rest = [f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
    return Mistake(code, bool(shown), title, "; ".join([*shown[:_SHOWN], *rest]) or clear)


def count(number: int, word: str) -> str:
    """Return a number with its word: ``1 run``, ``2 runs``."""
    return f"{number} {word if number == 1 else word + 's'}"
