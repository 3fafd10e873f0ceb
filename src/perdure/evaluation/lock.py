"""Fix a plan, once, before there are data. Called by `perdure eval lock`."""

from __future__ import annotations

import platform

import msgspec

from perdure import errors
from perdure._version import __version__
from perdure.evaluation import canonical, completeness, evidence, paper, standing, this_machine
from perdure.evaluation import folder as folders
from perdure.evaluation.completeness import Lack
from perdure.evaluation.folder import Folder
from perdure.evaluation.paper import Lock
from perdure.evaluation.standing import Standing
from perdure.evaluation.this_machine import Signature


def lacks(found: Standing) -> tuple[Lack, ...]:
    """Return all that a plan still lacks, the measured baseline included; none means that it can be locked."""
    return (*completeness.check(found.plan), *evidence.lacks(found.plan, found.log))


def fix(folder: Folder, *, signed: Signature) -> Lock:
    """Write the lock and return it. It appears whole or not at all.

    Raises `errors.UsageError` when there is one or when managed data exist, `errors.PlanUnfinished` with what the plan lacks,
    `errors.PlanChanged` where there was a lock once, `errors.WorkloadBusy` while another command is at work here, and what reading and
    writing raise.
    """
    with folders.at_work(folder):
        found = standing.look(folder)
        refuse_late(found)
        missing = lacks(found)
        if missing:
            raise errors.PlanUnfinished(
                f"{folder.plan} cannot be locked yet: {len(missing)} {'thing is' if len(missing) == 1 else 'things are'} missing",
                hint=f"first: {missing[0].key}: {missing[0].what}; {missing[0].remedy}",
                lacks=missing,
            )
        lock = paper.sealed(_record(found, signed))
        folders.create(folder, folders.LOCK, msgspec.json.format(msgspec.json.encode(lock), indent=2) + b"\n")
        return lock


def refuse_late(found: Standing) -> None:
    """Refuse a second lock, and one that comes after data that a number could be fitted to.

    Raises `errors.UsageError`, and `errors.PlanChanged` where there was a lock once.
    """
    if found.lock is not None:
        raise errors.UsageError(
            f"{found.folder.plan} was locked on {this_machine.utc(found.lock.signed.at_unix_s)} by {found.lock.signed.user}",
            hint="record a change with perdure eval amend --reason '…'",
        )
    data = standing.managed_runs(found.log)
    if data:
        raise errors.UsageError(
            f"{found.folder.runs} holds managed data already (run {data[0].id}): numbers that are fixed now prove nothing",
            hint="begin a new evaluation in another folder: perdure eval init --dir NEW",
        )
    if found.problems:
        raise errors.PlanChanged(found.problems[0], hint="put a copy back; a plan is locked once")
    orphans = folders.raw_ids(found.folder) - {run.id for run in found.log.runs}
    if orphans:
        raise errors.UsageError(
            f"{found.folder.raw / min(orphans)} belongs to no recorded run: nobody can tell whether it holds managed data",
            hint="perdure eval baseline records what was interrupted; else begin in another folder",
        )


def _record(found: Standing, signed: Signature) -> Lock:
    content = canonical.content(found.plan)
    baseline = evidence.summarise(found.folder, found.plan, found.log)
    return Lock(
        format=paper.FORMAT,
        name=found.plan.header.name,
        plan_sha256=canonical.digest(content),
        workload_sha256=canonical.workload_hash(found.plan),
        signed=signed,
        versions=_versions(found),
        baseline=baseline,
        plan=content,
    )


def _versions(found: Standing) -> dict[str, str]:
    newest = [run for run in found.log.runs if run.purpose == "baseline"][-1].environment
    recorded = {"kernel": newest.kernel, "criu": newest.criu_version, "driver": newest.driver_version, "cuda": newest.cuda_version}
    known = {name: version for name, version in recorded.items() if version is not None}
    return {"perdure": __version__, "python": platform.python_version()} | known | newest.versions
