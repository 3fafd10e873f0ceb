"""`perdure rm`: forget a workload."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from perdure.cli import console, keep
from perdure.supervisor import removal, state


def rm(
    name: keep.Name,
    *,
    checkpoints: Annotated[bool, Parameter(negative="", help="Remove its checkpoints from the store too.")] = False,
    common: console.Common = console.Common(),
) -> None:
    """Forget a workload that does not run: its state and its log on this machine.

    Its checkpoints stay in the store, and a run of the same name goes on from them, unless --checkpoints is given.
    """
    values = console.load_settings(common)
    folders = keep.where(values)
    known = keep.require(folders, name)
    place = keep.store(values, folders, known=known.store, known_key=known.options.key_file) if checkpoints else None
    with state.opened(folders.database) as database:
        removed = removal.remove(name, database, folders, place)
    if common.json:
        console.print_json({"name": name, "removed_checkpoints": [str(one) for one in removed]})
        return
    console.note(common, f"{name} is forgotten" + (f", and {len(removed)} checkpoints with it" if checkpoints else ""))
