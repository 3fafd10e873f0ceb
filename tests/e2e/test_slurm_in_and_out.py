"""In on one node and the head while the others stay as they were, and out again while jobs run: on a real cluster, over ssh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import installed, shape, slurm, work
from cluster.machine import wait_until
from cluster.slurm import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ALICE = 2001
LONG_S = 400
_LOOK = r"""
set -e
places="/etc /opt /usr/local /var/lib /var/cache /var/spool/cron /root"
list() { find $places \( -path /var/lib/mysql -o -path /root/.ssh \) -prune -o "$@"; }
list -printf '%p %y %m %U %G %l\n' | sort
list -type f -print0 | sort -z | xargs -0 sha256sum
ls -a /run | grep -i -e perdure -e criu || true
"""
"""All files that an installation could touch, with kind, mode, owner, target and content, but for what the database and ssh note on their
own; of /run what could be ours."""


def _look(cluster: Cluster) -> dict[str, set[str]]:
    return {name: set(cluster.run(name, "sh", "-c", _LOOK, timeout_s=300).stdout.splitlines()) for name in cluster.nodes}


def _changes(before: dict[str, set[str]], after: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the nodes that are not as they were, with the lines that differ."""
    return {name: before[name] ^ after[name] for name in before if before[name] != after[name]}


_PAYLOAD = "/tmp/payload.tar"
"""On the head: what the first installation packs by itself, packed once for all that follows."""


def _uninstall(cluster: Cluster) -> dict[str, dict[str, object]]:
    done = installed.admin(cluster, "slurm", "uninstall", "--node-list", f"n2,{shape.HEAD}", "--payload", _PAYLOAD, "--json")
    return {result["node"]: result["outcome"] for result in json.loads(done.stdout)["nodes"]}


def _exists(cluster: Cluster, node: str, path: str) -> bool:
    return Path(f"/proc/{cluster.nodes[node].pid}/root{path}").exists()


_INSTALL = ("slurm", "install", "--node-list", "n2", "--store", installed.STORE, "--lease-ttl", installed.LEASE_TTL, "--payload", _PAYLOAD)
_OF_ANOTHER = r"""
set -e
cp -r /usr/include/slurm /tmp/slurm
sed -i -E 's/(define +SLURM_VERSION_NUMBER +)0x[0-9a-f]+/\10x170b00/' /tmp/slurm/slurm_version.h
grep -q 0x170b00 /tmp/slurm/slurm_version.h
cc -std=gnu11 -fPIC -shared -DPERDURE_PREFIX='"/opt/perdure"' -I /tmp -o /tmp/shim.so /run/source/perdure/slurm/shim/*.c
mv /tmp/shim.so /opt/perdure/lib/slurm/perdure_spank.so
rm -r /tmp/slurm
"""
"""Put in the shim's place one that was compiled for Slurm 23.11, as an upgrade of Slurm leaves it."""


def _upgrade_slurm(cluster: Cluster) -> None:
    """See that jobs that opted in run with a shim that does not fit, as if there were none."""
    cluster.run("n2", "sh", "-c", _OF_ANOTHER)
    job = cluster.submit("alice", "echo plain\n", "-w", "n2", "--output=upgraded.out", env={"PERDURE": "1"})
    cluster.wait_state(job, "COMPLETED", timeout_s=LONG_S)
    assert work.written(cluster, "alice", "upgraded") == "plain\n"
    assert not list((cluster.shared / "perdure").glob(f"users/*/workloads/*-{job}"))


def _last(cluster: Cluster, job: int) -> str:
    """Return the name of a job's newest checkpoint, which begins with its life's number; empty: none."""
    return (["", *work.checkpoints(cluster, ALICE, job)])[-1]


def test_in_on_one_node_and_out_while_a_job_runs(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    with slurm.running(folder) as cluster:
        work.lay(cluster)
        before = _look(cluster)
        installed.install(cluster, "n2", shape.HEAD)
        assert set(_changes(before, _look(cluster))) == {"n2", shape.HEAD}

        _upgrade_slurm(cluster)
        installed.admin(cluster, "slurm", "payload", "-o", _PAYLOAD)
        assert json.loads(installed.admin(cluster, *_INSTALL, "--json").stdout)["nodes"][0]["outcome"]["state"] == "mended"

        kept = cluster.submit(
            "alice", work.count(600, 0.1, name="kept", waits=True), "-w", "n2", *work.files("kept"), env={"PERDURE": "every=2s"}
        )
        cluster.wait_state(kept, "RUNNING")
        wait_until(lambda: work.checkpoints(cluster, ALICE, kept), "no checkpoint", timeout_s=LONG_S)

        cluster.head("scontrol", "requeue", str(kept))
        wait_until(lambda: _last(cluster, kept) > "00000002", "no checkpoint of the second life", timeout_s=LONG_S)

        outcomes = _uninstall(cluster)
        assert outcomes["n2"]["state"] == "leaving"
        assert outcomes["n2"]["waiting_for"]
        assert outcomes[shape.HEAD]["state"] == "removed"
        assert not _exists(cluster, "n2", "/opt/perdure/bin/perdure")
        assert not _exists(cluster, "n2", "/opt/perdure/lib/slurm/perdure_spank.so")
        saved = _last(cluster, kept)

        # Scripts that opted in submit and run as if there had never been anything; beside them the kept job is saved on.
        plain = {
            "comment": cluster.submit("alice", "echo plain; exit 3\n", "-w", "n2", "--comment=perdure:every=2s", "--output=comment.out"),
            "variable": cluster.submit("alice", "echo plain; exit 3\n", "-w", "n2", "--output=variable.out", env={"PERDURE": "1"}),
        }
        for name, job in plain.items():
            cluster.wait_state(job, "FAILED", timeout_s=LONG_S)
            assert work.written(cluster, "alice", name).splitlines()[-1] == "plain"
            assert [attempt[:2] for attempt in cluster.attempts(job)] == [("FAILED", "3:0")]
        wait_until(lambda: _last(cluster, kept) > saved, "it is saved no more", timeout_s=LONG_S)
        (cluster.home / "alice/kept.go").write_text("")

        cluster.wait_state(kept, "COMPLETED", timeout_s=LONG_S)
        assert work.written(cluster, "alice", "kept") == work.lines(600)
        assert work.written(cluster, "alice", "kept", "starts") == "started\n"

        # Whoever waits for its end takes the rest out.
        wait_until(lambda: not _exists(cluster, "n2", "/var/lib/perdure"), "it was not removed", timeout_s=LONG_S)
        assert _changes(before, _look(cluster)) == {}
        assert work.checkpoints(cluster, ALICE, kept), "checkpoints stay"

        assert {outcome["state"] for outcome in _uninstall(cluster).values()} == {"absent"}
