"""The shim and the seat on a real slurmd: what is left alone and says why, steps, requeue, hold and suspension, signals, output, statuses.

All jobs of one cluster run at the same time, since most of the time is Slurm's.
"""

from __future__ import annotations

import json
import re

import pytest
from cluster import installed, work
from cluster.machine import wait_until
from cluster.slurm import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

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
# Whoever is not meant by a signal, and gets it, ends of it.
SIGNALLED = """\
for name in HUP ALRM USR1 USR2 40; do
    trap "echo script got $name in life "'$(head -n 1 "$PERDURE_EPOCH_FILE")' $name
done
sh -c 'until [ -e $HOME/NAME.go ]; do sleep 0.2; done' &
child=$!
echo script begins
until [ -e $HOME/NAME.go ]; do sleep 0.2; done
wait $child
echo "child ended with $?"
"""
_HEED = """\
import os, signal, sys, time
came = []
signal.signal(signal.SIGUSR1, lambda number, _frame: came.append(number))
print("step begins", flush=True)
while not (came and os.path.exists(sys.argv[1])):
    time.sleep(0.2)
print("step was warned", flush=True)
"""
WARNED_S = 1800
"""Before the end of their time, jobs have themselves warned: long before they would leave by themselves, also on a busy machine."""
STALL_S = 6
"""The store does not answer for so long: more than a preemption leaves in the partition without grace, KillWait alone."""
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
        self.held: dict[str, str] = {}
        """What Slurm showed of the job on hold, while others went on."""
        self.left_of_held: list[str] = []
        """What ran of it then."""
        self.overviews: list[dict] = []
        """What `perdure slurm status` told: before the requeues, after them, and of all at the end."""
        self.said_of_grace = ""
        """What the job says whose checkpoint took too long."""
        self.table = ""
        """The first of them, for people."""

    def submit(self, name: str, script: str, *options: str, env: dict[str, str] | None = None) -> int:
        job = self.cluster.submit("alice", script, *work.files(name), *options, env=env)
        self.numbers[name] = job
        return job

    def out(self, name: str, kind: str = "out") -> str:
        return work.written(self.cluster, "alice", name, kind)

    def workload(self, name: str, step: str = "") -> str:
        return f"slurm-lab-{self.numbers[name]}{step}"

    def checkpoints(self, name: str) -> list[str]:
        name, dot, step = name.partition(".")
        return work.checkpoints(self.cluster, ALICE, f"{self.numbers[name]}{dot}{step}")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    with installed.running(tmp_path_factory.mktemp("cluster")) as cluster:
        work.lay(cluster)
        (cluster.shared / "heed.py").write_text(_HEED)
        cluster.head("scontrol", "update", "PartitionName=managed", "GraceTime=0")
        told = Jobs(cluster)
        # It must find its node empty; the other two come later, and want it too.
        told.submit("alone", work.count(60, 0.25, name="alone", waits=True), "--nodelist=n3", "--exclusive", "-p", "managed", env=EVERY)
        cluster.wait_state(told.numbers["alone"], "RUNNING")
        told.submit("beside", "sleep 2", "--nodelist=n3", env=EVERY)
        _left_alone(told)
        # It needs two processors of one node, which those that follow do not leave, and what waits behind it would wait for ever.
        cluster.wait_state(told.numbers["tasks"], *DONE, timeout_s=LONG_S)
        _moved(told)
        for name, job in told.numbers.items():
            told.states[name] = cluster.wait_state(job, *DONE, timeout_s=LONG_S)
        told.overviews.append(_overview(cluster, "--all"))
        yield told


def _left_alone(told: Jobs) -> None:
    told.submit("status", "exit 3", env=EVERY)
    told.submit("comment", "echo kept by $PERDURE_WORKLOAD", "--comment=of project x; perdure:every=1h,colour=red")
    told.submit("looks", 'perdure ps --json "$PERDURE_WORKLOAD"', "--nodelist=n1", env=EVERY)
    told.submit("no-requeue", WITH_STEPS, "--no-requeue", env=EVERY)
    told.submit("no-requeue-comment", WITH_STEPS, "--no-requeue", "--comment=perdure:every=2s")
    told.submit("no-requeue-script", f"#!/bin/bash\n#SBATCH --no-requeue --comment=perdure\n{WITH_STEPS}")
    told.submit("no-requeue-step", f"export PERDURE=1\n{WITH_STEPS}", "--no-requeue")
    told.submit("tasks", "srun -n 2 sh -c 'echo ran in $PERDURE_WORKLOAD'", "--ntasks=2", "--nodes=1", "--comment=perdure")
    told.submit("never", "echo ran ${PERDURE_WORKLOAD-alone}", "--comment=perdure", env={"PERDURE": "0"})
    told.submit("killed-step", "srun -n 1 sh -c 'kill -USR2 $$'; echo ended with $?", env=EVERY)


def _moved(told: Jobs) -> None:
    """Requeue, hold, suspend and warn jobs, each when there is a checkpoint of it, and let them end when they have gone on."""
    cluster = told.cluster
    told.submit("step", STEP, "--nodelist=n1", env=EVERY)
    # Emptied by Slurm when it runs again; the other one is appended to.
    told.submit("allocation", ALLOCATION, "--nodelist=n2", "--propagate=NOFILE", env=EVERY | {"BEFORE": "before"})
    told.submit("appended", work.count(60, 0.25, name="appended", waits=True), "--nodelist=n2", "--open-mode=append", env=EVERY)
    # Its words are kept if it comes to run a second time, which it must not.
    told.submit("suspended", work.count(60, 0.25, name="suspended", waits=True), "--nodelist=n1", "--open-mode=append", env=EVERY)
    told.submit("held", work.count(60, 0.25, name="held", waits=True), "--nodelist=n1", env=EVERY)
    told.submit("signalled", SIGNALLED.replace("NAME", "signalled"), "--nodelist=n1", env=EVERY)
    told.submit("warned", SIGNALLED.replace("NAME", "warned"), "--nodelist=n2", f"--signal=B:USR1@{WARNED_S}", "--time=120", env=EVERY)
    heed = "srun -n 1 python3 /shared/heed.py $HOME/warned-step.go"
    told.submit("warned-step", heed, f"--signal=USR1@{WARNED_S}", "--time=120", env=EVERY)
    for name in ("step.0", "allocation", "appended", "suspended", "held", "signalled", "warned", "warned-step.0", "alone"):
        wait_until(lambda name=name: told.checkpoints(name), f"no checkpoint of {name}", timeout_s=LONG_S)
    told.overviews.append(_overview(cluster))
    told.table = cluster.head("perdure", "slurm", "status", env={"COLUMNS": "200"}).stdout
    _warn(told)
    for name in ("HUP", "ALRM", "40"):
        _signal(told, name, "life 1")
    # The last one that a requeue asks for may come too late, and it goes back to the one before.
    _save_anew(told, "signalled")
    _stall_store(told)
    requeued = ("step", "allocation", "appended", "signalled", "alone")
    for name in requeued:
        cluster.head("scontrol", "requeue", str(told.numbers[name]), user="alice")
    cluster.head("scontrol", "requeuehold", str(told.numbers["held"]), user="alice")
    cluster.head("scontrol", "suspend", str(told.numbers["suspended"]))
    cluster.wait_state(told.numbers["suspended"], "SUSPENDED")
    for name in (*requeued, "held"):
        job = told.numbers[name]
        wait_until(lambda job=job: cluster.job(job).get("Restarts") == "1", f"{name} is not requeued", timeout_s=LONG_S)
    # By now it has stood still for longer than its lease of 15 s lasts: the requeued ones had to end and wait for their turn.
    for name in requeued:
        begun = f"{told.workload(name, '.0' if name == 'step' else '')}, life 2"
        wait_until(lambda name=name, begun=begun: begun in told.out(name, "err"), f"{name} does not go on", timeout_s=LONG_S)
    told.overviews.append(_overview(cluster))
    cluster.wait_state(told.numbers["held"], "PENDING", timeout_s=LONG_S)
    told.held = cluster.job(told.numbers["held"])
    told.left_of_held = [line for line in cluster.processes("n1", "alice") if "held.starts" in line]
    cluster.head("scontrol", "release", str(told.numbers["held"]), user="alice")
    _signal(told, "USR2", "life 2")
    wait_until(lambda: "USR1" in told.out("warned"), "it is not warned", timeout_s=LONG_S)
    for name in (*requeued, "held", "suspended", "warned", "warned-step"):
        (cluster.home / f"alice/{name}.go").write_text("")
    cluster.head("scontrol", "resume", str(told.numbers["suspended"]))


def _warn(told: Jobs) -> None:
    """Leave half an hour at most to the two jobs that want to be warned then: Slurm looks for such jobs twice a minute."""
    for name in ("warned", "warned-step"):
        wait_until(lambda name=name: "begins" in told.out(name), f"{name} does not begin", timeout_s=LONG_S)
        hours, minutes, _seconds = map(int, told.cluster.job(told.numbers[name])["RunTime"].split(":"))
        limit = f"TimeLimit={hours * 60 + minutes + WARNED_S // 60}"
        told.cluster.head("scontrol", "update", f"JobId={told.numbers[name]}", limit, user="alice")


def _signal(told: Jobs, name: str, when: str) -> None:
    """Send a signal to a script as its user does, and wait until it came."""
    told.cluster.head("scancel", f"--signal={name}", "--batch", str(told.numbers["signalled"]), user="alice")
    wait_until(lambda: f"{name} in {when}" in told.out("signalled"), f"no {name}", timeout_s=LONG_S)


def _save_anew(told: Jobs, name: str) -> None:
    """Wait until there is a checkpoint that was begun after now: the next one may be under way."""
    begun = told.checkpoints(name)[-1:]
    wait_until(lambda: len([one for one in told.checkpoints(name) if [one] > begun]) > 1, f"no more of {name}", timeout_s=LONG_S)


def _stall_store(told: Jobs) -> None:
    """Let the shared folder of n3 not answer for a while: the checkpoint that is being made there, or begins, takes so long."""
    server = "$(cat /run/node/serves-shared)"
    # In one go: the lease of its job is not to run out meanwhile.
    told.cluster.run("n3", "sh", "-c", f"kill -STOP {server}; sleep {STALL_S}; kill -CONT {server}", cwd="/")
    wait_until(lambda: "a preemption leaves" in told.out("alone", "err"), "it does not warn", timeout_s=LONG_S)
    told.said_of_grace = told.out("alone", "err")


def _overview(cluster: Cluster, *more: str) -> dict:
    return json.loads(cluster.head("perdure", "slurm", "status", "--json", *more).stdout)


def test_a_status_is_passed_on(jobs):
    assert (jobs.states["status"], jobs.cluster.attempts(jobs.numbers["status"])[0][1]) == ("FAILED", "3:0")


def test_a_comment_opts_in_and_what_is_wrong_in_it_is_told(jobs):
    assert jobs.out("comment") == f"kept by {jobs.workload('comment')}\n"
    said = jobs.out("comment", "err")
    assert "option 'colour=red' is left out" in said
    assert f"{jobs.workload('comment')}, life 1 on n" in said
    assert jobs.states["comment"] == "COMPLETED"


def test_a_job_sees_itself(jobs):
    (one,) = json.loads(jobs.out("looks"))["workloads"]
    assert (one["name"], one["state"], one["epoch"]) == (jobs.workload("looks"), "running", 1)


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
    said = jobs.out("tasks", "err")
    assert (jobs.out("tasks"), jobs.states["tasks"]) == (f"ran in {jobs.workload('tasks')}\n" * 2, "COMPLETED"), said
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
    assert jobs.cluster.attempts(jobs.numbers["suspended"])[0][0] == "COMPLETED", jobs.out("suspended", "err")
    assert (jobs.cluster.home / "alice/suspended.starts").read_text() == "started\n"


def test_a_job_that_is_held_waits_and_goes_on_as_itself_when_it_is_released(jobs):
    assert (jobs.held["JobState"], jobs.held["Priority"]) == ("PENDING", "0")
    assert jobs.left_of_held == []
    assert (jobs.states["held"], jobs.out("held")) == ("COMPLETED", work.lines(60))
    assert [attempt[0] for attempt in jobs.cluster.attempts(jobs.numbers["held"])] == ["REQUEUED", "COMPLETED"]
    assert (jobs.cluster.home / "alice/held.starts").read_text() == "started\n"


@pytest.mark.parametrize(
    ("name", "came"),
    [("warned", ["USR1 in life 1"]), ("signalled", ["HUP in life 1", "ALRM in life 1", "40 in life 1", "USR2 in life 2"])],
)
def test_a_script_gets_the_signals_that_are_meant_for_it_once_and_alone_in_each_life(jobs, name, came):
    assert [line for line in jobs.out(name).splitlines() if "got" in line] == [f"script got {one}" for one in came]
    assert "child ended with 0" in jobs.out(name), "what the script started was not meant"
    assert jobs.states[name] == "COMPLETED"


def test_a_step_that_has_itself_warned_gets_its_signal_and_its_script_does_not(jobs):
    assert "step was warned" in jobs.out("warned-step")
    assert jobs.states["warned-step"] == "COMPLETED", jobs.out("warned-step", "err")


def test_a_job_that_has_its_node_for_itself_has_it_for_itself_in_each_life(jobs):
    assert (jobs.states["alone"], jobs.out("alone")) == ("COMPLETED", work.lines(60))
    assert (jobs.cluster.home / "alice/alone.starts").read_text() == "started\n"
    ran = {name: _times(jobs, jobs.numbers[name]) for name in ("alone", "beside")}
    assert len(ran["alone"]) == 2
    assert not [(one, other) for one in ran["alone"] for other in ran["beside"] if one[0] < other[1] and other[0] < one[1]], ran


def _times(jobs: Jobs, number: int) -> list[tuple[str, str]]:
    """Return when each attempt of a job, which is over, began and ended."""
    jobs.cluster.attempts(number)  # waits for the accounting
    words = ("sacct", "-a", "-D", "-X", "-n", "-P", "-S", "2020-01-01", "-j", str(number), "-o", "Start,End")
    return [tuple(line.split("|")) for line in jobs.cluster.head(*words).stdout.splitlines()]


def test_a_checkpoint_that_takes_longer_than_a_preemption_leaves_is_warned_of_once(jobs):
    (warning,) = [line for line in jobs.said_of_grace.splitlines() if "a preemption leaves" in line]
    found = re.fullmatch(
        r"perdure: a checkpoint took (\d\S*), a preemption leaves 2s: it cannot be saved then, and goes back to the checkpoint before",
        warning,
    )
    assert found, warning


def test_the_overview_tells_of_nodes_jobs_lives_and_checkpoints(jobs):
    before, after, end = jobs.overviews
    for name, node in (("step", "n1"), ("allocation", "n2"), ("suspended", "n1"), ("alone", "n3")):
        number, step = jobs.numbers[name], "0" if name == "step" else "batch"
        (one,) = [job for job in before["jobs"] if (job["job"], job["step"]) == (number, step)]
        assert (one["cluster"], one["uid"], one["node"], one["epoch"], one["ended"]) == ("lab", ALICE, node, 1, None)
        assert re.fullmatch(re.escape(one["workload"]) + r"@1\.\d+", one["checkpoint"])
        assert one["stored_bytes"] > 0
        assert re.search(rf"(?m)^{number} +{step} +{ALICE} +{node} +1 +running +1\.\d+ ", jobs.table), jobs.table
        (later,) = [job for job in after["jobs"] if (job["job"], job["step"]) == (number, step)]
        assert (later["node"], later["epoch"]) == (node, 1 if name == "suspended" else 2)
    running = {node["name"]: node["running"] for node in before["nodes"]}
    assert running == {name: sum(job["node"] == name for job in before["jobs"]) for name in running}
    assert running.keys() == {"n1", "n2", "n3"}
    ended = {job["job"]: job["ended"] for job in end["jobs"] if job["step"] == "batch"}
    assert ended.keys() >= {jobs.numbers[name] for name in ("status", "allocation", "held", "alone")}
    assert None not in ended.values()
    assert [ended[jobs.numbers[name]] for name in ("held", "status")] == ["it ended with 0", "it ended with 3"]
