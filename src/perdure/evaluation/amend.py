"""Record a change of a locked plan, with its reason. Called by `perdure eval amend`. The lock itself is never written again."""

from __future__ import annotations

import msgspec

from perdure import errors
from perdure.evaluation import canonical, completeness, evidence, lines, paper, standing
from perdure.evaluation import folder as folders
from perdure.evaluation.folder import Folder
from perdure.evaluation.paper import Amendment
from perdure.evaluation.standing import Standing
from perdure.evaluation.this_machine import Signature


def record(folder: Folder, *, reason: str, signed: Signature) -> Amendment:
    """Add an amendment that takes the plan's file as it is now, and return it.

    Raises `errors.UsageError` without a lock, without a change, or for a reason that says nothing; `errors.PlanUnfinished` when the changed
    plan lacks something that a lock asks for (a baseline that is not of the changed workload is recorded instead);
    `errors.PlanChanged` when lock, amendments or baseline were edited; `errors.WorkloadBusy`, and what reading and writing raise.
    """
    for lack in completeness.reason(reason, part="success", key="--reason"):
        raise errors.UsageError(f"--reason: {lack.what}", hint="say why the plan has to change now")
    with folders.at_work(folder):
        found = standing.look(folder)
        _refuse(found)
        amendment = paper.sealed(_amendment(found, reason, signed))
        lines.append(folder.path, folders.AMENDMENTS, msgspec.json.encode(amendment))
        return amendment


def _refuse(found: Standing) -> None:
    if found.problems:
        raise errors.PlanChanged(found.problems[0], hint="an amendment does not mend this: put a copy back")
    if found.lock is None:
        raise errors.UsageError(f"{found.folder.plan} is not locked: change it as you like", hint="perdure eval lock fixes it")
    if not found.unamended:
        raise errors.UsageError(
            f"{found.folder.plan} says what it said: there is nothing to amend", hint="edit the plan first, then record why"
        )
    missing = completeness.check(found.plan)
    if missing:
        raise errors.PlanUnfinished(
            f"the changed plan lacks something: {missing[0].key}: {missing[0].what}", hint=missing[0].remedy, lacks=missing
        )


def _amendment(found: Standing, reason: str, signed: Signature) -> Amendment:
    data = standing.managed_runs(found.log)
    content = canonical.content(found.plan)
    return Amendment(
        number=len(found.amendments) + 1,
        reason=reason,
        old_sha256=found.plan_hashes()[-1],
        new_sha256=canonical.digest(content),
        changes=found.unamended,
        signed=signed,
        data_existed=bool(data),
        managed_runs=len(data),
        lacks=tuple(f"{lack.key}: {lack.what}" for lack in evidence.lacks(found.plan, found.log)),
        previous_sha256=found.newest_sha256,
        plan=content,
    )
