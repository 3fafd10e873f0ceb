"""`perdure resume`: give a suspended workload its GPU memory back."""

from __future__ import annotations

import msgspec

from perdure.agent import asked
from perdure.base import units
from perdure.cli import agent_side, console, keep
from perdure.cli.checkpoint import require_running
from perdure.model.checkpoint import check_name
from perdure.supervisor import control, messages


def resume(
    name: keep.Name,
    *,
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """Move a suspended workload's GPU memory back onto the GPU, and let its calls of CUDA go on. The driver is asked that it runs.

    Without room on the GPU the workload stays suspended, and nothing is lost.

    For example:

      perdure suspend first && perdure resume second
    """
    values = console.load_settings(common)
    agent = agent_side.find(values, user)
    if agent is None:
        folders = keep.where(values)
        keep.require(folders, name)
        require_running(folders, name)
        answer = control.ask(folders.socket(name), messages.Resume(), on_event=lambda _event: None, patience_s=None)
    else:
        answer = msgspec.convert(agent.ask(asked.Resume(name=check_name(name))), messages.Answer)
    if common.json:
        console.print_json({"name": name, "state": answer.state, "took_s": answer.took_s})
        return
    if answer.took_s is None:
        console.note(common, f"{name} was not suspended")
        return
    console.note(common, f"{name} is back on its GPU after {units.format_duration(answer.took_s)}")
