"""`perdure eval lock`: fix the plan before there are data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.cli import console, eval_places

if TYPE_CHECKING:
    from perdure.evaluation import paper
    from perdure.evaluation.folder import Folder


def lock(
    *,
    check: Annotated[bool, Parameter(negative="", help="Only say what is missing; write nothing.")] = False,
    dir_: eval_places.DirOption = Path(),
    common: console.Common = console.Common(),
) -> None:
    """Fix the plan: its hash, the time, the versions and the baseline's runs go into evaluation.lock, which is written once.

    The plan must name the workload, its measured baseline, a number with a reason for each of the four measures, and the way out, each
    concrete. It is refused once managed data exist. Later changes are amendments: perdure eval amend.

    Ends with status 4 when something is missing: one line each, with what to do.

    For example:

      perdure eval lock --check && perdure eval lock
    """
    from perdure.evaluation import folder as folders
    from perdure.evaluation import lock as locks
    from perdure.evaluation import this_machine

    folder = folders.Folder(dir_)
    if check:
        _check(folder, common)
        return
    try:
        written = locks.fix(folder, signed=this_machine.sign(time.time()))
    except errors.PlanUnfinished as error:
        _show(error, common)
        raise
    if common.json:
        console.print_json({"lock": str(folder.lock), "lacks": [], **_summary(written)})
        return
    console.out().print(console.printable(f"{written.name} is locked: {written.plan_sha256}"))
    console.note(
        common, f"{len(written.baseline.runs)} runs of the baseline; keep the hash where others can see it; next: perdure eval run"
    )


def _check(folder: Folder, common: console.Common) -> None:
    from perdure.evaluation import lock as locks
    from perdure.evaluation import standing

    found = standing.look(folder)
    locks.refuse_late(found)
    missing = locks.lacks(found)
    if missing:
        error = errors.PlanUnfinished(f"{folder.plan} cannot be locked yet: {len(missing)} missing", lacks=missing)
        _show(error, common)
        raise error
    if common.json:
        console.print_json({"lock": None, "lacks": [], "plan_sha256": found.plan_sha256})
    else:
        console.note(common, "nothing is missing: perdure eval lock")


def _show(error: errors.PlanUnfinished, common: console.Common) -> None:
    if common.json:
        console.print_json({"lock": None, "lacks": list(error.lacks)})
    else:
        eval_places.print_lacks(error.lacks)


def _summary(written: paper.Lock) -> dict[str, object]:
    return {
        "plan_sha256": written.plan_sha256,
        "workload_sha256": written.workload_sha256,
        "locked_unix_s": written.signed.at_unix_s,
        "locked_by": written.signed.user,
        "versions": written.versions,
        "baseline": written.baseline,
    }
