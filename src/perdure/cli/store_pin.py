"""`perdure store pin`: keep a checkpoint whatever the rules say."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from perdure.agent import asked
from perdure.cli import agent_side, console, store_open
from perdure.model.checkpoint import CheckpointId
from perdure.store import pins
from perdure.store.owners import Linux


def pin(
    checkpoint: store_open.CheckpointArgument,
    /,
    *,
    unpin: Annotated[bool, Parameter(negative="", help="Let the rules decide on it again.")] = False,
    note: Annotated[str, Parameter(help="Why, for whoever wonders later.")] = "",
    store: store_open.StoreOption = None,
    key_file: store_open.KeyFileOption = None,
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """Keep a checkpoint until it is unpinned: no rule removes it.

    For example:

      perdure store pin train-7b@3.12 --note "before the learning rate changed"

      perdure store pin --unpin train-7b@3.12
    """
    agent = agent_side.find_for_store(common, store, key_file, user)
    if agent is not None:
        chosen = CheckpointId.parse(agent.ask(asked.StorePin(checkpoint=checkpoint, unpin=unpin, note=note))["id"])
    else:
        with store_open.opened(common, store, key_file) as (repository, _):
            chosen = store_open.choose(repository, checkpoint)
            if unpin:
                pins.unpin(repository, chosen)
            else:
                pins.pin(repository, chosen, note=note, surroundings=Linux())
    if common.json:
        console.print_json({"id": str(chosen), "pinned": not unpin})
        return
    console.note(common, f"{chosen} is {'not pinned any more' if unpin else 'pinned'}")
