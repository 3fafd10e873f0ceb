"""How an evaluation stands: its plan, its lock, its amendments, and whether they still belong together. Every command begins here.

The plan's file must say what the lock says, or the last amendment. Found here are a plan that was edited without an amendment, a lock or an
amendment that was edited, a run of the baseline that was changed, and a run that was made under a plan that nobody recorded. `require`
refuses them, `look` reports them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from perdure import errors
from perdure.evaluation import canonical, evidence, paper
from perdure.evaluation import folder as folders
from perdure.evaluation import plan as plans
from perdure.evaluation.folder import Folder, RunLog
from perdure.evaluation.paper import Amendment, Amendments, Change, Lock
from perdure.evaluation.plan import Plan
from perdure.model.evaluation import Arm, Run


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written, read once."""

    folder: Folder
    plan: Plan
    """As the file says now."""
    plan_sha256: str
    lock: Lock | None
    amendments: tuple[Amendment, ...]
    log: RunLog
    unamended: tuple[Change, ...]
    """What the plan's file says otherwise than the lock and its amendments."""
    problems: tuple[str, ...]
    """What was changed in the lock, the amendments or the baseline's runs, one line each."""
    newest_sha256: str
    """Of what was written last: the line of the last amendment, else the lock's file; '' without a lock."""
    torn_amendments: int

    @property
    def is_locked(self) -> bool:
        """Whether there is a lock."""
        return self.lock is not None

    @property
    def is_sound(self) -> bool:
        """Whether plan, lock, amendments and baseline belong together."""
        return not self.unamended and not self.problems

    def plan_hashes(self) -> tuple[str, ...]:
        """Return the hashes of the plan as it was locked and after each amendment, in order."""
        return () if self.lock is None else (self.lock.plan_sha256, *(each.new_sha256 for each in self.amendments))

    def plan_contents(self) -> dict[str, dict[str, Any]]:
        """Return what the plan said when it was locked and after each amendment, by its hash."""
        if self.lock is None:
            return {}
        return {self.lock.plan_sha256: self.lock.plan} | {each.new_sha256: each.plan for each in self.amendments}


def look(folder: Folder) -> Standing:
    """Read how an evaluation stands, whatever it finds. Nothing is written.

    Raises what reading raises: `errors.InputMissing`, `errors.InputFormat`, `errors.LinkInPath`, `errors.InputDenied`.
    """
    plan = plans.load(folder.plan)
    found = paper.read_lock(folder)
    amendments = paper.read_amendments(folder)
    log = folders.read_runs(folder)
    lock, lock_sha256 = found if found is not None else (None, "")
    now = canonical.content(plan)
    return Standing(
        folder=folder,
        plan=plan,
        plan_sha256=canonical.digest(now),
        lock=lock,
        amendments=amendments.items,
        log=log,
        unamended=() if lock is None else _unamended(lock, amendments, now),
        problems=tuple(_problems(lock, lock_sha256, amendments, log)),
        newest_sha256=amendments.sha256s[-1] if amendments.sha256s else lock_sha256,
        torn_amendments=amendments.torn,
    )


def require(folder: Folder) -> Standing:
    """Read how an evaluation stands, locked or not, and refuse one that was tampered with.

    Raises `errors.PlanChanged`, and what `look` raises.
    """
    found = look(folder)
    if found.problems:
        raise errors.PlanChanged(f"{found.problems[0]}", hint="put a copy back; what is locked is changed by perdure eval amend alone")
    if found.unamended:
        keys = ", ".join(change.key for change in found.unamended)
        raise errors.PlanChanged(
            f"{folder.plan} was changed after the lock, and no amendment says why: {keys}",
            hint="take the change back, or record it: perdure eval amend --reason '…'",
        )
    return found


def require_locked(folder: Folder) -> Standing:
    """Read how a locked evaluation stands. Raises `errors.PlanUnfinished` when there is no lock yet, and what `require` raises."""
    found = require(folder)
    if found.lock is None:
        raise errors.PlanUnfinished(f"{folder.plan} is not locked", hint="perdure eval lock fixes it, before there are data")
    return found


def managed_runs(log: RunLog) -> tuple[Run, ...]:
    """Return the runs that show something about the result: every run of an arm, and every managed one but those of a matrix."""
    return tuple(run for run in log.runs if run.purpose == "arms" or (run.arm is Arm.MANAGED and run.purpose != "matrix"))


def _unamended(lock: Lock, amendments: Amendments, now: dict[str, Any]) -> tuple[Change, ...]:
    return paper.diff(amendments.items[-1].plan if amendments.items else lock.plan, now)


def _problems(lock: Lock | None, lock_sha256: str, amendments: Amendments, log: RunLog) -> Iterator[str]:
    if lock is None:
        if amendments.items:
            yield "the lock is gone: there are amendments to it"
        elif any(run.purpose == "arms" for run in log.runs):
            yield "the lock is gone: there are runs that were made under it"
        return
    if not paper.is_whole(lock) or canonical.digest(lock.plan) != lock.plan_sha256:
        yield "the lock was edited: it does not have the hash that it names"
    before_sha256, before = lock_sha256, lock.plan_sha256
    content = lock.plan
    for number, (each, sha256) in enumerate(zip(amendments.items, amendments.sha256s, strict=True), 1):
        if (each.number, each.old_sha256, each.previous_sha256) != (number, before, before_sha256):
            yield f"amendment {number} does not follow what stands before it: an amendment or the lock was edited or removed"
        elif not paper.is_whole(each) or canonical.digest(each.plan) != each.new_sha256 or paper.diff(content, each.plan) != each.changes:
            yield f"amendment {number} was edited: it does not have the hash that it names"
        before_sha256, before, content = sha256, each.new_sha256, each.plan
    yield from evidence.changed(lock.baseline, log)
    known = {lock.plan_sha256, *(each.new_sha256 for each in amendments.items)}
    for run in log.runs:
        if run.purpose == "arms" and run.plan_hash not in known:
            yield f"run {run.id} was made under a plan that neither the lock nor an amendment records"
            return
