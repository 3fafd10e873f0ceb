"""What a plan still lacks before it can be locked: four things, each there and concrete. Called by lock, amend, status and their commands.

The four: the workload that its owners run; what it does today, measured on the same nodes; the number that each measure must reach, with
the reason; the way out. Beside them stands what makes the evaluation repeatable: where, when, how often, which faults.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

import msgspec

from perdure.evaluation import placeholders, slurm_strike, this_machine
from perdure.evaluation.plan import Plan
from perdure.model.evaluation import MeasureKind, Threshold

Part = Literal["workload", "baseline", "success", "exit", "schedule"]
FOUR = (MeasureKind.RECOVERY_TIME, MeasureKind.WORK_LOST, MeasureKind.UTILISATION, MeasureKind.OVERHEAD)


class Lack(msgspec.Struct, frozen=True):
    """One thing that is missing or not concrete."""

    part: Part
    key: str
    what: str
    remedy: str


def check(plan: Plan) -> tuple[Lack, ...]:
    """Return what the plan lacks, in its order; the measured baseline is `baseline.lacks`'s. Commands are looked for on this machine."""
    return (*_workload(plan), *_success(plan), *_way_out(plan), *_schedule(plan))


def _workload(plan: Plan) -> Iterator[Lack]:
    work = plan.workload
    yield from _command("workload", "workload.command", work.command, work.working_directory, "write the command as its owners run it")
    if work.setup:
        yield from _command("workload", "workload.setup", work.setup, work.working_directory, "")
    place = work.working_directory
    if place is None or not os.path.isabs(place):
        yield Lack("workload", "workload.working_directory", "it is not an absolute path", "write where the command runs")
    elif not this_machine.has_folder(place):
        yield Lack("workload", "workload.working_directory", f"{place} is not a folder here", "name the folder that the command runs in")
    yield from _who("workload", "workload.owner", work.owner, "name who runs it in earnest")
    if work.made_for_evaluation is None:
        yield Lack(
            "workload",
            "workload.made_for_evaluation",
            "it is not declared",
            "write false when its owners ran it before, true when it was made for this",
        )
    if work.progress is None:
        yield Lack("workload", "workload.progress", "there is no progress signal", "say where the workload's own counter is read")
    elif work.progress.target is not None and any(counter >= work.progress.target for counter in plan.faults.at_progress):
        yield Lack("schedule", "faults.at_progress", "a fault would come after the target", "inject it before workload.progress.target")
    if work.own_checkpoint is None:
        yield Lack(
            "workload", "workload.own_checkpoint", "it is not said what survives today", 'write kind = "none" if the workload saves nothing'
        )


def _success(plan: Plan) -> Iterator[Lack]:
    for kind in FOUR:
        key = f"success.{kind.value}"
        threshold = plan.success.of(kind)
        if threshold is None:
            yield Lack("success", key, "there is no number", "write what must be reached, and the reason")
            continue
        yield from _threshold(kind, key, threshold)
        yield from reason(threshold.reason, part="success", key=f"{key}.reason")


def _threshold(kind: MeasureKind, key: str, threshold: Threshold) -> Iterator[Lack]:
    given = {name for name in ("at_most", "ratio_at_most", "at_least", "gain_at_least") if getattr(threshold, name) is not None}
    meant = {
        MeasureKind.UTILISATION: {"at_least", "gain_at_least"},
        # A ratio already: the unmanaged side has none to divide by.
        MeasureKind.OVERHEAD: {"at_most"},
    }.get(kind, {"at_most", "ratio_at_most"})
    if not given & meant:
        yield Lack("success", key, "there is no number", f"give {' or '.join(sorted(meant))}")
    for name in sorted(given - meant):
        yield Lack("success", f"{key}.{name}", f"it says nothing about {kind.value}", f"give {' or '.join(sorted(meant))}")
    for name in sorted(given & meant):
        number = float(getattr(threshold, name))
        low, high = {"at_least": (0.0, 1.0), "gain_at_least": (-1.0, 1.0)}.get(name, (0.0, float("inf")))
        if not low < number < high and not (number == 0.0 and kind is MeasureKind.OVERHEAD):
            yield Lack("success", f"{key}.{name}", f"{number:g} can never be missed or never be reached", f"between {low:g} and {high:g}")


def _way_out(plan: Plan) -> Iterator[Lack]:
    if not plan.way_out.commands:
        yield Lack("exit", "exit.commands", "there are none", "write the commands that remove Perdure, each as a list")
    for index, command in enumerate(plan.way_out.commands):
        yield from _command("exit", f"exit.commands[{index}]", command, plan.workload.working_directory, "")
    if plan.way_out.test:
        yield from _command("exit", "exit.test", plan.way_out.test, plan.workload.working_directory, "")
    yield from _who("exit", "exit.who", plan.way_out.who, "name who runs them")


def _schedule(plan: Plan) -> Iterator[Lack]:
    site, faults = plan.site, plan.faults
    if not site.nodes:
        yield Lack("schedule", "site.nodes", "there are none", f'name the nodes, such as ["{this_machine.hostname()}"]')
    elif site.where == "local" and site.nodes != (this_machine.hostname(),):
        here = this_machine.hostname()
        yield Lack("schedule", "site.nodes", f"runs are local, and this node is {here}", f'write nodes = ["{here}"], or where = "slurm"')
    elif len(set(site.nodes)) < plan.workload.nodes:
        yield Lack("schedule", "site.nodes", f"the workload uses {plan.workload.nodes} nodes", "name as many, or correct workload.nodes")
    for index, node in enumerate(site.nodes):
        yield from _prose("schedule", f"site.nodes[{index}]", node)
    if site.where == "slurm":
        yield from _on_slurm(plan)
    if site.queue:
        yield from _prose("schedule", "site.queue", site.queue)
    window = site.window
    if window is None or (window.duration_s is None and (window.start is None or window.end is None)):
        yield Lack("schedule", "site.window", "it has no end", "give duration_s, or start and end")
    if faults.seed is None:
        yield Lack("schedule", "faults.seed", "it is not there", "write any whole number")
    if not faults.kinds:
        yield Lack("schedule", "faults.kinds", "there are none: nothing would be interrupted", 'write such as kinds = ["kill"]')
    if not faults.at_progress and faults.rate_per_hour is None:
        yield Lack("schedule", "faults", "it is not said when faults come", "give at_progress or rate_per_hour")
    for name, command in plan.versions.items():
        yield from _command("schedule", f"versions.{name}", command, plan.workload.working_directory, "")


def _on_slurm(plan: Plan) -> Iterator[Lack]:
    if not plan.site.queue:
        yield Lack("schedule", "site.queue", "it is not there", "name the partition")
    for key, lack, remedy in slurm_strike.lacks(plan):
        yield Lack("schedule", key, lack, remedy)


def reason(text: str, *, part: Part, key: str) -> Iterator[Lack]:
    """Yield what a reason lacks."""
    if placeholders.is_short(text):
        yield Lack(part, key, "it is too short to be a reason", "say what makes this the number, such as who loses what beyond it")
    yield from _prose(part, key, text)


def _prose(part: Part, key: str, text: str) -> Iterator[Lack]:
    found = placeholders.in_prose(text)
    if found is not None:
        yield Lack(part, key, f"{found!r} holds a place", "write what is meant")


def _who(part: Part, key: str, text: str | None, remedy: str) -> Iterator[Lack]:
    if text is None or placeholders.is_nobody(text):
        yield Lack(part, key, "it names nobody", remedy)
    else:
        yield from _prose(part, key, text)


def _command(part: Part, key: str, argv: tuple[str, ...], working_directory: str | None, remedy: str) -> Iterator[Lack]:
    if not argv:
        yield Lack(part, key, "it is not there", remedy or "write the command as a list")
        return
    for argument in argv:
        if placeholders.is_argument(argument):
            yield Lack(part, key, f"{argument!r} holds a place", "write what is meant")
            return
    if not this_machine.has_command(argv[0], working_directory):
        yield Lack(part, key, f"{argv[0]!r} cannot be run here", "install it, correct its name, or write its whole path")
