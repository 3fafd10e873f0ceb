"""Nodes that do not take part: a job that opted in and lands there runs as if Perdure did not exist, and says so where the shim is.

In the end checkpoints go with the one node that took part.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import installed, slurm, work
from cluster.machine import wait_until
from cluster.slurm import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ALICE = 2001
LONG_S = 400
_JOB = """\
echo "ran ${PERDURE_WORKLOAD-alone}"
srun -n 1 sh -c 'echo "step ran ${PERDURE_WORKLOAD-alone}"'
exit 3
"""
_ALONE = "ran alone\nstep ran alone\n"


def _run(cluster: Cluster, name: str, node: str, *options: str, **env: str) -> tuple[str, str]:
    """Run a job on `node` to its end and return what it wrote to its streams."""
    job = cluster.submit("alice", _JOB, f"--nodelist={node}", *work.files(name), *options, env=env)
    cluster.wait_state(job, "FAILED", timeout_s=LONG_S)
    assert [attempt[:2] for attempt in cluster.attempts(job)] == [("FAILED", "3:0")]
    return work.written(cluster, "alice", name), work.written(cluster, "alice", name, "err")


def _save_one(cluster: Cluster) -> None:
    """Run a job where Perdure is, of which there are checkpoints afterwards."""
    job = cluster.submit(
        "alice", work.count(20, 0.1, name="kept", waits=True), "-w", "n1", *work.files("kept"), env={"PERDURE": "every=2s"}
    )
    wait_until(lambda: work.checkpoints(cluster, ALICE, job), "no checkpoint", timeout_s=LONG_S)
    (cluster.home / "alice/kept.go").write_text("")
    cluster.wait_state(job, "COMPLETED", timeout_s=LONG_S)
    assert work.checkpoints(cluster, ALICE, job)


def _places(cluster: Cluster, node: str) -> str:
    """Return all files of a node that an installation could touch, with their content's digest."""
    script = "find /etc /opt /usr/local /var/lib/perdure /var/cache /run/perdure -type f -print0 2>/dev/null | sort -z | xargs -0 sha256sum"
    return cluster.run(node, "sh", "-c", script).stdout


def test_a_job_that_lands_elsewhere_runs_as_ever_and_says_so_once(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    with slurm.running(folder) as cluster:
        work.lay(cluster)
        before = {node: _places(cluster, node) for node in ("n1", "n2", "n3")}
        installed.install(cluster, "n1")
        command = ("slurm", "install", "--node-list", "n2", "--shim-only")
        planned = json.loads(installed.admin(cluster, *command, "--dry-run", "--json").stdout)["nodes"][0]["outcome"]
        made = json.loads(installed.admin(cluster, *command, "--json").stdout)["nodes"][0]["outcome"]
        assert (planned["state"], made["state"]) == ("planned", "installed")
        files = [entry["path"] for entry in planned["entries"] if entry["kind"] == "file"]
        shim = [f"/opt/perdure/lib/slurm/{name}" for name in ("perdure-task", "perdure_spank.so")]
        assert files == [*shim, "/etc/slurm/plugstack.conf.d/zzz-perdure.conf"]

        why = "perdure: Perdure is not installed on n2; the job runs unmanaged\n"
        assert _run(cluster, "by-variable", "n2", PERDURE="every=2s") == (_ALONE, why)
        assert _run(cluster, "by-comment", "n2", "--comment=perdure") == (_ALONE, why)
        assert _run(cluster, "not-opted-in", "n2") == (_ALONE, "")
        # Where nothing is, nothing can be said.
        assert _run(cluster, "nothing", "n3", PERDURE="1") == (_ALONE, "")
        # Not even where the libraries of another node can be seen, in a folder that is shared: without its configuration it takes no part.
        cluster.run("n2", "sh", "-c", "mkdir -p /opt/perdure/bin && printf '#!/bin/sh\\nexit 1\\n' >/opt/perdure/bin/perdure")
        cluster.run("n2", "chmod", "755", "/opt/perdure/bin/perdure")
        assert _run(cluster, "shared", "n2", PERDURE="1") == (_ALONE, why)
        cluster.run("n2", "rm", "-r", "/opt/perdure/bin")

        whole = installed.admin(cluster, "slurm", "install", "--node-list", "n1", "--shim-only", check=False)
        assert whole.returncode != 0
        assert "take it out first" in whole.stderr
        installed.uninstall(cluster, "n2")
        _save_one(cluster)
        gone = installed.admin(cluster, "slurm", "uninstall", "--node-list", "n1", "--purge-checkpoints", "--json")
        assert json.loads(gone.stdout)["nodes"][0]["outcome"]["state"] == "removed"
        assert not (cluster.shared / "perdure/users").exists()
        assert {node: _places(cluster, node) for node in before} == before
        assert not Path(f"/proc/{cluster.nodes['n2'].pid}/root/opt/perdure").exists()
