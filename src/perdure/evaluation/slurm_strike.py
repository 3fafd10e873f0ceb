"""Faults of a job on Slurm, done through Slurm itself or by the commands that the site gives. Called by `slurm_run`.

Both arms are struck by the same commands. What Slurm starts is what is struck: the process of the batch script, or all of the job's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

from perdure import errors
from perdure.evaluation import slurm_programs
from perdure.evaluation.plan import Plan
from perdure.model.evaluation import FaultKind

HERE = (FaultKind.KILL, FaultKind.KILL_TREE, FaultKind.NODE_LOST, FaultKind.HANG, FaultKind.PREEMPTION, FaultKind.TIME_LIMIT)
"""The kinds that can be done on Slurm."""
_PREEMPTOR_S = 600
_COMMAND_S = 300.0


def lacks(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield key, what is missing, and the remedy, for each fault of the plan that cannot be done on Slurm as it is."""
    for kind in plan.faults.kinds:
        if kind not in HERE:
            yield "faults.kinds", f"{kind.value} cannot be done to a job on Slurm", f"choose among {', '.join(one.value for one in HERE)}"
    if FaultKind.NODE_LOST in plan.faults.kinds and not plan.site.slurm.lose_node:
        yield "site.slurm.lose_node", "node-lost needs a command that ends a node", "write how this site does it, with {node} for its name"
    if FaultKind.PREEMPTION in plan.faults.kinds and not plan.site.slurm.preemptor:
        yield "site.slurm.preemptor", "preemption needs a job that preempts", 'write the options of sbatch for it: ["--partition=urgent"]'


class Strikes:
    """The faults of one run, and what they leave behind: nodes that are lost, jobs that preempt."""

    def __init__(self, plan: Plan, run_id: str) -> None:
        self._plan = plan
        self._run_id = run_id
        self._lost: list[str] = []
        self._preemptors: list[int] = []

    def strike(self, kind: FaultKind, job: int, node: str) -> dict[str, Any]:
        """Do a fault to the job, which runs on `node`; returns what was done, as data of an event.

        Raises `errors.Unsupported` when it cannot be done, and `errors.SchedulerUnavailable`.
        """
        try:
            return {"way": self._do(kind, job, node), "node": node}
        except slurm_programs.Refused as error:
            raise errors.Unsupported(f"Slurm refused it: {error}") from error

    def _do(self, kind: FaultKind, job: int, node: str) -> str:
        match kind:
            case FaultKind.KILL:
                slurm_programs.run("scancel", "--signal=KILL", "--batch", str(job))
                return f"SIGKILL to the process of the batch script of job {job}"
            case FaultKind.KILL_TREE:
                slurm_programs.run("scancel", "--signal=KILL", "--full", str(job))
                return f"SIGKILL to all processes of job {job}"
            case FaultKind.HANG:
                slurm_programs.run("scancel", "--signal=STOP", "--full", str(job))
                return f"SIGSTOP to all processes of job {job}"
            case FaultKind.NODE_LOST:
                self._lost.append(node)
                _site(self._plan.site.slurm.lose_node, node)
                return f"the site's command that ends node {node}"
            case FaultKind.PREEMPTION:
                return self._preempt(node)
        raise errors.Unsupported(f"{kind.value} cannot be done to a job on Slurm")

    def _preempt(self, node: str) -> str:
        number = slurm_programs.run(
            "sbatch",
            "--parsable",
            *self._plan.site.slurm.preemptor,
            f"--nodelist={node}",
            f"--job-name={self._run_id}",
            "--output=/dev/null",
            f"--wrap=exec sleep {_PREEMPTOR_S}",
        )
        self._preemptors.append(int(number.strip().partition(";")[0]))
        return f"job {self._preemptors[-1]} of a higher priority wants node {node}"

    def is_down(self) -> None:
        """The job has left its node: whoever preempted it is not needed any more."""
        while self._preemptors:
            slurm_programs.cancel(str(self._preemptors.pop()))

    def close(self) -> None:
        """Bring lost nodes back and end what preempts. Raises `errors.EnvironmentUnfit` when a node does not come back."""
        self.is_down()
        while self._lost:
            node = self._lost.pop()
            if self._plan.site.slurm.return_node:
                _site(self._plan.site.slurm.return_node, node)


def _site(command: tuple[str, ...], node: str) -> None:
    """Run one of the site's commands. Raises `errors.EnvironmentUnfit` unless it ends with 0."""
    words = [word.replace("{node}", node) for word in command]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise errors.EnvironmentUnfit(f"{words[0]} did not end within {_COMMAND_S:g} s", hint="correct site.slurm in the plan") from error
    except OSError as error:
        raise errors.EnvironmentUnfit(f"{words[0]} cannot be run: {error.strerror}", hint="correct site.slurm in the plan") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
        raise errors.EnvironmentUnfit(f"{words[0]} ended with {done.returncode}: {said}", hint="correct site.slurm in the plan")
