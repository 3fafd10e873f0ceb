"""`perdure suspend`: move a workload's GPU memory away, so that another can use the GPU."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from perdure.agent import asked
from perdure.base import settings, units
from perdure.cli import agent_side, console, keep
from perdure.cli.checkpoint import require_running
from perdure.model.checkpoint import check_name
from perdure.supervisor import control, messages, quantities


def suspend(
    name: keep.Name,
    *,
    within: Annotated[
        str | None, Parameter(help="Longest wait for work on the GPU to come to rest; then it just goes on. Default: gpu-lock-limit.")
    ] = None,
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """Move a workload's GPU memory into the machine's memory, and free the GPU. Nothing is stored; the processes stay.

    Its calls of CUDA wait until perdure resume; what it does on the processor goes on. perdure ps shows it as suspended, and a
    checkpoint can be made of it meanwhile. Free memory of the machine has to have room for its GPU memory.

    For example, two workloads that take turns on one GPU:

      perdure suspend first && perdure resume second
    """
    values = console.load_settings(common)
    chosen = values["gpu-lock-limit"] if within is None else settings.Value("gpu-lock-limit", within, "--within")
    within_s = quantities.gpu_lock_s(chosen)
    agent = agent_side.find(values, user)
    if agent is None:
        folders = keep.where(values)
        keep.require(folders, name)
        require_running(folders, name)
        request = messages.Suspend(within_s=within_s)
        answer = control.ask(folders.socket(name), request, on_event=lambda _event: None, patience_s=None)
    else:
        answer = msgspec.convert(agent.ask(asked.Suspend(name=check_name(name), within_s=within_s)), messages.Answer)
    if common.json:
        console.print_json({"name": name, "state": answer.state, "gpu_bytes": answer.gpu_bytes, "took_s": answer.took_s})
        return
    if answer.took_s is None:
        console.note(common, f"{name} was suspended already")
        return
    what = units.format_size(answer.gpu_bytes) if answer.gpu_bytes is not None else "its GPU memory (how much, the driver does not tell)"
    console.note(common, f"{name}: {what} moved away in {units.format_duration(answer.took_s)}; perdure resume {name} brings it back")
