"""A job that was saved does not start over, into the files of the work it can go on with: it is held when it cannot be brought back, and
waits, is preempted or ends as itself while its lost copy may still live.

All of it happens to jobs of one cluster at the same time, since most of that time is Slurm's.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from cluster import installed, shape, work
from cluster.installed import STORE
from cluster.machine import wait_until
from cluster.shape import Shape
from cluster.slurm import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

LONG_S = 400
OWNERS = {"kept": "bob", "preempted": "alice", "keeper": "alice"}
"""Of the jobs, by name. The one whose checkpoints cannot be read has a user of its own, whose store no other needs meanwhile."""
PLACES = {
    "kept": ("--nodelist=n3",),
    # Both lose n1, and go on apart: one is preempted there, with all that runs on that node.
    "preempted": ("--prefer=n1", "--exclude=n3"),
    "keeper": ("--prefer=n1", "--exclude=n2"),
}


@dataclasses.dataclass
class Story:
    """What happened."""

    cluster: Cluster
    jobs: dict[str, int] = dataclasses.field(default_factory=dict)
    ends: dict[str, str] = dataclasses.field(default_factory=dict)
    said_of_hold: str = ""
    """What the job had said when it was held."""
    starts_at_hold: str = ""
    end_of_keeper: str = ""
    """How the job stood that had lost its keeper, and what it had said then."""
    said_of_keeper: str = ""

    def said(self, name: str) -> str:
        """Return what Perdure and others have said to a job so far."""
        return work.written(self.cluster, OWNERS[name], name, "err")

    def ask(self, words: str, name: str) -> None:
        """Ask Slurm for something, as the user of a job."""
        self.cluster.head("scontrol", words, str(self.jobs[name]), user=OWNERS[name])

    def wait_restarts(self, name: str, count: int) -> None:
        """Wait until Slurm has put a job into its queue again so often."""
        job = self.jobs[name]
        wait_until(
            lambda: self.cluster.job(job).get("Restarts") == str(count), f"{name}: {count} restarts are not reached", timeout_s=LONG_S
        )

    def wait_said(self, name: str, words: str) -> None:
        """Wait until a job is told something."""
        wait_until(lambda: words in self.said(name), f"{name} is not told: {words}", timeout_s=LONG_S)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    # In 24.11 a job that outlives its grace is run once more when it is done, and a busy machine takes its time.
    with installed.running(tmp_path_factory.mktemp("cluster"), Shape(grace_s=20)) as cluster:
        work.lay(cluster)
        told = Story(cluster)
        _begin(told)
        _lose_node(told)
        _disturb(told)
        _hold(told)
        _end(told)
        yield told


def _begin(told: Story) -> None:
    """Submit jobs that end only when they are told, and wait for their first checkpoints."""
    cluster = told.cluster
    for name, user in OWNERS.items():
        script = work.count(60, 0.25, name=name, waits=True)
        options = (*work.files(name), *PLACES[name], "--open-mode=append")
        told.jobs[name] = cluster.submit(user, script, *options, env={"PERDURE": "every=2s"})
    for name, job in told.jobs.items():
        uid = shape.USERS[OWNERS[name]]
        wait_until(lambda uid=uid, job=job: work.checkpoints(cluster, uid, job), f"no checkpoint of {name}", timeout_s=LONG_S)
    assert [cluster.wait_node(job) for job in told.jobs.values()] == ["n3", "n1", "n1"]


def _lose_node(told: Story) -> None:
    """Kill the node of two jobs, and let the third be begun where its checkpoints cannot be read."""
    told.ask("requeuehold", "kept")
    told.cluster.kill("n1")
    told.cluster.give_up("n1")
    told.wait_restarts("kept", 1)
    # Its count is raised first; what it saves when it is told to end is written until it is in the queue.
    told.cluster.wait_state(told.jobs["kept"], "PENDING", timeout_s=LONG_S)
    packs = _packs(told)
    packs.rename(packs.with_name("away"))
    told.ask("release", "kept")


def _disturb(told: Story) -> None:
    """Preempt one job, and kill the seat of another, while each watches on another node whether its copy still lives."""
    cluster = told.cluster
    assert cluster.wait_node(told.jobs["preempted"], not_on="n1", timeout_s=LONG_S) == "n2"
    told.wait_said("preempted", "watching for")
    cluster.submit("bob", "sleep 2", "--partition=high", "--exclusive", "--nodelist=n2")
    keeper = told.jobs["keeper"]
    assert cluster.wait_node(keeper, not_on="n1", timeout_s=LONG_S) == "n3"
    told.wait_said("keeper", "watching for")
    cluster.run("n3", "pkill", "-KILL", "-f", f"perdure slurm seat .*--job {keeper} ", cwd="/")
    told.end_of_keeper = cluster.wait_state(keeper, "COMPLETED", "FAILED", timeout_s=LONG_S)
    told.said_of_keeper = told.said("keeper")
    told.ask("requeue", "keeper")
    told.wait_restarts("preempted", 2)


def _hold(told: Story) -> None:
    """Wait until the job is held whose checkpoints cannot be read, and let it go on when they can."""
    cluster, job = told.cluster, told.jobs["kept"]
    told.wait_restarts("kept", 2)
    cluster.wait_state(job, "PENDING", timeout_s=LONG_S)
    # JobHeldUser; later versions tell how that came about.
    wait_until(lambda: "held" in cluster.job(job)["Reason"].lower(), "it is not held", timeout_s=LONG_S)
    told.said_of_hold, told.starts_at_hold = told.said("kept"), work.written(cluster, OWNERS["kept"], "kept", "starts")
    packs = _packs(told)
    packs.with_name("away").rename(packs)
    told.ask("release", "kept")
    told.wait_said("kept", ", restart 2: goes on from")


def _end(told: Story) -> None:
    """Let all of them end."""
    for name, user in OWNERS.items():
        (told.cluster.home / user / f"{name}.go").write_text("")
    for name, job in told.jobs.items():
        told.ends[name] = told.cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S)


def _packs(told: Story) -> Path:
    """Return the folder of what the checkpoints of the job to be held consist of."""
    return told.cluster.folder / STORE.lstrip("/") / "users" / str(shape.USERS[OWNERS["kept"]]) / "packs"


def _require_end(told: Story, name: str) -> None:
    """See that a job has done its work once."""
    assert told.ends[name] == "COMPLETED", told.said(name)
    assert work.written(told.cluster, OWNERS[name], name) == work.lines(60)
    assert work.written(told.cluster, OWNERS[name], name, "starts") == "started\n"


def test_a_job_whose_checkpoints_cannot_be_read_waits_until_they_can(story):
    again = f"the job is held, so that it does not start over: scontrol release {story.jobs['kept']} tries again"
    assert again in story.said_of_hold
    assert "unmanaged" not in story.said_of_hold, story.said_of_hold
    assert story.starts_at_hold == "started\n"
    _require_end(story, "kept")


def test_a_job_that_is_preempted_while_it_waits_for_its_lost_copy_runs_again_once(story):
    """Slurm 24.11 runs a job once more, when it is done, that it had to kill at the end of a preemption's grace."""
    _require_end(story, "preempted")


def test_a_job_whose_keeper_is_killed_while_it_waits_fails_and_can_be_gone_on_with(story):
    assert story.end_of_keeper == "FAILED"
    assert "the process that kept this workload is gone" in story.said_of_keeper
    _require_end(story, "keeper")
