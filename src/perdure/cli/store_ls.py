"""`perdure store ls`: the checkpoints of a store."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from perdure import errors
from perdure.agent import asked
from perdure.base import units
from perdure.cli import agent_side, console, store_open
from perdure.model.checkpoint import CheckpointId, Manifest, check_name
from perdure.store import pins
from perdure.store.repository import Repository


def ls(
    name: Annotated[str | None, Parameter(help="Only this workload's.")] = None,
    /,
    *,
    store: store_open.StoreOption = None,
    key_file: store_open.KeyFileOption = None,
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """List the checkpoints of a store, oldest first, with their sizes: as they were, as stored, and what each one added.

    For example:

      perdure store ls train-7b

      perdure store ls --store s3://checkpoints/team --json
    """
    agent = agent_side.find_for_store(common, store, key_file, user)
    if agent is None:
        with store_open.opened(common, store, key_file) as (repository, _):
            names = repository.workloads() if name is None else (check_name(name),)
            found = [(one, _head(repository, one), one in pinned) for each in names for pinned, one in _each(repository, each)]
    else:
        found = [agent_side.listed(one) for one in agent.ask(asked.StoreList(name=name))["checkpoints"]]
    if name is not None and not found:
        raise errors.WorkloadMissing(f"the store has no checkpoint of {name}", hint="perdure store ls lists what it has")
    if common.json:
        console.print_json({"checkpoints": [_document(*one) for one in found]})
        return
    _print(found)
    damaged = sum(not isinstance(head, Manifest) for _, head, _ in found)
    if damaged:
        console.note(common, f"{damaged} cannot be read: perdure store verify says why")


def _each(repository: Repository, workload: str) -> list[tuple[frozenset[CheckpointId], CheckpointId]]:
    pinned = pins.pinned(repository, workload)
    return [(pinned, one) for one in repository.checkpoints(workload)]


def _head(repository: Repository, checkpoint: CheckpointId) -> Manifest | errors.StoreError:
    try:
        return repository.head(checkpoint)
    except (errors.StoreCorrupt, errors.StoreFormat) as error:
        return error


def _document(checkpoint: CheckpointId, head: Manifest | errors.StoreError, pinned: bool) -> dict[str, Any]:
    if not isinstance(head, Manifest):
        return {
            "id": str(checkpoint),
            "workload": checkpoint.workload,
            "pinned": pinned,
            "error": {"code": head.code, "message": str(head)},
        }
    return {
        "id": str(checkpoint),
        "workload": checkpoint.workload,
        "created": store_open.time_of(head.created_ns),
        "created_ns": head.created_ns,
        "trigger": head.trigger,
        "host": head.host.hostname,
        "processes": len(head.processes),
        "pinned": pinned,
        "logical_bytes": head.logical_bytes,
        "stored_bytes": head.stored_bytes,
        "new_bytes": head.new_bytes,
        "stopped_s": head.durations_s.get("stopped"),
        "error": None,
    }


def _print(found: list[tuple[CheckpointId, Manifest | errors.StoreError, bool]]) -> None:
    if not found:
        return
    table = Table("checkpoint", "created", "trigger", "size", "stored", "new", "stopped", "host", "", box=None, pad_edge=False)
    for checkpoint, head, pinned in found:
        mark = "pinned" if pinned else ""
        if not isinstance(head, Manifest):
            table.add_row(str(checkpoint), "-", "-", "-", "-", "-", "-", "-", " ".join(("damaged", mark)).strip())
            continue
        table.add_row(
            str(checkpoint),
            store_open.time_of(head.created_ns),
            head.trigger.value,
            units.format_size(head.logical_bytes),
            units.format_size(head.stored_bytes),
            units.format_size(head.new_bytes),
            units.format_duration(head.durations_s.get("stopped")),
            console.printable(head.host.hostname),
            mark,
        )
    console.out().print(table)
