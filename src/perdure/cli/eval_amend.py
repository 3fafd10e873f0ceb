"""`perdure eval amend`: record a change of a locked plan."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.cli import console, eval_places


def amend(
    *,
    reason: Annotated[str, Parameter(help="Why the plan has to change now.")],
    dir_: eval_places.DirOption = Path(),
    common: console.Common = console.Common(),
) -> None:
    """Record that the plan was changed after the lock: what, why, when, and whether there were data already.

    Edit evaluation.toml first, then record the change. The lock stays as it is; reports show every amendment beside the result.

    For example:

      perdure eval amend --reason "node n7 was replaced by n9"
    """
    from perdure.evaluation import amend as amendments
    from perdure.evaluation import folder as folders
    from perdure.evaluation import this_machine

    folder = folders.Folder(dir_)
    written = amendments.record(folder, reason=reason, signed=this_machine.sign(time.time()))
    if common.json:
        shown = ("number", "reason", "old_sha256", "new_sha256", "changes", "data_existed", "managed_runs", "lacks")
        console.print_json({"amendments": str(folder.amendments), **{name: getattr(written, name) for name in shown}})
        return
    out = console.out()
    for change in written.changes:
        out.print(eval_places.describe(change), soft_wrap=True)
    for lack in written.lacks:
        console.note(common, console.printable(f"recorded with it: {lack}"))
    when = f"after {written.managed_runs} managed runs: reports say so" if written.data_existed else "before there were data"
    console.note(common, f"amendment {written.number}, {when}")
