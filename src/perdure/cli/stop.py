"""`perdure stop`: end a workload."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from perdure.agent import asked
from perdure.cli import agent_side, console, keep
from perdure.cli.checkpoint import require_running
from perdure.model.checkpoint import check_name
from perdure.supervisor import control, messages

_MARGIN_S = 60.0


def stop(
    name: keep.Name,
    *,
    grace: Annotated[str, Parameter(help="Time from SIGTERM to SIGKILL.")] = "10s",
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """End a running workload without saving it: SIGTERM, and SIGKILL when it takes longer than --grace.

    The next run goes on from its newest checkpoint. To save it first: perdure checkpoint NAME --stop.

    For example:

      perdure stop train-7b --grace 1m
    """
    values = console.load_settings(common)
    grace_s = keep.duration(grace, "--grace")
    agent = agent_side.find(values, user)
    if agent is None:
        folders = keep.where(values)
        keep.require(folders, name)
        require_running(folders, name)
        wanted = messages.Stop(grace_s=grace_s)
        answer = control.ask(folders.socket(name), wanted, on_event=lambda _event: None, patience_s=grace_s + _MARGIN_S)
    else:
        answer = msgspec.convert(agent.ask(asked.Stop(name=check_name(name), grace_s=grace_s)), messages.Answer)
    last = answer.checkpoint
    if common.json:
        console.print_json({"name": name, "state": answer.state, "checkpoint": str(last.id) if last else None})
        return
    console.note(common, f"{name} was ended; " + (f"the next run goes on from {last.id}" if last else "there is no checkpoint"))
