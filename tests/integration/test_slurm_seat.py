"""The shim and the seat on a real slurmd: what is left alone and says why, steps, requeue and suspension, output files, statuses.

All jobs of one cluster run at the same time, since most of the time is Slurm's.
"""

from __future__ import annotations

import pytest
from cluster import installed, work
from cluster.machine import wait_until
from cluster.shape import Shape
from cluster.slurm import Cluster

pytestmark = pytest.mark.cluster

ALICE = 2001
LONG_S = 400
EVERY = {"PERDURE": "every=2s"}
DONE = ("COMPLETED", "FAILED", "CANCELLED")

ALLOCATION = """\
until [ -e $HOME/allocation.go ]; do sleep 0.2; done
. "$(dirname "$PERDURE_EPOCH_FILE")/allocation.env"
echo "now $SLURM_RESTART_COUNT, then ${BEFORE-}, epoch $(head -n 1 "$PERDURE_EPOCH_FILE"), limit $(ulimit -n)"
"""
WITH_STEPS = """\
echo "ran ${PERDURE_WORKLOAD-alone}"
srun -n 1 sh -c 'echo "step ran ${PERDURE_WORKLOAD-alone}"'
srun -n 1 sh -c 'echo "step ran ${PERDURE_WORKLOAD-alone}: ${PERDURE_UNMANAGED%% (*}"'
"""
STEP = """\
echo "script begins"
srun -n 1 python3 /shared/count.py 60 0.25 5 $HOME/step.starts $HOME/step.go
echo "step ended with $?"
"""


class Jobs:
    """Jobs by name, and what became of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.numbers: dict[str, int] = {}
        self.states: dict[str, str] = {}

    def submit(self, name: str, script: str, *options: str, env: dict[str, str] | None = None) -> int:
        job = self.cluster.submit("alice", script, *work.files(name), *options, env=env)
        self.numbers[name] = job
        return job

    def out(self, name: str, kind: str = "out") -> str:
        return work.written(self.cluster, "alice", name, kind)

    def workload(self, name: str, step: str = "") -> str:
        return f"slurm-lab-{self.numbers[name]}{step}"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    with installed.running(tmp_path_factory.mktemp("cluster"), Shape(nodes=("n1", "n2"))) as cluster:
        work.lay(cluster)
        told = Jobs(cluster)
        _left_alone(told)
        _requeued(told)
        for name, job in told.numbers.items():
            told.states[name] = cluster.wait_state(job, *DONE, timeout_s=LONG_S)
        yield told


def _left_alone(told: Jobs) -> None:
    told.submit("status", "exit 3", env=EVERY)
    told.submit("comment", "echo kept by $PERDURE_WORKLOAD", "--comment=of project x; perdure:every=1h,colour=red")
    told.submit("no-requeue", WITH_STEPS, "--no-requeue", env=EVERY)
    told.submit("no-requeue-comment", WITH_STEPS, "--no-requeue", "--comment=perdure:every=2s")
    told.submit("no-requeue-script", f"#!/bin/bash\n#SBATCH --no-requeue --comment=perdure\n{WITH_STEPS}")
    told.submit("no-requeue-step", f"export PERDURE=1\n{WITH_STEPS}", "--no-requeue")
    told.submit("tasks", "srun -n 2 sh -c 'echo ran in $PERDURE_WORKLOAD'", "--ntasks=2", "--comment=perdure")
    told.submit("never", "echo ran ${PERDURE_WORKLOAD-alone}", "--comment=perdure", env={"PERDURE": "0"})
    told.submit("killed-step", "srun -n 1 sh -c 'kill -USR2 $$'; echo ended with $?", env=EVERY)


def _requeued(told: Jobs) -> None:
    """Requeue one job with a step, one that asks for its allocation, and suspend a third; each when there is a checkpoint of it."""
    cluster = told.cluster
    step = told.submit("step", STEP, "--nodelist=n1", env=EVERY)
    # Emptied by Slurm when it runs again; the other one is appended to.
    allocation = told.submit("allocation", ALLOCATION, "--nodelist=n2", "--propagate=NOFILE", env=EVERY | {"BEFORE": "before"})
    appended = told.submit("appended", work.count(60, 0.25, name="appended", waits=True), "--nodelist=n2", "--open-mode=append", env=EVERY)
    suspended = told.submit("suspended", work.count(60, 0.25, name="suspended", waits=True), "--nodelist=n1", env=EVERY)
    for job, name in ((step, f"{step}.0"), (allocation, allocation), (appended, appended), (suspended, suspended)):
        wait_until(lambda name=name: _has_checkpoint(cluster, name), f"no checkpoint of {name}", timeout_s=LONG_S)
        if job != suspended:
            cluster.head("scontrol", "requeue", str(job), user="alice")
    cluster.head("scontrol", "suspend", str(suspended))
    cluster.wait_state(suspended, "SUSPENDED")
    for job in (step, allocation, appended):
        wait_until(lambda job=job: cluster.job(job).get("Restarts") == "1", f"{job} is not requeued", timeout_s=LONG_S)
    # By now it has stood still for longer than its lease of 15 s lasts: the requeued ones had to end and wait for their turn.
    wait_until(lambda: "life 2" in told.out("allocation", "err"), "the allocation's job does not go on", timeout_s=LONG_S)
    for name in ("allocation", "step", "appended", "suspended"):
        (cluster.home / f"alice/{name}.go").write_text("")
    cluster.head("scontrol", "resume", str(suspended))


def _has_checkpoint(cluster: Cluster, job: object) -> bool:
    folder = cluster.folder / installed.STORE.lstrip("/") / "users" / str(ALICE) / "workloads" / f"slurm-lab-{job}" / "manifests"
    return folder.is_dir() and any(folder.iterdir())


def test_a_status_is_passed_on(jobs):
    assert (jobs.states["status"], jobs.cluster.attempts(jobs.numbers["status"])[0][1]) == ("FAILED", "3:0")


def test_a_comment_opts_in_and_what_is_wrong_in_it_is_told(jobs):
    assert jobs.out("comment") == f"kept by {jobs.workload('comment')}\n"
    said = jobs.out("comment", "err")
    assert "option 'colour=red' is left out" in said
    assert f"{jobs.workload('comment')}, life 1 on n" in said
    assert jobs.states["comment"] == "COMPLETED"


@pytest.mark.parametrize("name", ["no-requeue", "no-requeue-comment", "no-requeue-script"])
def test_a_job_that_may_not_be_requeued_runs_as_ever_with_its_steps_and_says_why_once(jobs, name):
    why = "Slurm does not put this job into its queue again"
    assert (jobs.out(name), jobs.states[name]) == (f"ran alone\nstep ran alone\nstep ran alone: {why}\n", "COMPLETED")
    said = jobs.out(name, "err")
    assert said == f"perdure: {why} (--no-requeue, or JobRequeue=0 in slurm.conf), so that it is not saved; it runs unmanaged\n"


def test_a_step_that_opted_in_by_itself_says_why_it_is_not_saved(jobs):
    assert jobs.out("no-requeue-step").startswith("ran alone\nstep ran alone\nstep ran alone")
    assert set(jobs.out("no-requeue-step", "err").splitlines()) == set(jobs.out("no-requeue", "err").splitlines())


def test_a_step_of_two_tasks_runs_as_ever_and_says_why_once(jobs):
    assert (jobs.out("tasks"), jobs.states["tasks"]) == (f"ran in {jobs.workload('tasks')}\n" * 2, "COMPLETED")
    assert jobs.out("tasks", "err").count("steps of more than one task cannot be saved; this one runs unmanaged") == 1


def test_a_job_that_opts_out_meets_nothing(jobs):
    assert (jobs.out("never"), jobs.out("never", "err")) == ("ran alone\n", "")


def test_a_step_that_a_signal_ended_is_shown_to_slurm_as_that(jobs):
    assert "ended with 140" in jobs.out("killed-step")
    assert "User defined signal 2" in jobs.out("killed-step", "err")


def test_a_step_goes_on_where_it_was_while_its_script_starts_over(jobs):
    lines = jobs.out("step").splitlines(keepends=True)
    numbers = [line for line in lines if line[0].isdigit()]
    assert "".join(work.lines(60).splitlines(keepends=True)[-len(numbers) :]) == "".join(numbers)
    assert lines[-1] == "step ended with 5\n"
    assert (jobs.cluster.home / "alice/step.starts").read_text() == "started\n"
    assert f"{jobs.workload('step', '.0')}, life 2 on n1, restart 1: goes on from" in jobs.out("step", "err")


def test_an_output_file_is_whole_whether_slurm_emptied_it_or_not(jobs):
    assert jobs.states["appended"] == "COMPLETED"
    written = "".join(line for line in jobs.out("appended").splitlines(keepends=True) if not line.startswith(("perdure: ", "slurmstepd")))
    assert written == work.lines(60)
    assert (jobs.cluster.home / "alice/appended.starts").read_text() == "started\n"


def test_a_life_is_told_of_its_own_allocation(jobs):
    assert "now 1, then before, epoch 2, limit " in jobs.out("allocation")


def test_a_suspended_job_goes_on(jobs):
    assert (jobs.states["suspended"], jobs.out("suspended")) == ("COMPLETED", work.lines(60))
    assert jobs.cluster.attempts(jobs.numbers["suspended"])[0][0] == "COMPLETED"
    assert (jobs.cluster.home / "alice/suspended.starts").read_text() == "started\n"
