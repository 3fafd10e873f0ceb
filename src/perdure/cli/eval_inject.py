"""`perdure eval inject`: one fault by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.cli import console, eval_places
from perdure.model.evaluation import FaultKind

_TAKEN_S = 15.0


def inject(
    kind: Annotated[FaultKind, Parameter(help="What to break.")],
    *,
    run: Annotated[str | None, Parameter(help="Run in progress, by its id: the harness does it, and records it.")] = None,
    pid: Annotated[int | None, Parameter(help="Process whose tree is broken: a workload, or its perdure run. Nothing is recorded.")] = None,
    dir_: eval_places.DirOption = Path(),
    common: console.Common = console.Common(),
) -> None:
    """Break a running workload once, by hand, as the plan's faults do.

    For example:

      perdure eval inject kill --run arms-001-managed-3f9a2c
    """
    if (run is None) == (pid is None):
        raise errors.UsageError("say what to break: --run or --pid, one of the two", hint="the folder runs holds the ids")
    if run is not None:
        _ask(dir_, run, kind)
        done = f"the harness of {run} took it"
    else:
        done = _break(pid or 0, kind)
    if common.json:
        console.print_json({"kind": kind, "run": run, "pid": pid, "done": done})
    else:
        console.out().print(console.printable(done))


def _ask(dir_: Path, run: str, kind: FaultKind) -> None:
    from perdure.evaluation import folder as folders
    from perdure.evaluation import requests

    folder = folders.Folder(dir_)
    recorded = {each.id for each in folders.read_runs(folder).runs}
    if run not in folders.raw_ids(folder) or run in recorded:
        raise errors.WorkloadMissing(f"{run} is no run in progress", hint="ls runs lists all; those in runs.jsonl are over")
    requests.ask(folder.raw / run, kind, limit_s=_TAKEN_S)


def _break(pid: int, kind: FaultKind) -> str:
    from perdure.evaluation import faults, local

    def no_node() -> int:
        raise errors.Unsupported("a process by its number runs on no node of its own", hint="name a run: --run")

    found = local.recognise(pid)
    return str(faults.inject(kind, found, node=no_node, disk=None)["way"])
