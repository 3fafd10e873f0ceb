"""What the file of state says of a workload while its life begins, or comes to nothing. Called by `start` and `beginning`."""

from __future__ import annotations

import os

import msgspec

from perdure.base.proc import machine, process
from perdure.store.lives import HeldLife
from perdure.supervisor import naming
from perdure.supervisor.record import ENDED, LastCheckpoint, Options, State, Workload
from perdure.supervisor.resume import Source
from perdure.supervisor.succession import Completed
from perdure.supervisor.wanted import Wanted


def starting(name: str, wanted: Wanted, known: Workload | None, now_ns: int) -> Workload:
    """Return what is to be remembered of the workload `name`, from what is wanted and what is known, while this process starts it.

    Raises `errors.UsageError` when the name stands for something else that has not ended.
    """
    asked, where = wanted.command, wanted.working_directory
    if known is not None and asked and not wanted.fresh and known.state not in ENDED:
        naming.require_same(known.name, known.command, known.working_directory, asked, where)
    if known is not None and not asked and wanted.adopt is None:
        asked, where = known.command, known.working_directory
    elif wanted.adopt is not None:
        asked = process.command_line(wanted.adopt)
    return Workload(
        name=name,
        command=asked,
        working_directory=where,
        options=_options(wanted, known),
        store=known.store if known else "",
        created_ns=known.created_ns if known else now_ns,
        changed_ns=now_ns,
        state=State.STARTING,
        adopted=wanted.adopt is not None,
        epoch=known.epoch if known else 0,
        checkpoints=known.checkpoints if known else 0,
        damaged_objects=known.damaged_objects if known else (),
        last_checkpoint=known.last_checkpoint if known else None,
        targets=known.targets if known else (),
        boot_id=machine.boot_id(),
        supervisor_pid=os.getpid(),
        supervisor_ticks=process.stat(os.getpid()).start_ticks,
    )


def _options(wanted: Wanted, known: Workload | None) -> Options:
    """Return how the workload is to be kept. Which key its store has is remembered."""
    if wanted.options is None:
        return known.options if known else Options()
    return msgspec.structs.replace(wanted.options, key_file=known.options.key_file) if known else wanted.options


def begun(record: Workload, held: HeldLife, source: Source | None) -> Workload:
    """Return `record` with the life `held`, which goes on from `source`."""
    last = LastCheckpoint.of(source.manifest) if source else None
    is_known = last is not None and record.last_checkpoint is not None and last.id == record.last_checkpoint.id
    return msgspec.structs.replace(
        record,
        epoch=held.life.epoch,
        last_checkpoint=record.last_checkpoint if is_known else last,
        command=record.command or (source.manifest.command if source else ()),
        working_directory=record.working_directory if record.command or source is None else source.manifest.working_directory,
    )


def not_begun(before: Workload, record: Workload, reason: str, now_ns: int) -> Workload:
    """Return what is to be remembered after nothing was started: what was known `before`, and of a new name what `record` had found."""
    last = before.last_checkpoint or record.last_checkpoint
    return msgspec.structs.replace(
        record,
        state=State.STOPPED if last else State.FAILED,
        reason=reason,
        epoch=before.epoch,
        last_checkpoint=last,
        targets=before.targets,
        supervisor_pid=None,
        supervisor_ticks=None,
        changed_ns=now_ns,
    )


def completed(record: Workload, found: Completed, now_ns: int) -> Workload:
    """Return `record` of a workload that has ended elsewhere."""
    return msgspec.structs.replace(
        record,
        state=found.state,
        epoch=found.epoch,
        exit_status=found.end.status,
        reason=found.end.reason,
        supervisor_pid=None,
        supervisor_ticks=None,
        changed_ns=now_ns,
    )
