"""`perdure checkpoint`: save a workload now."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import msgspec
from cyclopts import Parameter

from perdure import errors
from perdure.agent import asked
from perdure.base import units
from perdure.cli import agent_side, console, findings, keep
from perdure.model.checkpoint import check_name
from perdure.supervisor import control, lock, messages
from perdure.supervisor.folders import Folders
from perdure.supervisor.messages import Event
from perdure.supervisor.progress import Readout
from perdure.supervisor.record import LastCheckpoint


def checkpoint(
    name: keep.Name,
    *,
    stop: Annotated[bool, Parameter(negative="", help="End the workload once it is saved.")] = False,
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """Save a running workload, and wait until the checkpoint is durable.

    Warnings say what may not come back from it as it is now. With --json, what goes on is told on stderr, one event a line, and the
    checkpoint on stdout: "warnings" are findings as perdure check has them, "warnings_in_all" is how many there are.

    For example:

      perdure checkpoint train-7b

      perdure checkpoint train-7b --stop
    """
    values = console.load_settings(common)
    agent = agent_side.find(values, user)
    with _Watching(common) as watching:
        if agent is None:
            folders = keep.where(values)
            keep.require(folders, name)
            require_running(folders, name)
            answer = control.ask(folders.socket(name), messages.Checkpoint(stop=stop), on_event=watching.see, patience_s=None)
        else:
            answer = msgspec.convert(agent.ask(asked.Checkpoint(name=check_name(name), stop=stop), watching.see), messages.Answer)
    saved = answer.checkpoint
    if saved is None:
        raise errors.CheckpointFailed(f"{name} ended before it was saved", hint="see perdure ps")
    if common.json:
        console.print_json(_document(saved, answer))
        return
    for warning in answer.warnings:
        console.note(common, findings.line(warning))
    console.out().print(_line(saved, stop=stop))


def require_running(folders: Folders, name: str) -> None:
    """Raise `errors.WorkloadMissing` unless a supervisor keeps the workload `name`."""
    if not lock.is_held(folders.lock(name)):
        raise errors.WorkloadMissing(f"{name} is not running", hint="see perdure ps")


def _document(saved: LastCheckpoint, answer: messages.Answer) -> dict[str, object]:
    document: dict[str, object] = msgspec.to_builtins(saved)
    return document | {"id": str(saved.id), "warnings": msgspec.to_builtins(answer.warnings), "warnings_in_all": answer.warnings_in_all}


def _line(saved: LastCheckpoint, *, stop: bool) -> str:
    sizes = f"{units.format_size(saved.logical_bytes)}, {units.format_size(saved.new_bytes)} new in the store"
    stopped = "stopped for good" if stop else f"stood still for {units.format_duration(saved.stopped_s)}"
    return f"{saved.id}: {sizes}; {stopped}; durable after {units.format_duration(saved.cost_s)}"


class _Watching:
    """Shows what goes on: phase, bytes, rate and ETA on a terminal; events with --json."""

    def __init__(self, common: console.Common) -> None:
        self._common = common
        self._readout = Readout()
        self._shown = not common.quiet and not common.json and sys.stderr.isatty()

    def __enter__(self) -> _Watching:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def see(self, event: Event) -> None:
        if self._common.json:
            console.write_json(sys.stderr, msgspec.json.encode(event))
            sys.stderr.flush()
        elif self._shown:
            sys.stderr.write(f"\r\x1b[K{self._readout.of(event, time.monotonic())}")
            sys.stderr.flush()
