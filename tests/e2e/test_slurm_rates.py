"""What a site's history says on a node: how often work of a size is interrupted sets the interval of a job's checkpoints."""

from __future__ import annotations

import shlex

import pytest
from cluster import installed, work

from perdure.model import rates
from perdure.model.rates import Rates

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

LONG_S = 400
FOUND = Rates(history="h", end="", classification="strict", gpu=((1.0, 6400.0), (4.0, 1600.0)), node=((1.0, 9000.0),))


def test_a_job_is_saved_as_often_as_the_history_asks_for_at_its_size(tmp_path):
    with installed.running(tmp_path) as cluster:
        text = rates.encode_rates(FOUND).decode()
        put = (
            f"printf %s {shlex.quote(text)} >/etc/perdure/rates.json; echo 'rates = \"/etc/perdure/rates.json\"' >>/etc/perdure/config.toml"
        )
        cluster.run("n1", "sh", "-c", put)
        jobs = {
            name: cluster.submit("alice", "sleep 1", "--nodelist=n1", *options, *work.files(name), env={"PERDURE": "1"})
            for name, options in {"two": ("--gres=gpu:2",), "none": ()}.items()
        }
        for job in jobs.values():
            assert cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S) == "COMPLETED"
        said = {name: work.written(cluster, "alice", name, "err") for name in jobs}
        assert "at a mean time to failure of 2d5h (the history's, of 2 GPUs)" in said["two"]
        assert "at a mean time to failure of 6d6h (the history's, of one node)" in said["none"]
        # A file that is none keeps no job from running, and from being saved.
        cluster.run("n1", "sh", "-c", "echo broken >/etc/perdure/rates.json")
        job = cluster.submit("alice", "sleep 1", "--nodelist=n1", *work.files("broken"), env={"PERDURE": "1"})
        assert cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S) == "COMPLETED"
        told = work.written(cluster, "alice", "broken", "err")
        assert "rates.json: not a file of rates" in told
        assert "it is passed over" in told
        assert "at a mean time to failure of 1d (assumed" in told
