"""What would prevent a checkpoint of a user's own process, or restoring one here. Called by `deeds`.

Findings name files, descriptors and connections of every process in the tree, so that each of them has to be that user's.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from perdure import errors
from perdure.agent.asked import Check, CheckRestore
from perdure.agent.site import Site
from perdure.base.proc import process
from perdure.checkpoint.criu import locate
from perdure.checkpoint.criu.run import Criu
from perdure.checkpoint.cuda.helper import Helper
from perdure.checkpoint.host import gpu
from perdure.checkpoint.preflight import cpu, gpu_states
from perdure.checkpoint.preflight import restore as preflight
from perdure.checkpoint.preflight import save as saving
from perdure.checkpoint.preflight.plan import DISKS, Plan
from perdure.model.checkpoint import CheckpointId, Owner
from perdure.model.finding import Finding
from perdure.store.repository import Repository
from perdure.supervisor import foresight
from perdure.supervisor.record import LIVE, State, Workload


def save(site: Site, owner: Owner, wanted: Check, known: Workload | None) -> tuple[int, tuple[Finding, ...]]:
    """Return the process that `wanted` means, and what would prevent saving its tree: of the workload `known`, or of a process of `owner`.

    Raises `errors.WorkloadMissing` for a process that is not there, or is another user's: which of them is not told.
    """
    criu, refusal = _criu(site)
    plan = Plan(
        criu=criu,
        criu_refusal=str(refusal) if refusal else None,
        criu_remedy=refusal.hint if refusal else None,
        staging=site.values["staging"].value,
        disks=(str(site.folders.state), *DISKS),
        store=site.place_of(owner).url,
        outputs=(*wanted.outputs, *(known.options.outputs if known else ())),
        tcp=known.options.tcp if known else wanted.tcp,
        owner=owner if owner.uid else None,
        is_suspended=known is not None and known.state is State.SUSPENDED,
    )
    if known is not None:
        if known.state not in LIVE or known.pid is None:
            raise errors.WorkloadMissing(f"{known.name} is not running: {known.state.value}", hint="perdure ps tells how each workload is")
        foreign = _foreign(known.pid, owner, besides=known.pid)
        if foreign is not None:
            raise errors.Unsupported(
                f"process {foreign} of {known.name} has other rights than yours, as set-uid programs have: it is not looked into",
                hint="no checkpoint is made while it runs",
            )
        return known.pid, _look(known.pid, plan)
    if wanted.pid is None or wanted.start_ticks is None or wanted.pid < 1:
        raise errors.UsageError("name one thing to check", hint="perdure check NAME, or perdure check PID")
    return wanted.pid, _of_process(wanted.pid, wanted.start_ticks, owner, plan)


def _look(pid: int, plan: Plan) -> tuple[Finding, ...]:
    with Helper() as helper:
        return saving.check(pid, msgspec.structs.replace(plan, ask_gpu=gpu_states.asker(helper)))


def _of_process(pid: int, start_ticks: int, owner: Owner, plan: Plan) -> tuple[Finding, ...]:
    gone = errors.WorkloadMissing(f"there is no process {pid} of yours", hint="see ps -ef")
    with contextlib.ExitStack() as stack:
        try:
            held = os.pidfd_open(pid)
        except OSError as error:
            raise gone from error
        stack.callback(os.close, held)
        try:
            if process.stat(pid).start_ticks != start_ticks:
                raise gone
            _require_own(pid, owner, gone)
            found = _look(pid, plan)
            _require_own(pid, owner, gone)  # while it was looked at, one of them may have run a set-uid program
        except errors.ProcessGone as error:
            raise gone from error
    return found


def _require_own(pid: int, owner: Owner, gone: errors.WorkloadMissing) -> None:
    """Raise `gone` unless every process of the tree of `pid` is the owner's."""
    if _foreign(pid, owner) is not None:
        raise gone


def _foreign(pid: int, owner: Owner, *, besides: int | None = None) -> int | None:
    """Return a process of the tree of `pid`, but for `besides`, that is not of `owner` in each of its ids, or has capabilities.

    None: there is none. Raises `errors.ProcessGone` when `pid` is gone.
    """
    if owner.uid == 0:
        return None
    for each in (pid, *process.descendants(pid)):
        if each == besides:
            continue
        try:
            status = process.status(each)
        except errors.ProcessGone:
            if each == pid:
                raise
            continue
        if set(status.uids) != {owner.uid} or status.capabilities:
            return each
    return None


def restore(site: Site, owner: Owner, repository: Repository, chosen: CheckpointId, wanted: CheckRestore) -> tuple[Finding, ...]:
    """Return what would prevent restoring `chosen` of `repository`, which is that of `owner`, as `wanted`. Raises a store's errors."""
    criu, refusal = _criu(site)
    plan = preflight.RestorePlan(
        criu=criu,
        criu_refusal=str(refusal) if refusal else None,
        criu_remedy=refusal.hint if refusal else None,
        cpu=wanted.cpu_check or cpu.chosen(str(site.values["cpu-check"].value), site.values["cpu-check"].origin),
        staging=site.values["staging"].value,
        disks=(str(site.folders_of(owner).state), *DISKS),
        owner=owner if owner.uid else None,
        variables=gpu.as_variables(wanted.cuda_visible),
    )
    return foresight.check(repository, chosen, plan)


def _criu(site: Site) -> tuple[Criu | None, errors.EnvironmentUnfit | None]:
    """Return the CRIU that works here, or why there is none."""
    try:
        return locate.find(site.criu()), None
    except errors.EnvironmentUnfit as error:
        return None, error
