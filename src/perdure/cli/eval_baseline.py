"""`perdure eval baseline`: measure what the workload does today."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.cli import console, eval_places, eval_running


def baseline(
    *,
    faults: Annotated[bool, Parameter(help="Measure it with the plan's faults, too.")] = True,
    dir_: eval_places.DirOption = Path(),
    common: console.Common = console.Common(),
) -> None:
    """Run the workload unmanaged, as often as the plan says, undisturbed and with the plan's faults, and write its medians down.

    The runs go to runs.jsonl, the medians into the plan. What was interrupted is recorded as cut short, and made again.

    For example:

      perdure eval baseline --dir trial
    """
    from perdure.evaluation import folder as folders
    from perdure.evaluation import harness, measured, standing

    folder = folders.Folder(dir_)
    with folders.at_work(folder), eval_running.stoppable() as stop, eval_running.shown(common) as look:
        found = standing.look(folder)
        eval_running.refuse_locked(found)
        made = harness.baseline(folder, found.plan, with_faults=faults, say=eval_running.teller(common), stop=stop, look=look)
        figures = measured.record(folder)
    if common.json:
        console.print_json({"runs": [run.id for run in made], "measured": figures})
        return
    console.out().print(f"{len(figures.runs)} runs; median from launch to end {eval_running.seconds(figures.duration_s)}")
    console.note(common, "next: perdure eval lock")
