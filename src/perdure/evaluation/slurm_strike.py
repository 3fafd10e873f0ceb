"""Faults of a job on Slurm, done through Slurm itself or by the commands that the site gives. Called by `slurm_striking`.

Both arms are struck by the same commands. What Slurm starts is what is struck: the process of the batch script, or all of the job's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

from perdure import errors
from perdure.evaluation import slurm_programs
from perdure.evaluation.plan import Plan
from perdure.model.evaluation import Arm, FaultKind

_PREEMPTOR_S = 600
_COMMAND_S = 300.0
_SIGNALS = {
    FaultKind.KILL: ("KILL", "--batch", "the process of the batch script"),
    FaultKind.KILL_TREE: ("KILL", "--full", "all processes"),
    FaultKind.HANG: ("STOP", "--full", "all processes"),
}
_BY_SITE = {
    FaultKind.NODE_LOST: ("lose_node", "ends a node"),
    FaultKind.OUT_OF_MEMORY: ("exhaust_memory", "lets a job's memory run out"),
    FaultKind.DISK_FULL: ("fill_disk", "fills a job's disk"),
    FaultKind.AGENT_KILLED: ("kill_agent", "ends Perdure's process of a job"),
}
"""What Slurm cannot do: the key of the site's command for it, and what that does."""


def lacks(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield key, what is missing, and the remedy, for each fault of the plan that cannot be done on Slurm as it is."""
    for kind, (key, what) in _BY_SITE.items():
        if kind in plan.faults.kinds and not getattr(plan.site.slurm, key):
            remedy = "write how this site does it, with {node} and {job} for their names"
            yield f"site.slurm.{key}", f"{kind.value} needs a command that {what}", remedy
    if FaultKind.DISK_FULL in plan.faults.kinds and not plan.site.slurm.free_disk:
        yield "site.slurm.free_disk", "disk-full needs a command that empties the disk again", "write how this site does it"
    if FaultKind.PREEMPTION in plan.faults.kinds and not plan.site.slurm.preemptor:
        yield "site.slurm.preemptor", "preemption needs a job that preempts", 'write the options of sbatch for it: ["--partition=urgent"]'


class Strikes:
    """The faults of one run of `arm`, and what they leave behind: nodes that are lost, disks that are full, jobs that preempt."""

    def __init__(self, plan: Plan, arm: Arm, run_id: str) -> None:
        self._site = plan.site.slurm
        self._arm = arm
        self._run_id = run_id
        self._lost: list[str] = []
        self._full: list[tuple[str, int]] = []
        self._preemptors: list[int] = []

    def strike(self, kind: FaultKind, job: int, node: str) -> dict[str, Any]:
        """Do a fault to the job, which runs on `node`; returns what was done, as data of an event.

        Raises `errors.Unsupported` when it cannot be done, and `errors.SchedulerUnavailable`.
        """
        aside = {"comparable": False} if kind is FaultKind.AGENT_KILLED else {}
        try:
            return {"way": self._do(kind, job, node), "node": node} | aside
        except slurm_programs.Refused as error:
            raise errors.Unsupported(f"Slurm refused it: {error}") from error

    def _do(self, kind: FaultKind, job: int, node: str) -> str:
        if kind in _SIGNALS:
            return _signal(kind, job)
        if kind is FaultKind.AGENT_KILLED and self._arm is Arm.UNMANAGED:
            return f"no agent here: {_signal(FaultKind.KILL, job)}"
        if kind in _BY_SITE:
            return self._by_site(kind, job, node)
        if kind is FaultKind.PREEMPTION:
            return self._preempt(node)
        raise errors.Unsupported(f"{kind.value} is Slurm's own to do")

    def _by_site(self, kind: FaultKind, job: int, node: str) -> str:
        key, what = _BY_SITE[kind]
        if kind is FaultKind.NODE_LOST:
            self._lost.append(node)
        elif kind is FaultKind.DISK_FULL:
            self._full.append((node, job))
        _run(getattr(self._site, key), node, job)
        return f"the site's command that {what}: job {job} on {node}"

    def _preempt(self, node: str) -> str:
        number = slurm_programs.run(
            "sbatch",
            "--parsable",
            *self._site.preemptor,
            f"--nodelist={node}",
            f"--job-name={self._run_id}",
            "--output=/dev/null",
            f"--wrap=exec sleep {_PREEMPTOR_S}",
        )
        self._preemptors.append(int(number.strip().partition(";")[0]))
        return f"job {self._preemptors[-1]} of a higher priority wants node {node}"

    def is_down(self) -> None:
        """The job has left its node: whoever preempted it is not needed any more, and its disk is to be empty when it runs again."""
        while self._preemptors:
            slurm_programs.cancel(str(self._preemptors.pop()))
        self.free_disks()

    def free_disks(self) -> None:
        """Empty the disks that were filled. Raises `errors.EnvironmentUnfit` when that fails."""
        while self._full:
            _run(self._site.free_disk, *self._full.pop())

    def close(self) -> None:
        """Bring lost nodes back, empty disks and end what preempts. Raises `errors.EnvironmentUnfit` when a node does not come back."""
        self.is_down()
        while self._lost:
            node = self._lost.pop()
            if self._site.return_node:
                _run(self._site.return_node, node, 0)


def _signal(kind: FaultKind, job: int) -> str:
    name, of, to = _SIGNALS[kind]
    slurm_programs.run("scancel", f"--signal={name}", of, str(job))
    return f"SIG{name} to {to} of job {job}"


def _run(command: tuple[str, ...], node: str, job: int) -> None:
    """Run one of the site's commands. Raises `errors.EnvironmentUnfit` unless it ends with 0."""
    words = [word.replace("{node}", node).replace("{job}", str(job)) for word in command]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise errors.EnvironmentUnfit(f"{words[0]} did not end within {_COMMAND_S:g} s", hint="correct site.slurm in the plan") from error
    except OSError as error:
        raise errors.EnvironmentUnfit(f"{words[0]} cannot be run: {error.strerror}", hint="correct site.slurm in the plan") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
        raise errors.EnvironmentUnfit(f"{words[0]} ended with {done.returncode}: {said}", hint="correct site.slurm in the plan")
