"""Opted-in jobs on nodes that are killed at random: all complete, and what they wrote is what an undisturbed run writes."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter

import pytest
from cluster import installed, work
from cluster.machine import wait_until
from cluster.slurm import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ALICE = 2001
PAUSE_S = 0.5
LONG_S = 600


@dataclasses.dataclass(frozen=True)
class Storm:
    """How long what lasts, in seconds, and how much of it there is."""

    jobs: int
    job_s: tuple[float, float]
    storm_s: float
    between_kills_s: tuple[float, float]
    seed: int
    waits: bool = False
    """Whether the jobs end only after it."""
    is_told: bool = False
    """Whether an admin tells Slurm of each node; else it has to miss it, or its jobs, which may take it minutes."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with installed.running(tmp_path_factory.mktemp("cluster")) as running:
        work.lay(running)
        yield running


def _weather(cluster: Cluster, storm: Storm) -> dict[str, float]:
    """Submit the jobs, kill nodes while the storm lasts, wait for all jobs; return how much of what there was.

    Where nobody tells Slurm, some nodes are back at once, and it misses their jobs when they register; others only after it has given
    them up.
    """
    chance = random.Random(storm.seed)
    sizes = {f"storm{number}": round(chance.uniform(*storm.job_s) / PAUSE_S) for number in range(storm.jobs)}
    jobs = {
        name: cluster.submit(
            "alice", work.count(size, PAUSE_S, name=name, waits=storm.waits), *work.files(name), env={"PERDURE": "every=5s"}
        )
        for name, size in sizes.items()
    }
    began_s = time.monotonic()
    wait_until(lambda: any(work.checkpoints(cluster, ALICE, job) for job in jobs.values()), "no checkpoint", timeout_s=LONG_S)
    kills = 0
    end_s = time.monotonic() + storm.storm_s
    while time.monotonic() < end_s:
        node = chance.choice(cluster.shape.nodes)
        cluster.kill(node)
        kills += 1
        if storm.is_told:
            cluster.give_up(node)
        elif chance.random() < 0.5:
            wait_until(lambda node=node: cluster.node_state(node).startswith("down"), f"{node} is not missed", timeout_s=LONG_S)
        cluster.boot(node)
        time.sleep(chance.uniform(*storm.between_kills_s))
    for name in jobs:
        (cluster.home / f"alice/{name}.go").write_text("")
    ends: list[str] = []
    for name, job in jobs.items():
        cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S)
        said = work.written(cluster, "alice", name, "err")
        assert work.written(cluster, "alice", name) == work.lines(sizes[name]), f"{name}: {said}"
        attempts = cluster.attempts(job)
        assert attempts[-1][:2] == ("COMPLETED", "0:0"), f"{name}: {attempts}"
        ends += [attempt[0] for attempt in attempts]
    work_s = sum(sizes.values()) * PAUSE_S
    return {"kills": kills, "work_s": work_s, "elapsed_s": round(time.monotonic() - began_s), "attempts": len(ends)} | Counter(ends)


def test_a_few_jobs_and_a_few_kills(cluster):
    storm = Storm(jobs=5, job_s=(10, 20), storm_s=10, between_kills_s=(4, 8), seed=20, waits=True, is_told=True)
    assert _weather(cluster, storm)["kills"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thirty_jobs_and_nodes_killed_at_random_for_ten_minutes(cluster, record_testsuite_property):
    """`--junitxml=FILE` keeps its figures."""
    storm = Storm(jobs=30, job_s=(60, 240), storm_s=600, between_kills_s=(5, 60), seed=7)
    seen = _weather(cluster, storm)
    for name, figure in seen.items():
        record_testsuite_property(name, figure)
    assert seen["kills"] >= 5
