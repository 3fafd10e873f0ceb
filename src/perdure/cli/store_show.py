"""`perdure store show`: everything that one checkpoint says of itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.table import Table

from perdure.agent import asked
from perdure.base import units
from perdure.cli import agent_side, console, store_open
from perdure.model.checkpoint import Manifest
from perdure.store import pins


def show(
    checkpoint: store_open.CheckpointArgument,
    /,
    *,
    store: store_open.StoreOption = None,
    key_file: store_open.KeyFileOption = None,
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """Print what a checkpoint holds: its processes, open files and connections, its sizes by part and its durations by phase.

    For example:

      perdure store show train-7b

      perdure store show train-7b@3.12 --json
    """
    agent = agent_side.find_for_store(common, store, key_file, user)
    if agent is None:
        with store_open.opened(common, store, key_file) as (repository, _):
            chosen = store_open.choose(repository, checkpoint)
            manifest = repository.head(chosen)
            packs = len(repository.packs_of(chosen))
            pinned = chosen in pins.pinned(repository, chosen.workload)
    else:
        answer = agent.ask(asked.StoreShow(checkpoint=checkpoint))
        _, manifest, pinned = agent_side.shown(answer)
        packs = answer["packs"]
    if common.json:
        console.print_json(store_open.document(manifest, pinned=pinned) | {"packs": packs})
        return
    out = console.out()
    facts = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _facts(manifest):
        facts.add_row(name, console.printable(value))
    facts.add_row("pinned", "yes" if pinned else "no")
    facts.add_row("packs", str(packs))
    out.print(facts)
    for table in (
        _sizes(manifest),
        _durations(manifest),
        _gpus(manifest),
        _processes(manifest),
        _outputs(manifest),
        _connections(manifest),
    ):
        if table.row_count:
            out.print()
            out.print(table)


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    host = manifest.host
    yield "checkpoint", str(manifest.id)
    yield "created", store_open.time_of(manifest.created_ns)
    yield "trigger", f"{manifest.trigger.value}: {manifest.reason}"
    if manifest.stood_still:
        yield "stood still", "no process of it had run since the checkpoint before: it waited for something, or hung"
    yield "command", shlex.join(manifest.command)
    yield "in", manifest.working_directory
    yield "host", f"{host.hostname}, {host.machine}, {host.cpu_model}, Linux {host.kernel}"
    yield "made with", f"Perdure {host.perdure_version}, CRIU {host.criu_version}"
    if manifest.gpu_driver is not None:
        yield "GPU driver", manifest.gpu_driver
    yield "console log", units.format_size(manifest.log_bytes)
    yield "files", str(len(manifest.files))


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False)


def _sizes(manifest: Manifest) -> Table:
    table = _table("part", "size", "stored", "new")
    for size in manifest.sizes:
        table.add_row(size.part.value, *(units.format_size(one) for one in (size.logical_bytes, size.stored_bytes, size.new_bytes)))
    return table


def _durations(manifest: Manifest) -> Table:
    table = _table("phase", "took")
    for phase, seconds in manifest.durations_s.items():
        table.add_row(console.printable(phase), units.format_duration(seconds))
    return table


def _gpus(manifest: Manifest) -> Table:
    table = _table("gpu", "model", "memory", "used", "moved in", "by")
    for one in manifest.gpus:
        by = ", ".join(str(process.pid) for process in manifest.cuda_processes if one.uuid in process.gpus)
        sizes = (units.format_size(one.memory_bytes), "?" if one.used_bytes is None else units.format_size(one.used_bytes))
        moved = units.format_duration(one.moved_s) if one.moved_s else "-"
        table.add_row(console.printable(one.uuid), console.printable(one.model), *sizes, moved, by)
    return table


def _processes(manifest: Manifest) -> Table:
    table = _table("pid", "parent", "user", "threads", "memory", "command")
    for one in manifest.processes:
        row = (str(one.pid), str(one.parent), str(one.uid), str(one.threads), units.format_size(one.resident_bytes))
        table.add_row(*row, console.printable(one.command))
    return table


def _outputs(manifest: Manifest) -> Table:
    table = _table("output file", "size", "kept in the checkpoint")
    for one in manifest.outputs:
        table.add_row(console.printable(one.path), units.format_size(one.size_bytes), "yes" if one.stored_as else "no")
    return table


def _connections(manifest: Manifest) -> Table:
    table = _table("connection", "state", "local", "remote")
    for one in manifest.connections:
        table.add_row(one.protocol, console.printable(one.state), console.printable(one.local), console.printable(one.remote))
    return table
