"""`perdure eval report`: what the evaluation says, on a terminal, as JSON, as CSV, as one page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.cli import console, eval_places


def report(
    *,
    html: Annotated[Path | None, Parameter(help="Write the report as one offline page.")] = None,
    csv: Annotated[Path | None, Parameter(help="Write every value of every run as CSV.")] = None,
    exit_test: Annotated[bool, Parameter(negative="", help="Run the plan's exit test first; the report shows what came of it.")] = False,
    dir_: eval_places.DirOption = Path(),
    common: console.Common = console.Common(),
) -> None:
    """Report the evaluation: the four measures on both sides, every run, each fault, cold starts, its own mistakes, plan and lock.

    It is computed anew from the plan and the raw runs. An evaluation with flagged mistakes is reported, and its headline says so.

    For example:

      perdure eval report --html report/report.html
    """
    from perdure.evaluation import folder as folders
    from perdure.evaluation import leaving, page, standing, tables, this_machine
    from perdure.evaluation import report as reports

    folder = folders.Folder(dir_)
    if exit_test:
        found = standing.require(folder)
        leaving.run(folder, found.plan, signed=this_machine.sign(time.time()), clock=time.monotonic)
    made = reports.read(folder)
    for path in (html, csv):
        if path is not None and path.parent == folder.report:
            path.parent.mkdir(mode=0o700, exist_ok=True)
    if html is not None:
        page.write(made, html)
    if csv is not None:
        tables.write_csv(made, csv)
    if common.json:
        console.print_json(made)
    else:
        tables.print_report(made, console.out())
    for path in (html, csv):
        if path is not None:
            console.note(common, console.printable(f"wrote {path}"))
