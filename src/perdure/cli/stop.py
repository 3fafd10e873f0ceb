"""`perdure stop`: end a workload."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from perdure.cli import console, keep
from perdure.cli.checkpoint import require_running
from perdure.supervisor import control, messages

_MARGIN_S = 60.0


def stop(
    name: keep.Name,
    *,
    grace: Annotated[str, Parameter(help="Time from SIGTERM to SIGKILL.")] = "10s",
    common: console.Common = console.Common(),
) -> None:
    """End a running workload without saving it: SIGTERM, and SIGKILL when it takes longer than --grace.

    The next run goes on from its newest checkpoint. To save it first: perdure checkpoint NAME --stop.
    """
    folders = keep.where(console.load_settings(common))
    keep.require(folders, name)
    require_running(folders, name)
    grace_s = keep.duration(grace, "--grace")
    answer = control.ask(folders.socket(name), messages.Stop(grace_s=grace_s), on_event=lambda _event: None, patience_s=grace_s + _MARGIN_S)
    last = answer.checkpoint
    if common.json:
        console.print_json({"name": name, "state": answer.state, "checkpoint": str(last.id) if last else None})
        return
    console.note(common, f"{name} was ended; " + (f"the next run goes on from {last.id}" if last else "there is no checkpoint"))
