"""Utilisation over the whole window: all allocated hours of an arm, and what became of them. Called by `report`. Pure.

The measure is a median over pairs; this is the sum, as a bill has it. How busy the device was stands beside it: a device that computes
again what was lost is busy, and delivers nothing. Under a scheduler the hours of both arms are those of its accounting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from perdure.evaluation import course as courses
from perdure.evaluation import utilisation
from perdure.evaluation.course import Course
from perdure.evaluation.stretches import number
from perdure.evaluation.utilisation import Hours
from perdure.model.evaluation import Arm, EventKind, Run

Source = Literal["the harness's clock", "the scheduler's accounting", "both, in different runs"]


class ArmHours(msgspec.Struct, frozen=True, kw_only=True):
    """One arm over the window. Hours are of `unit`; all but `allocated` add up to it."""

    arm: Arm
    unit: Literal["GPU-hours", "node-hours"]
    runs: int
    """Runs that the hours are of."""
    unmeasured: int
    """Counted runs whose hours cannot be told."""
    source: Source
    allocated: float
    delivered: float
    recomputed: float
    checkpoints: float
    down: float
    other: float
    device: float | None
    """Share of the allocated time in which the device was busy, 0 to 1; None: no run tells."""
    device_runs: int
    """Runs that tell of the device."""
    why_no_device: str
    """Why `device` is None, else empty."""

    @property
    def share(self) -> float | None:
        """Delivered of allocated, 0 to 1."""
        return self.delivered / self.allocated if self.allocated > 0 else None


def summarise(runs: Sequence[Run]) -> tuple[ArmHours, ...]:
    """Return both arms, unmanaged first, of the runs that count; an arm without any is left out."""
    read = [courses.read(run) for run in runs if courses.counts(run)]
    sides = ([course for course in read if course.run.arm is arm] for arm in Arm)
    return tuple(_sum(side) for side in sides if side)


def _sum(side: Sequence[Course]) -> ArmHours:
    split = [(course, spent) for course in side if isinstance(spent := utilisation.split(course), Hours)]
    unit = side[0].unit
    alike = [(course, spent) for course, spent in split if course.unit == unit]
    total = {name: sum(getattr(spent, name) * course.size for course, spent in alike) / 3600 for name in Hours.__struct_fields__}
    busy = [
        (device, spent.allocated_s * course.size)
        for course, spent in alike
        if (device := number(course.ended, "device_utilisation")) is not None
    ]
    weight_s = sum(weight for _, weight in busy)
    return ArmHours(
        arm=side[0].run.arm,
        unit=unit,
        runs=len(alike),
        unmeasured=len(side) - len(alike),
        source=_source(side),
        device=sum(device * weight for device, weight in busy) / weight_s if weight_s > 0 else None,
        device_runs=len(busy),
        why_no_device="" if busy else _why_no_device(side),
        **{name.removesuffix("_s"): value for name, value in total.items()},
    )


def _source(side: Sequence[Course]) -> Source:
    accounted = {course.ended is not None and "accounting" in course.ended.data for course in side}
    if accounted == {True}:
        return "the scheduler's accounting"
    return "the harness's clock" if accounted == {False} else "both, in different runs"


def _why_no_device(side: Sequence[Course]) -> str:
    told = next((event.data.get("device_lack") for course in side for event in course.events if event.kind is EventKind.ENDED), None)
    if isinstance(told, str) and told:
        return told
    return "the workload uses no GPU" if all(course.run.gpus == 0 for course in side) else "nothing told of the device"
