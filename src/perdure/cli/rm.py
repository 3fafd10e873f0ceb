"""`perdure rm`: forget a workload."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from perdure.agent import asked
from perdure.cli import agent_side, console, keep
from perdure.model.checkpoint import check_name
from perdure.supervisor import removal, state


def rm(
    name: keep.Name,
    *,
    checkpoints: Annotated[bool, Parameter(negative="", help="Remove its checkpoints from the store too.")] = False,
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """Forget a workload that does not run: its state and its log on this machine.

    Its checkpoints stay in the store, and a run of the same name goes on from them, unless --checkpoints is given.

    For example:

      perdure rm train-7b --checkpoints
    """
    values = console.load_settings(common)
    agent = agent_side.find(values, user)
    if agent is None:
        folders = keep.where(values)
        known = keep.require(folders, name)
        place = keep.store(values, folders, known=known.store, known_key=known.options.key_file) if checkpoints else None
        with state.opened(folders.database) as database:
            removed = [str(one) for one in removal.remove(name, database, folders, place)]
    else:
        removed = agent.ask(asked.Remove(name=check_name(name), checkpoints=checkpoints))["removed_checkpoints"]
    if common.json:
        console.print_json({"name": name, "removed_checkpoints": removed})
        return
    console.note(common, f"{name} is forgotten" + (f", and {len(removed)} checkpoints with it" if checkpoints else ""))
