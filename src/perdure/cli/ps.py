"""`perdure ps`: the workloads of this machine."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.table import Table

from perdure import errors
from perdure.agent import asked
from perdure.base import settings, units
from perdure.cli import agent_side, console, keep
from perdure.model.checkpoint import check_name
from perdure.supervisor import listing, state
from perdure.supervisor.listing import Listed


def ps(
    *names: Annotated[str, Parameter(help="Only these workloads.")],
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """List the workloads of this machine: how they are, and how much of each is safe.

    States: starting, running, suspended (off its GPU until perdure resume); stopped and lost, which the next run goes on with;
    completed and failed, which it starts anew.

    For example:

      perdure ps --json
    """
    for name in names:
        check_name(name)
    values = console.load_settings(common)
    agent = agent_side.find(values, user)
    found = _look(common, values, names) if agent is None else _ask(common, agent, names)
    if names and not found:
        raise errors.WorkloadMissing(f"there is no workload {names[0]!r} on this machine", hint="perdure ps lists all")
    now_ns = time.time_ns()
    if common.json:
        console.print_json({"workloads": [_document(one, now_ns) for one in found]})
        return
    if found:
        console.out().print(_table(found, now_ns))


def _look(common: console.Common, values: dict[str, settings.Value], names: tuple[str, ...]) -> tuple[Listed, ...]:
    """Look at this user's own workloads."""
    folders = keep.where(values)
    if not folders.database.exists():
        return ()
    with state.opened(folders.database) as database:
        for name in names:
            database.require(name)
        return listing.look(
            [one for one in database.workloads() if not names or one.name in names],
            folders,
            place=lambda one: keep.store(values, folders, known=one.store, known_key=one.options.key_file),
            doubt=lambda one, error: _doubt(common, one.name, str(error)),
        )


def _ask(common: console.Common, agent: agent_side.Agent, names: tuple[str, ...]) -> tuple[Listed, ...]:
    """Ask the agent for them."""
    answer = agent.ask(asked.Ps(names=names))
    for one in answer["doubts"]:
        _doubt(common, one["name"], one["message"])
    return msgspec.convert(answer["workloads"], tuple[Listed, ...])


def _doubt(common: console.Common, name: str, message: str) -> None:
    console.note(common, f"perdure: {name}: {console.printable(message)}")


def _document(one: Listed, now_ns: int) -> dict[str, Any]:
    last = one.last_checkpoint
    return {
        "name": one.name,
        "state": one.state,
        "epoch": one.epoch,
        "pid": one.pid,
        "checkpoints": one.checkpoints,
        "last_checkpoint": {
            "id": str(last.id),
            "age_s": round(max(now_ns - last.created_ns, 0) / 1e9, 3),
            "logical_bytes": last.logical_bytes,
            "stored_bytes": last.stored_bytes,
            "new_bytes": last.new_bytes,
            "stopped_s": last.stopped_s,
            **({} if last.gpu_bytes is None else {"gpu_bytes": last.gpu_bytes}),
            **({"gpus": last.gpus} if last.gpus else {}),
        }
        if last
        else None,
    }


def _table(found: tuple[Listed, ...], now_ns: int) -> Table:
    columns = ["name", "state", "epoch", "pid", "checkpoints", "last", "age", "size", "stored", "new", "stopped"]
    has_gpus = any(one.last_checkpoint is not None and one.last_checkpoint.gpu_bytes is not None for one in found)
    table = Table(*columns, *(["on GPUs"] if has_gpus else []), box=None, pad_edge=False)
    for one in found:
        last = one.last_checkpoint
        cells = (
            [
                f"{last.id.epoch}.{last.id.sequence}",
                units.format_duration(max(now_ns - last.created_ns, 0) / 1e9),
                *(units.format_size(size) for size in (last.logical_bytes, last.stored_bytes, last.new_bytes)),
                units.format_duration(last.stopped_s),
            ]
            if last
            else ["-"] * 6
        )
        if has_gpus:
            cells.append(units.format_size(last.gpu_bytes) if last and last.gpu_bytes is not None else "-")
        table.add_row(one.name, one.state.value, str(one.epoch or "-"), str(one.pid or "-"), str(one.checkpoints), *cells)
    return table
