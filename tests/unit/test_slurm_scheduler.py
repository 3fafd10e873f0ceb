"""What is asked of Slurm and when the job is requeued: squeue and scontrol as programs that answer what Slurm answered."""

from __future__ import annotations

import os
import time

import pytest

from perdure import errors
from perdure.model.checkpoint import CheckpointId, Owner
from perdure.slurm import commands, scheduler
from perdure.slurm.scheduler import Site, SlurmJob
from perdure.supervisor.scheduler import Begun, Standing

ME = Owner(uid=os.geteuid(), gid=os.getegid(), groups=())
CONFIG = """\
Configuration data as of 1796003279
ClusterName             = lab
KillWait                = 30 sec
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
SLURM_VERSION           = {version}

Slurmctld(primary) at head is UP
"""
PARTITION = "PartitionName=main AllowGroups=ALL GraceTime={grace} Hidden=NO PreemptMode={mode} State=UP TRES=cpu=8,mem=4000M\n"


def line(state="RUNNING", *, restarts=0, preempt="N/A", end=None, requeue="1"):
    now_s = int(time.time())
    return f"7|7|{state}|main|{now_s - 60}|{end or now_s + 600}|{preempt}|{restarts}|{requeue}|None|\n"


class Slurm:
    """Programs on the path that print what was laid for them, one answer after the other, the last one again and again."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("squeue", "scontrol"):
            path = folder / name
            path.write_text(
                f'#!/bin/sh\necho "{name} $*" >>{folder}/asked\n'
                f'key={name}; case "$*" in *config*) key=config;; *partition*) key=partition;; requeue*) key=requeue;; esac\n'
                f"n=$(cat {folder}/$key.n 2>/dev/null || echo 0); echo $((n + 1)) >{folder}/$key.n\n"
                f"while [ ! -e {folder}/$key.$n ]; do n=$((n - 1)); [ $n -ge 0 ] || exit 0; done\n"
                f". {folder}/$key.$n\n"
            )
            path.chmod(0o755)

    def answers(self, key, *texts, status=0):
        for number, text in enumerate(texts):
            said = self.folder / f"{key}.{number}.text"
            said.write_text(text)
            (self.folder / f"{key}.{number}").write_text(f"cat {said}{' >&2' if status else ''}\nexit {status}\n")

    @property
    def asked(self):
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Slurm(tmp_path)


def a_job(*, restarts=0, **site):
    return SlurmJob(7, restarts, ME, Site(**{"cluster": "lab", "kill_wait_s": 30.0, "grace_s": 8.0} | site))


def requeues(slurm):
    return [words for words in slurm.asked if "requeue" in words]


def test_a_task_of_an_array_is_requeued_alone(slurm):
    slurm.answers("squeue", line().replace("7|7|", "8|7_1|") + line().replace("7|7|", "7|7_2|"))
    a_job().saved("the allotted time ends in 2 min")
    assert requeues(slurm) == ["scontrol requeue 7_2"]


def test_a_saved_job_is_requeued_once(slurm):
    slurm.answers("squeue", line())
    assert "put into the queue again" in a_job().saved("the allotted time ends in 2 min")
    assert requeues(slurm) == ["scontrol requeue 7"]


@pytest.mark.parametrize(("state", "restarts"), [("RUNNING", 1), ("COMPLETING", 0), ("COMPLETING", 1), ("PENDING", 1)])
def test_an_attempt_that_slurm_is_ending_is_not_requeued_by_us(slurm, state, restarts):
    slurm.answers("squeue", line(state, restarts=restarts))
    assert "is being ended" in a_job().saved("the allotted time ends")
    assert requeues(slurm) == []


def preempted(**more):
    now_s = int(time.time())
    return line(preempt=str(now_s), end=now_s + 600, **more)


def test_a_preempted_job_is_slurms_to_requeue_where_it_does_so_when_the_job_ends(slurm):
    slurm.answers("squeue", preempted())
    assert "Slurm puts the job into the queue again" in a_job(requeues_ended=True).saved("preempted")
    assert requeues(slurm) == []


def test_elsewhere_the_end_of_its_grace_is_waited_for(slurm):
    slurm.answers("squeue", preempted(), preempted(), line("COMPLETING", restarts=1))
    assert "is being ended" in a_job().saved("preempted")
    assert requeues(slurm) == []
    assert sum(words.startswith("squeue") for words in slurm.asked) >= 3


def test_where_preempted_jobs_are_cancelled_it_is_requeued_at_once(slurm):
    slurm.answers("squeue", preempted())
    a_job(cancels=True).saved("preempted")
    assert requeues(slurm) == ["scontrol requeue 7"]


def test_a_refusal_is_final_and_a_controller_that_is_away_is_asked_again(slurm):
    slurm.answers("squeue", line())
    slurm.answers("requeue", "Requested operation is presently disabled for job 7\n", status=1)
    with pytest.raises(errors.Unsupported, match="presently disabled"):
        a_job().saved("the allotted time ends")
    slurm.answers("requeue", "slurm_requeue error: Unable to contact slurm controller (connect failure)\n", status=1)
    with pytest.raises(errors.SchedulerUnavailable, match="Unable to contact"):
        a_job().saved("the allotted time ends")


@pytest.mark.parametrize("text", ["slurm_load_jobs error: Invalid job id specified\n", "slurm_load_jobs error: Socket timed out\n"])
def test_a_job_that_is_not_told_of_is_a_scheduler_that_does_not_answer(slurm, text):
    slurm.answers("squeue", text, status=1)
    with pytest.raises(errors.SchedulerUnavailable):
        a_job().look()


def test_a_program_that_is_not_there_is_a_scheduler_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(errors.SchedulerUnavailable, match="cannot be run"):
        a_job().look()


def test_a_program_that_stays_away_is_not_asked_for_ever_to_put_the_job_back(slurm, tmp_path, monkeypatch):
    now = iter([0.0, 200.0, 250.0, 400.0, 700.0])
    monkeypatch.setattr(commands.time, "monotonic", lambda: next(now))
    job, path = a_job(), os.environ["PATH"]

    def is_tried_again() -> None:
        with pytest.raises(errors.SchedulerUnavailable):
            job.saved("the allotted time ends")

    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    is_tried_again()
    is_tried_again()
    # There again, if with a controller that is away: that one may come back.
    monkeypatch.setenv("PATH", path)
    slurm.answers("squeue", "slurm_load_jobs error: Socket timed out\n", status=1)
    is_tried_again()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    is_tried_again()
    is_tried_again()
    with pytest.raises(errors.Unsupported, match="the job is saved, but") as caught:
        job.saved("the allotted time ends")
    assert "scontrol requeue 7" in caught.value.hint


def test_nothing_of_this_processs_environment_reaches_slurms_programs(slurm, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    (slurm.folder / "squeue").write_text("#!/bin/sh\nexport -p\n")
    shown = commands.run("squeue", owner=ME)
    assert "SECRET" not in shown
    assert "SLURM_CONF" in shown
    assert "SLURM_TIME_FORMAT" in shown


@pytest.mark.parametrize(
    ("version", "mode", "grace", "expected"),
    [
        ("24.11.5", "REQUEUE", "8", Site(cluster="lab", kill_wait_s=30.0, grace_s=8.0, requeues_ended=True)),
        ("22.05.8", "REQUEUE", "0", Site(cluster="lab", kill_wait_s=30.0, grace_s=0.0)),
        ("24.11.5", "CANCEL", "60", Site(cluster="lab", kill_wait_s=30.0, grace_s=60.0, cancels=True)),
        ("24.11.5", "OFF", "60", Site(cluster="lab", kill_wait_s=30.0, grace_s=None)),
    ],
)
def test_a_sites_ways_are_read(slurm, version, mode, grace, expected):
    slurm.answers("config", CONFIG.format(version=version))
    slurm.answers("partition", PARTITION.format(grace=grace, mode=mode))
    assert scheduler.site(ME, "main") == expected


def test_without_preemption_no_partition_is_asked_for(slurm):
    slurm.answers("config", CONFIG.format(version="24.11.5").replace("preempt/partition_prio", "preempt/none"))
    assert scheduler.site(ME, "main").grace_s is None
    assert slurm.asked == ["scontrol show config"]


@pytest.mark.parametrize(("grace_s", "poll_s"), [(None, 60.0), (0.0, 60.0), (4.0, 2.0), (60.0, 12.0), (3600.0, 60.0)])
def test_it_is_looked_at_often_enough_to_see_a_notice(grace_s, poll_s):
    assert a_job(grace_s=grace_s).poll_s == poll_s


def test_each_life_is_told_of_in_one_line():
    begun = Begun(workload="slurm-lab-7", epoch=2, restored_from=CheckpointId("slurm-lab-7", 1, 3), hostname="n2")
    assert a_job(restarts=1).lines(begun) == ("slurm-lab-7, life 2 on n2, restart 1: goes on from slurm-lab-7@1.3",)
    first = Begun(workload="slurm-lab-7", epoch=1, restored_from=None, hostname="n1")
    assert a_job().lines(first) == ("slurm-lab-7, life 1 on n1: starts anew",)


def test_a_look_says_how_the_job_stands(slurm):
    slurm.answers("squeue", line("SUSPENDED"))
    assert a_job().look().standing is Standing.SUSPENDED
    assert slurm.asked[0].startswith("squeue -h -j 7 -O JobID:|,JobArrayID:|,State:|,Partition:|")
