"""Clear away what a supervisor left behind that was killed, whatever it was doing. Called by `start` and `removal`, which hold the
workload's lock; by `start`, `perdure doctor` and `perdure store gc` for all workloads of the machine.

A tree dies with its supervisor, and CRIU and the saver with theirs: the kernel sees to it. What is found here all the same was on its
way, or the machine was stopped in between. Committed checkpoints are never touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import time

import msgspec

from perdure import errors
from perdure.base.proc import machine, process
from perdure.checkpoint import dump, tree
from perdure.checkpoint import machine as steps
from perdure.checkpoint.criu import netlock, run
from perdure.checkpoint.preflight import codes
from perdure.checkpoint.tree import Tree
from perdure.supervisor import gpus, lock
from perdure.supervisor.folders import Folders
from perdure.supervisor.record import LIVE, Operation, State, Workload
from perdure.supervisor.state import Database
from perdure.supervisor.voice import Voice

_DYING_S = 20.0
_LOG_BYTES = 64 << 20
_IMAGES = "images"
"""Folder in a staging folder that CRIU writes to, or reads from."""


def repair(name: str, database: Database, folders: Folders, voice: Voice, *, adopting: int | None) -> None:
    """Make the workload `name` ready for its next life. Nothing happens when its supervisor ended in good order.

    `adopting` is the PID of a process that is to be taken over: the same one again may run on.

    Raises `errors.WorkloadBusy` when what it left cannot be ended.
    """
    boot_id = machine.boot_id()
    record = database.get(name)
    clear(name, database, voice)
    if record is not None and record.state in LIVE:
        _end_tree(record, boot_id, voice, adopting)
        database.put(
            msgspec.structs.replace(
                record,
                state=State.LOST,
                pid=None,
                start_ticks=None,
                supervisor_pid=None,
                supervisor_ticks=None,
                reason="its supervisor was killed" if record.boot_id == boot_id else "the machine was started anew",
                changed_ns=time.time_ns(),
            )
        )
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folders.socket(name))


def clear(name: str, database: Database, voice: Voice) -> None:
    """Clear away what the workload `name` has begun and not ended, for whoever holds its lock. Raises `errors.WorkloadBusy`."""
    record = database.get(name)
    for operation in database.unfinished(name):
        _clear(operation, machine.boot_id(), voice, is_adopted=record is not None and record.adopted)
        database.end(operation)


def sweep(database: Database, folders: Folders, voice: Voice) -> None:
    """Clear away what supervisors left that were killed, also of workloads that nobody runs again: images, in memory for the most part.

    No lock is taken, which would keep such a workload from beginning: what was noted before its lock was seen free is of a supervisor that
    has ended, and its next one clears the same. One that was taken over is left to that, which lets it go on. What cannot be cleared stays.
    """
    boot_id = machine.boot_id()
    for operation in database.unfinished():
        record = database.get(operation.workload)
        if operation.staging is None or not os.path.isdir(operation.staging):
            continue
        if (record is None or not record.adopted) and not lock.is_held(folders.lock(operation.workload)):
            with contextlib.suppress(errors.PerdureError, OSError):
                _clear(operation, boot_id, voice, is_adopted=False)
                database.end(operation)


def _clear(operation: Operation, boot_id: str, voice: Voice, *, is_adopted: bool) -> None:
    run_id = ""
    told = steps.repair(operation.state)
    is_staged = steps.Instruction.REMOVE_STAGING in told
    if operation.staging is not None and is_staged:
        _end_criu(f"{operation.staging}/{_IMAGES}", patience_s=_DYING_S if is_adopted else 0.0)
        if steps.Instruction.KILL_TREE in told and operation.boot_id == boot_id:
            _end_half_restored(os.path.join(operation.staging, "criu", "restore.log"), operation.start_ticks or 0)
    if operation.staging is not None and is_staged and os.path.isdir(operation.staging):
        run_id = run.read_run_id(os.path.join(operation.staging, "criu", "dump.log"))
        netlock.release(run_id)
        _tell(operation.workload, f"clearing away a {operation.kind} that was cut off; what was saved before is untouched", voice)
        shutil.rmtree(operation.staging, ignore_errors=True)
    if operation.pid is not None and operation.start_ticks is not None and operation.boot_id == boot_id:
        left = Tree(operation.pid, operation.start_ticks)
        if is_adopted and steps.Instruction.KILL_TREE not in told:
            _let_go_on(left, run_id, voice)  # it does not end with its supervisor, and may have been left standing still
        else:
            _end(left)


def _tell(name: str, message: str, voice: Voice) -> None:
    voice.warn(name, codes.finding("process-left-behind", name, message), words=message)


def _let_go_on(left: Tree, run_id: str, voice: Voice) -> None:
    """See to it that a tree that outlived its supervisor runs, on its GPUs too."""
    dump.let_go_on(left, run_id)
    _wake(left, voice)


def _wake(left: Tree, voice: Voice) -> None:
    try:
        if gpus.wake(left):
            voice.say(f"GPU memory of process {left.pid} had been moved away: it is back, and the process runs")
    except errors.WorkloadLost as error:
        voice.say(f"{error}; end process {left.pid}, which cannot go on")


def _end_criu(images: str, *, patience_s: float) -> None:
    """End a CRIU that works on the folder `images`; after `patience_s`, in which it may undo what it did."""
    for pid in process.pids():
        with contextlib.suppress(errors.ProcessGone, errors.InputDenied, ProcessLookupError):
            if images not in process.command_line(pid):
                continue
            descriptor = os.pidfd_open(pid)
            try:
                if not select.select([descriptor], [], [], patience_s)[0]:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    select.select([descriptor], [], [], _DYING_S)
            finally:
                os.close(descriptor)


def _end_half_restored(log_path: str, not_before_ticks: int) -> None:
    """End the tree that a CRIU was bringing back when it was ended, by what its log says: it is nobody's child, and waits or runs on."""
    try:
        with open(log_path, "rb") as handle:
            said = handle.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    for found in re.findall(r"PID: real (\d+) virt 1$", said, re.MULTILINE):
        with contextlib.suppress(errors.ProcessGone):
            pid = int(found)
            ticks = process.stat(pid).start_ticks
            # An older process, or one that is no first of a namespace, has the number of one that is gone.
            if ticks >= not_before_ticks and process.status(pid).namespace_pids[1:] == (1,):
                _end(Tree(pid, ticks))


def _end_tree(record: Workload, boot_id: str, voice: Voice, adopting: int | None) -> None:
    if record.pid is None or record.start_ticks is None or record.boot_id != boot_id:
        return
    left = Tree(record.pid, record.start_ticks)
    if not tree.is_alive(left):
        return
    if record.adopted:
        if record.pid == adopting:
            _wake(left, voice)
            return
        _let_go_on(left, "", voice)
        raise errors.WorkloadBusy(
            f"process {record.pid} of {record.name} runs on without its supervisor",
            hint=f"keep it again: perdure run --name {record.name} --adopt {record.pid}; or end it first",
        )
    _tell(record.name, f"ending what a supervisor that was killed left of {record.name}", voice)
    _end(left)


def _end(left: Tree) -> None:
    """Kill what is left of the tree, and wait until it is gone: its PIDs and ports are wanted again."""
    try:
        descriptor = tree.open_pidfd(left)
    except errors.ProcessGone:
        return
    try:
        tree.kill(left)
        if not select.select([descriptor], [], [], _DYING_S)[0]:
            raise errors.WorkloadBusy(
                f"process {left.pid} was killed and does not end", hint="see what holds it, such as a file server that is away: ps -o wchan"
            )
    finally:
        os.close(descriptor)
