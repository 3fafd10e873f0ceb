"""`perdure eval run`: the two arms, side by side or in turn, both broken the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.cli import console, eval_places, eval_running


def run(
    *,
    pairs: Annotated[int | None, Parameter(help="Make at most so many pairs now. Default: all that are missing.")] = None,
    dir_: eval_places.DirOption = Path(),
    common: console.Common = console.Common(),
) -> None:
    """Make the pairs of runs that the plan asks for: the same command unmanaged and managed, with the same faults at the same points.

    Every run goes to runs.jsonl when it ends. After an interruption, even a kill, the same command goes on with what is missing.
    Ends with 3 when it was broken off or the window closed before all pairs were made.

    For example:

      perdure eval run --dir trial --pairs 2
    """
    from perdure.evaluation import folder as folders
    from perdure.evaluation import harness, standing

    if pairs is not None and pairs < 1:
        raise errors.QuantityError(f"--pairs: {pairs} is less than 1", hint="leave it out to make all that are missing")
    folder = folders.Folder(dir_)
    with folders.at_work(folder), eval_running.stoppable() as stop, eval_running.shown(common) as look:
        found = standing.require_locked(folder)
        made = harness.arms(folder, found.plan, say=eval_running.teller(common), stop=stop, pairs=pairs, look=look)
    if common.json:
        console.print_json({"runs": [run.id for run in made]})
        return
    console.out().print(f"{len(made)} runs made")
    console.note(common, "next: perdure eval report")
