"""A job that was saved and cannot be brought back is held: it does not start over, into the files of the work it can go on with."""

from __future__ import annotations

import pytest
from cluster import installed, work
from cluster.installed import STORE
from cluster.machine import wait_until

pytestmark = pytest.mark.cluster

ALICE = 2001
LONG_S = 400


def test_a_job_whose_checkpoints_cannot_be_read_waits_until_they_can(tmp_path):
    with installed.running(tmp_path) as cluster:
        work.lay(cluster)
        job = cluster.submit("alice", work.count(60, 0.25, name="kept", waits=True), *work.files("kept"), env={"PERDURE": "every=2s"})
        wait_until(lambda: work.checkpoints(cluster, ALICE, job), "no checkpoint", timeout_s=LONG_S)
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
        wait_until(
            lambda: ", restart 2: goes on from" in work.written(cluster, "alice", "kept", "err"), "it does not go on", timeout_s=LONG_S
        )
        (cluster.home / "alice/kept.go").write_text("")
        assert cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S) == "COMPLETED"
        assert work.written(cluster, "alice", "kept") == work.lines(60)
        assert (cluster.home / "alice/kept.starts").read_text() == "started\n"
