"""A job that was saved does not start over, into the files of the work it can go on with: it is held when it cannot be brought back, and
waits, is preempted or ends as itself while its lost copy may still live."""

from __future__ import annotations

import pytest
from cluster import installed, work
from cluster.installed import STORE
from cluster.machine import wait_until
from cluster.slurm import Cluster

pytestmark = pytest.mark.cluster

ALICE = 2001
LONG_S = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with installed.running(tmp_path_factory.mktemp("cluster")) as running:
        work.lay(running)
        yield running


def test_a_job_whose_checkpoints_cannot_be_read_waits_until_they_can(cluster):
    job = _saved(cluster, "kept")
    cluster.head("scontrol", "requeuehold", str(job), user="alice")
    wait_until(lambda: cluster.job(job).get("Restarts") == "1", "it is not requeued", timeout_s=LONG_S)
    packs = cluster.folder / STORE.lstrip("/") / "users" / str(ALICE) / "packs"
    packs.rename(packs.with_name("away"))
    cluster.head("scontrol", "release", str(job), user="alice")
    wait_until(lambda: cluster.job(job).get("Restarts") == "2", "it is not held", timeout_s=LONG_S)
    cluster.wait_state(job, "PENDING", timeout_s=LONG_S)
    # JobHeldUser; later versions tell how that came about.
    wait_until(lambda: "held" in cluster.job(job)["Reason"].lower(), "it is not held", timeout_s=LONG_S)
    said = work.written(cluster, "alice", "kept", "err")
    assert f"the job is held, so that it does not start over: scontrol release {job} tries again" in said
    assert "unmanaged" not in said, said
    assert (cluster.home / "alice/kept.starts").read_text() == "started\n"

    packs.with_name("away").rename(packs)
    cluster.head("scontrol", "release", str(job), user="alice")
    wait_until(lambda: ", restart 2: goes on from" in work.written(cluster, "alice", "kept", "err"), "it does not go on", timeout_s=LONG_S)
    _require_end(cluster, job, "kept")


def test_a_job_that_is_preempted_while_it_waits_for_its_lost_copy_runs_again_once(cluster):
    """Slurm 24.11 runs a job once more, when it is done, that it had to kill at the end of a preemption's grace."""
    job = _saved(cluster, "preempted")
    lost, other = _lose_node(cluster, job, "preempted")
    cluster.submit("bob", "sleep 2", "--partition=high", "--exclusive", f"--nodelist={other}")
    wait_until(lambda: cluster.job(job).get("Restarts") == "2", "it is not preempted", timeout_s=LONG_S)
    cluster.boot(lost)
    _require_end(cluster, job, "preempted")


def test_a_job_whose_keeper_is_killed_while_it_waits_fails_and_can_be_gone_on_with(cluster):
    job = _saved(cluster, "keeper")
    lost, other = _lose_node(cluster, job, "keeper")
    cluster.run(other, "pkill", "-KILL", "-f", "perdure slurm seat", cwd="/")
    assert cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S) == "FAILED"
    assert "the process that kept this workload is gone" in work.written(cluster, "alice", "keeper", "err")
    cluster.boot(lost)
    cluster.head("scontrol", "requeue", str(job), user="alice")
    _require_end(cluster, job, "keeper")


def _saved(cluster: Cluster, name: str) -> int:
    """Submit a job that ends only when it is told, and wait for its first checkpoint."""
    script = work.count(60, 0.25, name=name, waits=True)
    job = cluster.submit("alice", script, *work.files(name), "--open-mode=append", env={"PERDURE": "every=2s"})
    wait_until(lambda: work.checkpoints(cluster, ALICE, job), "no checkpoint", timeout_s=LONG_S)
    return job


def _lose_node(cluster: Cluster, job: int, name: str) -> tuple[str, str]:
    """Kill the node of a job, and wait until it watches on another one whether its copy still lives; return both."""
    lost = cluster.wait_node(job)
    cluster.kill(lost)
    cluster.give_up(lost)
    other = cluster.wait_node(job, not_on=lost, timeout_s=LONG_S)
    wait_until(lambda: "watching for" in work.written(cluster, "alice", name, "err"), "it does not wait", timeout_s=LONG_S)
    return lost, other


def _require_end(cluster: Cluster, job: int, name: str) -> None:
    """Let it end, and see that it has done its work once."""
    (cluster.home / f"alice/{name}.go").write_text("")
    assert cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S) == "COMPLETED", work.written(cluster, "alice", name, "err")
    assert work.written(cluster, "alice", name) == work.lines(60)
    assert (cluster.home / f"alice/{name}.starts").read_text() == "started\n"
