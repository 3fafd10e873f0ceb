"""Jobs that belong together, all opted in: tasks of an array, each its own; one that waits for another; one of two nodes, refused."""

from __future__ import annotations

import pytest
from cluster import installed, work
from cluster.machine import wait_until
from cluster.shape import Shape
from cluster.slurm import Cluster

pytestmark = pytest.mark.cluster

ALICE = 2001
LONG_S = 400
TASKS = ("1", "2", "3")
LINES = 60
EVERY = {"PERDURE": "every=2s"}
_COUNT = f"exec python3 /shared/count.py {LINES} 0.5 0 $HOME/array-$SLURM_ARRAY_TASK_ID.starts\n"


class Story:
    """What happened. `array` is the number of the array, and of its last task."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        names = ("--output=array-%a.out", "--error=array-%a.err")
        self.array = cluster.submit("alice", _COUNT, f"--array={TASKS[0]}-{TASKS[-1]}", "--time=60", *names, env=EVERY)
        wait_until(lambda: len(self.numbers()) == len(TASKS), "not all tasks run", timeout_s=LONG_S)
        for number in self.numbers().values():
            wait_until(lambda number=number: work.checkpoints(cluster, ALICE, number), f"no checkpoint of {number}", timeout_s=LONG_S)
        # One task's time is nearly up: it saves itself and is queued again, and no other is.
        cluster.head("scontrol", "update", f"JobId={self.array}_{self.last()}", "TimeLimit=1")
        self.first = cluster.submit("alice", work.count(20, 0.25, name="first"), *work.files("first"), env=EVERY)
        self.second = cluster.submit("alice", "cat $HOME/first.out", f"--dependency=afterok:{self.first}", *work.files("second"), env=EVERY)
        step = "srun -N 2 -n 2 sh -c 'echo ran ${PERDURE_WORKLOAD-alone}'"
        self.two_nodes = cluster.submit("alice", step, "--nodes=2", *work.files("two-nodes"), env=EVERY)
        for job in (self.first, self.second, self.two_nodes):
            cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S)
        for task in TASKS:
            wait_until(lambda task=task: self.attempts(task)[-1:] == ["COMPLETED"], f"task {task} does not end", timeout_s=LONG_S)

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
