"""`perdure eval status`: what is done, and what is next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from perdure import errors
from perdure.cli import console, eval_places

if TYPE_CHECKING:
    from perdure.evaluation.status import Status

_WORDS = {"done": "done", "open": "open", "broken": "BROKEN"}


def status(*, dir_: eval_places.DirOption = Path(), common: console.Common = console.Common()) -> None:
    """Say how far the evaluation is: the plan and what it lacks, the lock and its amendments, the runs, and what is next.

    Ends with status 4 when the plan, the lock or the baseline was changed and no amendment says so.

    For example:

      perdure eval status --dir trial
    """
    from perdure.evaluation import folder as folders
    from perdure.evaluation import standing
    from perdure.evaluation import status as statuses

    found = statuses.summarise(standing.look(folders.Folder(dir_)))
    if common.json:
        console.print_json(found)
    else:
        _print(found, common)
    if not found.sound:
        raise errors.PlanChanged(found.problems[0], hint=f"next: {found.next}")


def _print(found: Status, common: console.Common) -> None:
    out = console.out()
    table = Table("step", "", "", box=None, pad_edge=False, show_header=False)
    for step in found.steps:
        table.add_row(step.name, _WORDS[step.state], console.printable(step.detail))
    out.print(table)
    eval_places.print_lacks(found.lacks)
    runs = found.runs
    if runs.recorded:
        out.print(
            f"{runs.recorded} runs recorded: {runs.baseline} of the baseline, {runs.unmanaged} unmanaged, {runs.managed} managed, "
            f"{runs.unfinished} cut short, {len(runs.excluded)} excluded"
        )
    for text in runs.excluded:
        out.print(console.printable(f"excluded: {text}"), soft_wrap=True)
    if runs.torn:
        console.note(common, f"{runs.torn} torn lines, from a crash while one was written, lie beside the files")
    if found.amended_after_data:
        console.note(common, f"{found.amended_after_data} of {found.amendments} amendments were made after there were data")
    console.note(common, console.printable(f"next: {found.next}"))
