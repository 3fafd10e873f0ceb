"""Jobs that belong together: tasks of an array, each its own; one that waits for another; one of two nodes, refused; those that the admin
opts in. And what the site's accounting says of them afterwards, beside what was saved.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import installed, shape, work
from cluster.machine import SOURCE, wait_until
from cluster.shape import Shape
from cluster.slurm import Cluster

from perdure.history import table

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ALICE = 2001
LONG_S = 400
TASKS = ("1", "2", "3")
LINES = 60
EVERY = {"PERDURE": "every=2s"}
_COUNT = f"exec python3 /shared/count.py {LINES} 0.5 0 $HOME/array-$SLURM_ARRAY_TASK_ID.starts $HOME/array.go\n"
_POLICY = """\
[opt-in]
partitions = ["managed"]
qos = ["managed"]
accounts = ["chemistry"]
users = ["bob"]

[never]
accounts = ["alchemy"]

[options]
every = "2s"
"""
_TELL = 'echo "ran ${PERDURE_WORKLOAD-alone}"\n'
_BY_POLICY = {
    "by-qos": ("alice", ("--qos=managed",)),
    "by-account": ("alice", ("--account=chemistry",)),
    "by-user": ("bob", ()),
    "by-nobody": ("alice", ()),
    "never": ("alice", ("--account=alchemy", "--comment=perdure")),
    "not-wished": ("alice", ("--partition=managed", "--comment=perdure:never")),
}
"""Jobs on n2, where the policy is in force: whose, and with which words for sbatch."""


class Story:
    """What happened. `array` is the number of the array, and of its last task."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._begin_by_policy()
        names = ("--output=array-%a.out", "--error=array-%a.err")
        self.array = cluster.submit("alice", _COUNT, f"--array={TASKS[0]}-{TASKS[-1]}", "--time=60", *names, env=EVERY)
        wait_until(lambda: len(self.numbers()) == len(TASKS), "not all tasks run", timeout_s=LONG_S)
        for number in self.numbers().values():
            wait_until(lambda number=number: work.checkpoints(cluster, ALICE, number), f"no checkpoint of {number}", timeout_s=LONG_S)
        self._requeue_by_policy()
        self._end_time_of_one()
        self.first = cluster.submit("alice", work.count(20, 0.25, name="first"), *work.files("first"), env=EVERY)
        self.second = cluster.submit("alice", "cat $HOME/first.out", f"--dependency=afterok:{self.first}", *work.files("second"), env=EVERY)
        step = "srun -N 2 -n 2 sh -c 'echo ran ${PERDURE_WORKLOAD-alone}'"
        self.two_nodes = cluster.submit("alice", step, "--nodes=2", *work.files("two-nodes"), env=EVERY)
        # Before anything else is waited for: when it has gone on, its time is soon up again.
        wait_until(lambda: cluster.job(self.timed).get("Restarts") == "1", "the task whose time is up is not requeued", timeout_s=LONG_S)
        (cluster.home / "alice/array.go").write_text("")
        self._let_end_by_policy()
        for job in (self.first, self.second, self.two_nodes, *self.by_policy.values()):
            cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S)
            cluster.attempts(job)  # waits for the accounting, which is asked in other ways, too
        for task in TASKS:
            wait_until(lambda task=task: self.attempts(task)[-1:] == ["COMPLETED"], f"task {task} does not end", timeout_s=LONG_S)

    def _end_time_of_one(self) -> None:
        """Let the time of one task, which ends only when it is told, be nearly up: it saves itself and is queued again, and no other is."""
        self.timed = f"{self.array}_{self.last()}"
        hours, minutes, seconds = map(int, self.cluster.job(self.timed)["RunTime"].split(":"))
        # Half a minute before the end it is to be saved: there has to be more.
        limit = hours * 60 + minutes + (1 if seconds < 20 else 2)
        self.cluster.head("scontrol", "update", f"JobId={self.timed}", f"TimeLimit={limit}")

    def _begin_by_policy(self) -> None:
        """Put a policy into force on n2 and submit what it is about; the first of them has work to do."""
        cluster = self.cluster
        for account in ("chemistry", "alchemy"):
            cluster.head("sacctmgr", "-i", "add", "account", account)
            cluster.head("sacctmgr", "-i", "add", "user", "alice", f"account={account}")
        cluster.run("n2", "sh", "-c", "cat >/etc/perdure/slurm.toml", stdin=_POLICY)
        self.checked = cluster.run("n2", "perdure", "slurm", "policy", "check").stderr
        cluster.run("n2", "perdure", "slurm", "policy", "apply")
        study = work.count(LINES, 0.25, name="by-partition", waits=True)
        words = ("--partition=managed", "--job-name=study")
        self.by_policy = {"by-partition": cluster.submit("alice", study, "--nodelist=n2", *words, *work.files("by-partition"))}
        for name, (user, options) in _BY_POLICY.items():
            self.by_policy[name] = cluster.submit(user, _TELL, "--nodelist=n2", *options, *work.files(name))
        self.by_policy["elsewhere"] = cluster.submit("alice", _TELL, "--nodelist=n1", "-p", "managed", *work.files("elsewhere"))

    def _requeue_by_policy(self) -> None:
        """Requeue the job that has work to do, when there is a checkpoint of it."""
        job = self.by_policy["by-partition"]
        wait_until(lambda: work.checkpoints(self.cluster, ALICE, job), "the policy's job is not saved", timeout_s=LONG_S)
        self.cluster.head("scontrol", "requeue", str(job), user="alice")

    def _let_end_by_policy(self) -> None:
        """Let it end when it has gone on."""
        went_on = lambda: "life 2" in work.written(self.cluster, "alice", "by-partition", "err")  # noqa: E731 - a name for the line below
        wait_until(went_on, "the policy's job does not go on", timeout_s=LONG_S)
        (self.cluster.home / "alice/by-partition.go").write_text("")

    def numbers(self) -> dict[str, int]:
        """Return the number of each task that runs or ran."""
        shown = self.cluster.head("squeue", "-h", "-t", "RUNNING", "-j", str(self.array), "-o", "%K %A").stdout.split()
        return {task: int(number) for task, number in zip(shown[::2], shown[1::2], strict=True)}

    def last(self) -> str:
        """Return the task whose number is the array's."""
        (task,) = [task for task, number in self.numbers().items() if number == self.array]
        return task

    def attempts(self, task: str) -> list[str]:
        """Return how each attempt of a task ended, by the accounting."""
        words = ("sacct", "-a", "-D", "-X", "-n", "-P", "-S", "2020-01-01", "-j", f"{self.array}_{task}", "-o", "State")
        return self.cluster.head(*words).stdout.split()


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    with installed.running(tmp_path_factory.mktemp("cluster"), Shape(nodes=("n1", "n2"))) as cluster:
        work.lay(cluster)
        yield Story(cluster)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_of_an_array_writes_what_an_undisturbed_run_writes(story, task):
    said = work.written(story.cluster, "alice", f"array-{task}", "err")
    assert work.written(story.cluster, "alice", f"array-{task}") == work.lines(LINES), said
    assert work.written(story.cluster, "alice", f"array-{task}", "starts") == "started\n", said


def test_the_task_whose_time_was_up_went_on_as_itself_and_no_other_was_requeued(story):
    ends = sorted(story.attempts(task) for task in TASKS)
    assert ends == [["COMPLETED"], ["COMPLETED"], ["REQUEUED", "COMPLETED"]]


def test_a_job_that_waits_for_another_one_sees_it_done(story):
    assert [attempt[0] for attempt in story.cluster.attempts(story.second)] == ["COMPLETED"]
    assert work.written(story.cluster, "alice", "second") == work.lines(20)


def test_a_job_of_two_nodes_runs_as_ever_and_says_why_once(story):
    assert work.written(story.cluster, "alice", "two-nodes") == "ran alone\n" * 2
    said = work.written(story.cluster, "alice", "two-nodes", "err")
    assert said == "perdure: jobs of more than one node cannot be saved; this one runs unmanaged\n"


def test_a_job_that_the_admin_opted_in_by_its_partition_is_saved_as_the_policy_says_and_goes_on(story):
    assert "is right, and not in force here" in story.checked
    assert [attempt[0] for attempt in story.cluster.attempts(story.by_policy["by-partition"])] == ["REQUEUED", "COMPLETED"]
    assert work.written(story.cluster, "alice", "by-partition") == work.lines(LINES)
    assert work.written(story.cluster, "alice", "by-partition", "starts") == "started\n"


@pytest.mark.parametrize("name", ["by-qos", "by-account", "by-user"])
def test_the_policy_opts_in_by_qos_account_and_user(story, name):
    user, job = _BY_POLICY[name][0], story.by_policy[name]
    assert work.written(story.cluster, user, name) == f"ran slurm-lab-{job}\n"
    assert f"slurm-lab-{job}, life 1 on n2: starts anew" in work.written(story.cluster, user, name, "err")


@pytest.mark.parametrize("name", ["by-nobody", "not-wished", "elsewhere"])
def test_whom_the_policy_does_not_name_or_who_does_not_wish_it_meets_nothing(story, name):
    told = [work.written(story.cluster, "alice", name, kind) for kind in ("out", "err")]
    assert told == ["ran alone\n", ""]


def test_whom_the_policy_excludes_is_told_when_he_asked_for_it(story):
    assert work.written(story.cluster, "alice", "never") == "ran alone\n"
    assert work.written(story.cluster, "alice", "never", "err") == "perdure: the site's policy excludes this job; it runs unmanaged\n"


def test_the_accounting_and_the_store_tell_of_the_same_jobs_so_that_verdict_and_savings_compare(story, tmp_path):
    """`history pull` and `advise` against the live slurmdbd, beside `perdure slurm status`."""
    saved = json.loads(story.cluster.head("perdure", "slurm", "status", "--all", "--json").stdout)["jobs"]
    attempts, verdicts = _asked_of_accounting(story.cluster, tmp_path)
    recorded = {(cluster, raw_id) for cluster, raw_id, _state, _name in attempts}
    assert {(job["cluster"], str(job["job"])) for job in saved} <= recorded
    study = story.by_policy["by-partition"]
    assert [row[2] for row in attempts if row[1] == str(study)] == ["REQUEUED", "COMPLETED"]
    (of_study,) = [job for job in saved if job["job"] == study]
    assert (of_study["epoch"], of_study["uid"]) == (2, ALICE)
    assert of_study["stored_bytes"] > 0
    (verdict,) = [one for one in verdicts if one["evidence"]["key"]["name"] == "study"]
    key, evidence = verdict["evidence"]["key"], verdict["evidence"]
    assert (key["cluster"], key["user"], key["account"]) == (shape.NAME, "alice", "physics")
    assert (evidence["jobs"], evidence["attempts"]) == (1, 2)
    assert verdict["verdict"]["verdict"] in {"RETRY", "RESUME", "RESUME-REQUIRED", "EITHER", "NEITHER"}


def _asked_of_accounting(cluster: Cluster, folder: Path) -> tuple[list[tuple[str, ...]], list[dict]]:
    """Return what the live accounting says: cluster, number, state, name of each attempt in order; and the verdicts that follow from it."""
    sacct = folder / "sacct"
    enter = f"nsenter --target={cluster.nodes[shape.HEAD].pid} --mount --net --uts --ipc --pid --cgroup --root"
    sacct.write_text(f'#!/bin/sh\nexec {enter} sacct "$@"\n')
    sacct.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8", "PYTHONPATH": str(SOURCE)}
    options = {"cwd": folder, "env": environment, "check": True, "capture_output": True, "timeout": 300}
    perdure = [sys.executable, "-m", "perdure"]
    subprocess.run([*perdure, "history", "pull", "--days", "1", "--sacct", str(sacct), "-o", "attempts.parquet"], **options)
    connection = table.connect()
    table.open_attempts(connection, folder / "attempts.parquet")
    attempts = connection.execute("SELECT cluster, raw_id, state, name FROM attempts ORDER BY start").fetchall()
    told = subprocess.run([*perdure, "advise", "attempts.parquet", "--json"], **options)
    return attempts, json.loads(told.stdout)["workloads"]
