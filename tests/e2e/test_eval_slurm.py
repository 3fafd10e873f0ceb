"""An evaluation on a real Slurm cluster, as an ordinary user makes it: both arms, broken through Slurm and by the site's own commands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import counting
import evaluations
import pytest
from cluster import installed, shape, slurm
from cluster.machine import wait_until

from perdure.base.proc import process
from perdure.evaluation import course, local, loss, memory_group, recovery, report, utilisation
from perdure.evaluation import folder as folders
from perdure.model.evaluation import Arm, EventKind, FaultKind, MeasureKind, Run

pytestmark = pytest.mark.cluster

PLACE = "/shared/trial"
DISK = "/scratch"
COMMITTED = re.compile(r'perdure: event .*"phase":"committed".*"epoch":(\d+),"sequence":(\d+)')
COUNT = """\
import sys, time
total = 0
for step in range(1, int(sys.argv[1]) + 1):
    total += step * step
    time.sleep(float(sys.argv[2]))
    for place in sys.argv[3:]:
        with open(place + "/steps", "a") as written:
            written.write(f"{step:4096}")
    print("step", step, flush=True)
print("total", total, flush=True)
"""
ASK = """\
#!/bin/sh
# What stands in for a site's power switch: the test outside of the cluster does it, and says so.
set -eu
>"/shared/switch/$1,$2,$3"
while [ -e "/shared/switch/$1,$2,$3" ]; do sleep 0.1; done
"""
SITE = """\
where = "slurm"
nodes = ["n1", "n2", "n3"]
queue = "main"
"""
SLURM = """
[site.slurm]
options = ["--time=30", "--exclusive"]
lose_node = ["/shared/ask.sh", "kill", "{node}", "{job}"]
return_node = ["/shared/ask.sh", "boot", "{node}", "{job}"]
exhaust_memory = ["/shared/ask.sh", "memory", "{node}", "{job}"]
kill_agent = ["/shared/ask.sh", "agent", "{node}", "{job}"]
fill_disk = ["/shared/ask.sh", "fill", "{node}", "{job}"]
free_disk = ["/shared/ask.sh", "free", "{node}", "{job}"]
preemptor = ["--partition=high", "--exclusive", "--time=5"]
"""
MANAGED = """
[arms]
managed_options = ["--every", "2s"]
[versions]
python = ["python3", "--version"]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    # A job that outlives its grace is run once more by Slurm when it is done; on a busy machine, saving takes its time.
    with slurm.running(tmp_path_factory.mktemp("cluster"), shape.Shape(grace_s=30)) as running:
        installed.install(running)
        (running.shared / "switch").mkdir()
        (running.shared / "switch").chmod(0o777)
        (running.shared / "ask.sh").write_text(ASK)
        (running.shared / "ask.sh").chmod(0o755)
        yield running


def begin(
    cluster,
    kinds: str,
    at: str,
    *,
    steps: int = 100,
    more: str = "",
    heartbeat_s: int = 300,
    site: str = SITE,
    writes_to: tuple[str, ...] = (),
) -> folders.Folder:
    """Lay a plan where all nodes see it, alice's.

    On a busy machine Slurm may take a minute to find a node lost: with a shorter heartbeat the harness would be the first to act.
    Storing takes its time there, too: there is work enough for a checkpoint before each fault.
    """
    cluster.head("sh", "-c", f"rm -rf {PLACE}; mkdir -m 0700 {PLACE}", user="alice")
    there = folders.Folder(cluster.folder / PLACE.lstrip("/"))
    lines = {
        "command": "command = " + json.dumps(["python3", f"{PLACE}/count.py", str(steps), "0.2", *writes_to]),
        "made_for_evaluation": "made_for_evaluation = true",
        "pattern": f"pattern = '^step ([0-9]+)'\nheartbeat_s = {heartbeat_s}",
        "nodes": site.strip(),
        "site.repetitions": "repetitions = 1",
        "duration_s": "duration_s = 7200" + SLURM,
        "kinds": f"kinds = {kinds}",
        "at_progress": f"at_progress = {at}{more}{MANAGED}",
    }
    plan = evaluations.text(PLACE, **lines)
    for name, text in (("count.py", COUNT), ("evaluation.toml", plan)):
        cluster.head("sh", "-c", f"cat >{PLACE}/{name}", user="alice", stdin=text)
    return there


def started(cluster, *arguments: str) -> subprocess.Popen[str]:
    """Start our command on the head as alice; its PID there is written down."""
    words = "echo $$ >/home/alice/pid; exec /opt/perdure/bin/perdure " + " ".join((*arguments, "--dir", PLACE))
    line = cluster.nodes[shape.HEAD].inside("sh", "-c", words, user="alice")
    return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def strike(cluster, deed: str, job: str) -> None:
    """Do to a job what a site's own command does: its processes are those that carry the run's mark, which is the job's name."""
    run_id = cluster.head("squeue", "--noheader", f"--jobs={job}", "-o", "%j").stdout.strip()
    tree = local.leftovers(run_id)
    if deed == "memory":
        memory_group.exhaust(tree)
        return
    above = tree[0]
    while b"seat" not in Path(f"/proc/{above}/cmdline").read_bytes().split(b"\0"):
        above = process.stat(above).parent
    os.kill(above, signal.SIGKILL)


def perdure(cluster, *arguments: str) -> str:
    """Run our command to its end, and be the power switch meanwhile; returns what it printed."""
    switch = cluster.shared / "switch"
    with started(cluster, *arguments) as running:
        while running.poll() is None:
            for asked in switch.iterdir():
                deed, node, job = asked.name.split(",")
                if deed in ("kill", "boot"):
                    (cluster.kill if deed == "kill" else cluster.boot)(node)
                elif deed == "fill":
                    cluster.run(node, "sh", "-c", f"! dd if=/dev/zero of={DISK}/filler bs=4096 && df {DISK} | grep -q ' 100% '")
                elif deed == "free":
                    cluster.run(node, "rm", f"{DISK}/filler")
                else:
                    strike(cluster, deed, job)
                asked.unlink()
            time.sleep(0.1)
        out = running.stdout.read()
    assert running.returncode == 0, out
    return out


def jobs(cluster) -> list[str]:
    return cluster.head("squeue", "--noheader", "--user=alice", "-o", "%j").stdout.split()


def own(raw: Path) -> list[str]:
    """The lines of a job's output that are not Perdure's."""
    return [line for line in (raw / "job-output.log").read_text().splitlines() if not line.startswith("perdure: ")]


def check(there: folders.Folder, run: Run, told: report.Report) -> None:
    """Every figure of a run agrees with what its job wrote, and with the accounting."""
    raw = there.raw / run.id
    read = course.read(run)
    begun = sum(event.kind in (EventKind.LAUNCHED, EventKind.RESTARTED) for event in run.events)
    lives = {life: counting.steps(raw, life) for life in range(1, begun + 1)}
    killed = {each.index for each in read.interruptions if each.kind is FaultKind.AGENT_KILLED}
    for one in told.measures[:2]:
        compared = {point.index for point in one.points if point.run == run.id}
        assert compared == {each.index for each in read.interruptions} - killed
    all_compared = course.read(evaluations.with_faults_marked(run, comparable=True))
    points = {point.index: point for point in loss.points(all_compared)}
    assert len(points) == len(read.interruptions)
    for each in read.interruptions:
        parts, number = points[each.index].parts, each.fault.data["life"]
        before = lives[number]
        after = next(steps for life, steps in lives.items() if life > number and steps)
        assert abs(parts["at_fault"] - before[-1]) <= 1
        assert abs(parts["at_fault"] - parts["recoverable"] - (before[-1] - (after[0] - 1))) <= 1
        assert run.arm is Arm.MANAGED or after[0] == 1
    accounts = run.events[-1].data["accounting"]
    what = [(event.kind.value, event.at_s, event.data) for event in run.events if event.kind is not EventKind.PROGRESS]
    assert len(accounts) == len(lives), (what, (raw / "job-output.log").read_text())
    assert accounts[-1]["state"] == "COMPLETED"
    hours = utilisation.split(read)
    assert isinstance(hours, utilisation.Hours)
    # The accounting counts whole seconds, and so does each begin and end.
    assert abs(hours.allocated_s - run.events[-1].data["allocated_s"]) <= 1 + len(lives)
    recoveries = list(recovery.points(all_compared))
    assert len(recoveries) == len(read.interruptions)
    for point in recoveries:
        assert set(point.parts) == {"detection", "scheduling", "restart", "warm_up"}
        assert sum(point.parts.values()) == pytest.approx(point.value)


def check_checkpoints(there: folders.Folder, unmanaged: Run, managed: Run, told: report.Report) -> None:
    """Perdure told of each checkpoint where the job writes, and the overhead is measured beside them, on the clock of both arms."""
    written = (there.raw / managed.id / "job-output.log").read_text()
    ids = {f"{epoch}.{sequence}" for epoch, sequence in COMMITTED.findall(written)}
    done = {event.data["id"]: event for event in managed.events if event.kind is EventKind.CHECKPOINT_DONE and "id" in event.data}
    assert ids
    assert set(done) == ids
    assert "perdure: event" not in (there.raw / unmanaged.id / "job-output.log").read_text()
    untold = {event.data["from"].rpartition("@")[2] for event in managed.events if event.kind is EventKind.RESTORED} - ids
    # A supervisor that is killed may have made one that it did not come to tell of.
    killed = [event for event in managed.events if event.kind is EventKind.FAULT_INJECTED and event.data["kind"] == "agent-killed"]
    assert len(untold) <= len(killed)
    costs = next(one for one in told.measures if one.kind is MeasureKind.CHECKPOINT_COST)
    assert len(costs.points) == len(ids)
    assert all(0 < point.value < point.parts["elapsed_s"] + 1 and point.parts["stored_bytes"] > 0 for point in costs.points)
    overhead = next(one for one in told.measures if one.kind is MeasureKind.OVERHEAD)
    (point,) = overhead.points
    # No part of the managed time that was compared holds a checkpoint.
    read = course.read(managed)
    timed = sum(each.end - each.start for each in read.stretches if not each.disturbed)
    assert 0 < point.parts["timed"] <= timed
    assert {one.code for one in (*overhead.unmeasured, *costs.unmeasured)} <= {"not-done"}


def evaluate(cluster, there: folders.Folder) -> tuple[list[Run], report.Report]:
    perdure(cluster, "eval", "lock")
    perdure(cluster, "eval", "run")
    found = [run for run in folders.read_runs(there).runs if run.purpose == "arms"]
    assert [run.arm for run in found] == [Arm.UNMANAGED, Arm.MANAGED]
    assert [run.excluded for run in found] == [None, None]
    assert jobs(cluster) == []
    told = report.read(there)
    assert {hours.source for hours in told.window} == {"the scheduler's accounting"}
    for run in found:
        check(there, run, told)
        assert run.environment.host in shape.Shape().nodes
        assert run.environment.versions["python"].startswith("Python 3.")
    check_checkpoints(there, *found, told)
    # Whatever it went through, the managed job's last line is that of an undisturbed one.
    last = {own(there.raw / run.id)[-1] for run in found}
    assert len(last) == 1
    restored = [event for event in found[1].events if event.kind is EventKind.RESTORED]
    assert all(event.data["from"].startswith("slurm-lab-") for event in restored)
    assert not any(event.kind is EventKind.RESTORED for event in found[0].events)
    return found, told


def test_both_arms_and_a_harness_that_was_killed(cluster):
    # Perdure looks every fifth of the grace: that long there has to be work left after the preemption. In 22.05 a job that ends within its
    # grace has ended, where later ones put it into the queue again: there it has to outlast the grace in the other arm, too.
    there = begin(cluster, '["kill", "preemption"]', "[30, 50]", steps=320 if cluster.shape.version == "22.05" else 120)
    with started(cluster, "eval", "baseline", "--no-faults") as harness:
        wait_until(lambda: jobs(cluster), "no job of the baseline", timeout_s=300)
        cluster.head("sh", "-c", "kill -9 $(cat /home/alice/pid)")
        harness.communicate()
    assert len(jobs(cluster)) == 1
    # The same command again ends the job that nobody watches any more, records its run, and makes what is missing.
    perdure(cluster, "eval", "baseline", "--no-faults")
    assert [run.finished for run in folders.read_runs(there).runs] == [False, True, True]
    assert jobs(cluster) == []
    found, _ = evaluate(cluster, there)
    for run in found:
        faults = [event for event in run.events if event.kind is EventKind.FAULT_INJECTED]
        assert sorted(event.data["kind"] for event in faults) == ["kill", "preemption"]
        assert [event.value for event in faults] == [30, 50]
        states = [each["state"] for each in run.events[-1].data["accounting"]]
        assert states.count("PREEMPTED") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "at", "states"),
    [
        ('["node-lost"]', "[60]", ["NODE_FAIL", "COMPLETED"]),
        ('["hang", "kill-tree"]', "[40, 70]", None),
        ('["agent-killed", "out-of-memory"]', "[40, 70]", None),
    ],
    ids=["node-lost", "hang", "agent-killed"],
)
def test_other_faults(cluster, kinds, at, states):
    there = begin(cluster, kinds, at, heartbeat_s=30 if "hang" in kinds else 300)
    perdure(cluster, "eval", "baseline", "--no-faults")
    found, _ = evaluate(cluster, there)
    for run in found:
        assert states is None or [each["state"] for each in run.events[-1].data["accounting"]] == states


@pytest.mark.slow
def test_a_full_disk(cluster):
    cluster.run("n1", "sh", "-c", f"mkdir -p {DISK} && mount -t tmpfs -o size=4m,mode=1777 scratch {DISK}")
    there = begin(cluster, '["disk-full"]', "[50]", site=SITE.replace('"n1", "n2", "n3"', '"n1"'), writes_to=(DISK,))
    perdure(cluster, "eval", "baseline", "--no-faults")
    found, _ = evaluate(cluster, there)
    for run in found:
        (fault,) = (event for event in run.events if event.kind is EventKind.FAULT_INJECTED)
        assert (fault.data["kind"], fault.value) == ("disk-full", 50)
        assert "No space left on device" in (there.raw / run.id / "job-output.log").read_text()
    assert not (Path(f"/proc/{cluster.nodes['n1'].pid}/root{DISK}") / "filler").exists()


@pytest.mark.slow
def test_a_time_limit_that_is_shorter_than_the_work(cluster):
    there = begin(cluster, '["time-limit"]', "[1]", steps=400, more="\ntime_limit_s = 60")
    perdure(cluster, "eval", "baseline", "--no-faults")
    perdure(cluster, "eval", "lock")
    perdure(cluster, "eval", "run")
    unmanaged, managed = (run for run in folders.read_runs(there).runs if run.purpose == "arms")
    assert unmanaged.events[-1].data["completed"] is False
    assert unmanaged.events[-1].data["accounting"][-1]["state"] == "TIMEOUT"
    assert managed.events[-1].data["completed"] is True
    assert len(managed.events[-1].data["accounting"]) > 1
