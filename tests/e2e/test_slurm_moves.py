"""On a real cluster, an ordinary user's unchanged script that was opted in: its node dies, is cut off, its time is up, it is preempted or
cancelled.

All of it happens to jobs of one cluster at the same time, since most of that time is Slurm's: it takes most of a minute to miss a node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from pathlib import Path

import pytest
from cluster import installed, work
from cluster.machine import Failed, wait_until
from cluster.shape import Shape
from cluster.slurm import Cluster

from perdure import errors
from perdure.base.proc import process

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ALICE = 2001
LINES = 60
LONG_S = 400
"""For what takes seconds on a machine that has nothing else to do, and a minute or two here."""


@dataclasses.dataclass
class Watched:
    """When, by this machine's clock, a job's program was last seen on a node, and first on another."""

    last_on_old_s: float = 0.0
    first_on_new_s: float = 0.0


@dataclasses.dataclass
class Story:
    """What happened."""

    cluster: Cluster
    killed: int = 0
    cut: int = 0
    limited: int = 0
    cancelled: int = 0
    low: int = 0
    """The one that is preempted."""
    cut_s: float = 0.0
    watched: Watched = dataclasses.field(default_factory=Watched)
    seen_by_alice: str = ""
    left_after_cancel: list[str] = dataclasses.field(default_factory=list)
    after_healing: list[str] = dataclasses.field(default_factory=list)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    # A job that outlives its grace is run once more by Slurm when it is done; on a busy machine, saving takes its time.
    shape = Shape(nodes=("n1", "n2", "n3", "n4"), grace_s=30)
    with installed.running(tmp_path_factory.mktemp("cluster"), shape) as cluster:
        work.lay(cluster)
        told = Story(cluster)
        _begin(told)
        _break(told)
        _end(told)
        yield told


def _begin(told: Story) -> None:
    cluster = told.cluster
    # One node has GPUs for two: what has to come there from elsewhere needs not wait for the others. The fourth is one job's alone.
    told.killed = _submit(cluster, "killed", "n1", "-G1", "--exclude=n4")
    # Not where its node is dead and Slurm does not know yet.
    told.cut = _submit(cluster, "cut", "n2", "-G1", "--exclude=n1,n4")
    told.limited = _submit(cluster, "limited", "n3", "--time=1", "--exclude=n1,n4")
    told.cancelled = _submit(cluster, "cancelled", "n3", "--exclude=n1,n4")
    told.low = _submit(cluster, "low", "n4", "--nodelist=n4", "--exclusive", every="1h")
    for job in (told.killed, told.cut, told.limited, told.cancelled):
        wait_until(lambda job=job: work.checkpoints(cluster, ALICE, job), f"no checkpoint of {job}", timeout_s=LONG_S)
    wait_until(lambda: len(work.written(cluster, "alice", "low").splitlines()) > 5, "it does not count", timeout_s=LONG_S)
    told.seen_by_alice = cluster.run("n1", "perdure", "ps", user="alice").stdout


def _submit(cluster: Cluster, name: str, node: str, *options: str, every: str = "2s") -> int:
    """Submit a job that counts to `LINES`, ends when it is let go, and would go on anywhere, but starts on `node`."""
    script = work.count(LINES, 0.5, name=name, status=3 if name == "cut" else 0, waits=True, hurries=name != "cut")
    return cluster.submit("alice", script, *work.files(name), *options, f"--prefer={node}", env={"PERDURE": f"every={every}"})


def _break(told: Story) -> None:
    cluster = told.cluster
    assert [cluster.wait_node(job) for job in (told.killed, told.cut, told.low)] == ["n1", "n2", "n4"]
    cluster.kill("n1")
    cluster.head("scancel", str(told.cancelled), user="alice")
    cluster.wait_state(told.cancelled, "CANCELLED")
    told.left_after_cancel = _left_of(cluster, told.cancelled)
    cluster.submit("bob", "sleep 2\n", "-w", "n4", "--exclusive", "-p", "high")
    told.cut_s = time.monotonic()
    cluster.cut("n2")
    # Its job is to be run again while its lease lasts.
    cluster.give_up("n2")
    _watch(told, deadline_s=time.monotonic() + LONG_S)


def _left_of(cluster: Cluster, job: int) -> list[str]:
    """Return what stays on n3 of a job that was cancelled: what it ran, and who kept it. Its last words may take a moment."""

    def left() -> list[str]:
        listed = cluster.run("n3", "ps", "-e", "-o", "args=").stdout.splitlines()
        return [line for line in listed if str(job) in line or "cancelled.starts" in line]

    with contextlib.suppress(Failed):
        wait_until(lambda: not left(), "something stays", timeout_s=60)
    return left()


def _watch(told: Story, *, deadline_s: float) -> None:
    """Look at the copies of the job on both nodes, from outside, until the newer one runs and the older one does not."""
    cluster, watched = told.cluster, told.watched
    while not watched.first_on_new_s:
        if _runs(cluster, "n2", "cut.starts"):
            watched.last_on_old_s = time.monotonic()
        if _runs(cluster, "n3", "cut.starts"):
            watched.first_on_new_s = time.monotonic()
        assert time.monotonic() < deadline_s, work.written(cluster, "alice", "cut", "err")
        time.sleep(0.05)
    for _look in range(20):
        if _runs(cluster, "n2", "cut.starts"):
            watched.last_on_old_s = time.monotonic()
        time.sleep(0.05)


def _end(told: Story) -> None:
    cluster = told.cluster
    # Slurm has to miss its node by itself.
    cluster.wait_node(told.killed, not_on="n1", timeout_s=LONG_S)
    cluster.heal("n2")
    cluster.give_back("n2")
    cluster.boot("n1")
    for name, job in (("limited", told.limited), ("low", told.low)):
        wait_until(lambda job=job: cluster.job(job).get("Restarts", "0") != "0", f"{name} is not requeued", timeout_s=LONG_S)
    # The one whose node has come back runs longest.
    for name, job in (("low", told.low), ("limited", told.limited), ("killed", told.killed), ("cut", told.cut)):
        (cluster.home / f"alice/{name}.go").write_text("")
        cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S)
    told.after_healing = cluster.processes("n2", "alice")


def _runs(cluster: Cluster, node: str, word: str) -> bool:
    """Tell whether a program with `word` in its arguments runs on `node`, asking nothing of the node itself.

    One that was killed runs no more, though it may wait in the kernel for a file system that does not answer.
    """
    inside = os.stat(f"/proc/{cluster.nodes[node].pid}/ns/net").st_ino
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
                if word.encode() in words and b"count.py" in words and os.stat(entry / "ns/net").st_ino == inside:
                    return not process.status(int(entry.name)).is_killed
            except (OSError, errors.ProcessGone):
                continue
    return False


def _check_output(told: Story, name: str) -> None:
    """Hold what the job has written, and how often it was started, against a run that nothing disturbed."""
    found = work.written(told.cluster, "alice", name)
    said = work.written(told.cluster, "alice", name, "err")
    assert found == work.lines(LINES), f"{name} wrote {' '.join(line.split()[0] for line in found.splitlines() if line)}\n{said}"
    assert work.written(told.cluster, "alice", name, "starts") == "started\n"


def _lost(cluster: Cluster, node: str) -> tuple[str, str, str]:
    """Return what the accounting says of an attempt whose node was lost: 22.05 gives it no exit code."""
    return "NODE_FAIL", "0:0" if cluster.shape.version == "22.05" else "1:0", node


def test_a_job_whose_node_died_goes_on_elsewhere_as_the_same_job(story):
    (first, second) = story.cluster.attempts(story.killed)
    assert first == _lost(story.cluster, "n1")
    assert second[:2] == ("COMPLETED", "0:0")
    assert second[2] != "n1"
    _check_output(story, "killed")
    said = work.written(story.cluster, "alice", "killed", "err")
    assert f"goes on from slurm-lab-{story.killed}@1." in said, said


def test_a_job_on_a_node_that_was_cut_off_never_runs_twice_at_a_time(story):
    watched = story.watched
    stopped_s, began_s = watched.last_on_old_s - story.cut_s, watched.first_on_new_s - story.cut_s
    assert 0 < stopped_s < began_s, (
        f"the copy that was cut off was last seen after {stopped_s:.1f} s, the new one first after {began_s:.1f} s"
    )
    (first, second) = story.cluster.attempts(story.cut)
    assert (first, second[:2]) == (_lost(story.cluster, "n2"), ("FAILED", "3:0"))
    _check_output(story, "cut")


def test_a_node_that_comes_back_changes_nothing(story):
    assert not [line for line in story.after_healing if "count.py" in line]
    assert story.cluster.run("n2", "ls", "/shared", user="alice").returncode == 0


def test_a_job_goes_on_past_its_time_limit_as_the_same_job(story):
    attempts = story.cluster.attempts(story.limited)
    assert [row[0] for row in attempts] == ["REQUEUED"] * (len(attempts) - 1) + ["COMPLETED"]
    assert len(attempts) >= 2
    _check_output(story, "limited")


def test_a_cancelled_job_leaves_nothing_and_does_not_come_back(story):
    assert story.left_after_cancel == []
    assert [row[0] for row in story.cluster.attempts(story.cancelled)] == ["CANCELLED"]
    assert story.cluster.state(story.cancelled) in ("CANCELLED", "")


def test_a_user_sees_her_workloads_on_the_node(story):
    assert f"slurm-lab-{story.killed}" in story.seen_by_alice


def test_a_preempted_job_goes_on_as_the_same_job(story):
    assert story.cluster.attempts(story.low) == [("PREEMPTED", "0:0", "n4"), ("COMPLETED", "0:0", "n4")]
    _check_output(story, "low")


def test_nothing_of_a_users_job_is_there_for_another_user(story):
    cluster = story.cluster
    # None is made, or removed, meanwhile but those that are asked for.
    script = work.count(100_000, 0.1, name="hers")
    job = cluster.submit("alice", script, *work.files("hers"), "-w", "n3", env={"PERDURE": "every=1h"})
    wait_until(lambda: work.written(cluster, "alice", "hers"), f"{job} does not count", timeout_s=LONG_S)
    name = f"slurm-lab-{job}"
    cluster.run("n3", "perdure", "checkpoint", name, user="alice")
    before = _processes_of(cluster, "n3", name)
    mine = cluster.run("n3", "perdure", "store", "ls", name, user="alice")
    assert f"{name}@1.1" in mine.stdout
    for words in (
        ("ps", name),
        ("logs", name),
        ("checkpoint", name),
        ("checkpoint", name, "--stop"),
        ("stop", name),
        ("rm", name, "--checkpoints"),
        ("restore", name),
        ("restore", name, "--from", f"{name}@1.1"),
        ("store", "show", f"{name}@1.1"),
        ("store", "pin", f"{name}@1.1"),
        ("run", "--name", name, "--must-resume", "--", "true"),
    ):
        tried = cluster.run("n3", "perdure", *words, user="bob", check=False, cwd="/")
        assert tried.returncode != 0, (words, tried.stdout, tried.stderr)
        assert "count.py" not in tried.stdout + tried.stderr, words
    assert name not in cluster.run("n3", "perdure", "ps", user="bob").stdout
    assert name not in cluster.run("n3", "perdure", "store", "ls", user="bob", check=False).stdout
    _try_by_hand(cluster, before)
    # And it went on all the while, for its owner.
    assert _processes_of(cluster, "n3", name) == before
    assert cluster.state(job) == "RUNNING"
    assert len(work.checkpoints(cluster, ALICE, job)) == 1
    cluster.run("n3", "perdure", "checkpoint", name, user="alice")
    assert len(work.checkpoints(cluster, ALICE, job)) == 2
    cluster.head("scancel", str(job), user="alice")
    cluster.wait_state(job, "CANCELLED")


def _processes_of(cluster: Cluster, node: str, name: str) -> list[int]:
    """Return the processes of a job of alice's on a node, root's for it and her own; but none that one of them has just forked, and that
    looks like it until it has become another program.
    """
    number = name.rpartition("-")[2]
    listed = cluster.run(node, "ps", "-e", "-o", "pid=,ppid=,args=").stdout.splitlines()
    found = [line.split(None, 2) for line in listed if f"--job {number} " in line or "hers.starts" in line]
    arguments = {int(pid): words for pid, _parent, words in found}
    return [int(pid) for pid, parent, words in found if arguments.get(int(parent)) != words]


def _try_by_hand(cluster: Cluster, pids: list[int]) -> None:
    """Try as bob, without Perdure, what would show or touch something of alice's."""
    assert len(pids) >= 2
    for pid in pids:
        for command in (
            f"kill -KILL {pid}",
            f"cat /proc/{pid}/environ",
            f"cat /proc/{pid}/mem",
            f"ls /proc/{pid}/fd",
            f"ls /proc/{pid}/root/",
        ):
            assert cluster.run("n3", "sh", "-c", command, user="bob", check=False).returncode != 0, command
    for folder in ("/shared/perdure", "/shared/perdure/users/2001", "/var/lib/perdure/users", "/run/perdure/users/2001"):
        tried = cluster.run("n3", "find", folder, "-type", "f", "-readable", user="bob", check=False)
        assert (tried.returncode, tried.stdout) == (1, ""), folder
