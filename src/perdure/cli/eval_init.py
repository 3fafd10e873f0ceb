"""`perdure eval init`: begin an evaluation, on paper."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.base import units
from perdure.cli import console, eval_places
from perdure.model.evaluation import FaultKind


def init(
    *command: Annotated[str, Parameter(help="The workload's command, as its owners run it; after the options.")],
    name: Annotated[str | None, Parameter(help="What the evaluation is called. Default: the folder's name.")] = None,
    owner: Annotated[str | None, Parameter(help="Who runs the workload in earnest: a person or a group.")] = None,
    made_for_evaluation: Annotated[bool | None, Parameter(help="Nobody ran it before this evaluation, or somebody did.")] = None,
    gpus: Annotated[int | None, Parameter(help="GPUs that it uses. Default: those of this machine.")] = None,
    progress: Annotated[
        str | None, Parameter(help="Pattern of its progress in what it prints, with the number in brackets: 'step ([0-9]+)'.")
    ] = None,
    node: Annotated[tuple[str, ...], Parameter(negative="", help="Node to run on. Repeatable. Default: this one, without Slurm.")] = (),
    queue: Annotated[str | None, Parameter(help="Partition to run in; with it, runs are Slurm's.")] = None,
    window: Annotated[str | None, Parameter(help="How long the evaluation takes, such as 14d.")] = None,
    repetitions: Annotated[int | None, Parameter(help="Pairs of runs. Default: 5.")] = None,
    seed: Annotated[int | None, Parameter(help="Seed of the faults. Default: drawn now, and written down.")] = None,
    fault: Annotated[tuple[FaultKind, ...], Parameter(negative="", help="Kind of fault. Repeatable.")] = (),
    dir_: eval_places.DirOption = Path(),
    common: console.Common = console.Common(),
) -> None:
    """Write a plan to begin with: evaluation.toml, filled with what is given and with what can be found here.

    What only a person can know stands in it as a comment. An existing plan is never overwritten.

    For example:

      perdure eval init --dir trial --owner "speech group" --progress 'step ([0-9]+)' -- python train.py
    """
    from perdure.evaluation import folder as folders
    from perdure.evaluation import plan as plans
    from perdure.evaluation import template

    _make(dir_)
    folder = folders.Folder(dir_)
    where = "slurm" if queue is not None else "local"
    known = template.Known(
        name=name if name is not None else _name(dir_),
        command=command,
        working_directory=os.getcwd(),
        owner=owner,
        made_for_evaluation=made_for_evaluation,
        gpus=_gpus(gpus),
        pattern=progress,
        where=where,
        nodes=node or _nodes(where),
        queue=queue,
        window_s=None if window is None else units.parse_duration(window, name="--window"),
        repetitions=repetitions,
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
        kinds=tuple(kind.value for kind in fault),
        versions=_versions(command),
    )
    text = template.write(known).encode()
    plans.parse(text, source="the plan")  # what a flag gave may be out of range
    with folders.at_work(folder):
        if os.path.lexists(folder.plan):
            raise errors.UsageError(f"{folder.plan} is there already", hint="edit it, or begin another evaluation with --dir NEW")
        folders.create(folder, folders.PLAN, text)
    if common.json:
        console.print_json({"plan": str(folder.plan), "seed": known.seed})
        return
    console.out().print(console.printable(str(folder.plan)))
    console.note(common, "edit it; perdure eval status says what is missing")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(0o700, exist_ok=True)
    except OSError as error:
        raise errors.OutputError(f"cannot make {folder}: {error.strerror}", hint="make the folder above it first") from error


def _name(folder: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-.")[:128] or "evaluation"


def _gpus(given: int | None) -> int:
    from perdure.evaluation import this_machine

    return this_machine.gpus() if given is None else given


def _nodes(where: str) -> tuple[str, ...]:
    from perdure.evaluation import this_machine

    return (this_machine.hostname(),) if where == "local" else ()


def _versions(command: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return commands that print a version, for what is here."""
    found: dict[str, tuple[str, ...]] = {}
    if command and re.fullmatch(r"python[0-9.]*", os.path.basename(command[0])):
        found["python"] = (command[0], "--version")
    if shutil.which("nvidia-smi"):
        found["driver"] = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return found
