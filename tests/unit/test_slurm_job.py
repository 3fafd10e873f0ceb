"""A job as squeue shows it, judged; lines as Slurm 22.05.8 and 24.11.5 printed them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model.checkpoint import check_name
from perdure.slurm import job, naming
from perdure.supervisor.scheduler import Notice, Standing

S = 10**9


def line(state="RUNNING", *, start=1796003279, end="1796003579", preempt="N/A", restarts=0, requeue="1", reason="None"):
    return f"7|7|{state}|main|{start}|{end}|{preempt}|{restarts}|{requeue}|{reason}|\n"


def judged(text, *, restarts=0, grace_s=8.0):
    return job.judge(job.parse(text, 7), restarts=restarts, grace_s=grace_s)


def test_a_running_job_has_its_end_and_no_notice():
    outlook = judged(line())
    assert (outlook.standing, outlook.end_ns, outlook.notice, outlook.returns) == (Standing.RUNNING, 1796003579 * S, None, True)
    assert job.parse(line(), 7).partition == "main"


def test_a_task_of_an_array_is_told_apart_from_the_others():
    """As Slurm 24.11.5 answers for the number of an array's last task, which is that of the array."""
    tasks = line("COMPLETING").replace("7|7|", "8|7_1|") + line(restarts=2).replace("7|7|", "7|7_2|") + "9|7_3|PENDING|main|N/A"
    seen = job.parse(tasks, 7)
    assert (seen.address, seen.state, seen.restarts) == ("7_2", "RUNNING", 2)
    with pytest.raises(ValueError, match="not squeue's line"):
        job.parse(tasks, 6)


def test_a_job_without_a_limit_has_no_end():
    assert judged(line(end="N/A")).end_ns is None
    assert judged(line(end="NONE")).end_ns is None


@pytest.mark.parametrize(
    ("text", "standing"),
    [
        (line("COMPLETING", end="1796003280"), Standing.CANCELLED),  # scancel
        (line("COMPLETING", restarts=1), Standing.LEAVING),  # scontrol requeue, preemption
        (line("COMPLETING", restarts=1, reason="job requeued in held state"), Standing.LEAVING),  # scontrol requeuehold
        (line("PENDING", start="N/A", restarts=1, reason="BeginTime"), Standing.LEAVING),
        (line("RUNNING", restarts=1), Standing.LEAVING),  # elsewhere already: this node was given up
        (line("COMPLETING", reason="TimeLimit"), Standing.LEAVING),
        (line("SUSPENDED"), Standing.SUSPENDED),
        (line("CONFIGURING"), Standing.RUNNING),
        (line("FAILED"), Standing.CANCELLED),
    ],
)
def test_why_a_job_is_being_ended(text, standing):
    assert judged(text).standing is standing


def test_a_preemption_is_a_notice_until_its_grace_is_over():
    outlook = judged(line(end="1796003345", preempt="1796003337"))
    assert outlook.notice == Notice(1796003345 * S, "preempted")
    assert outlook.end_ns == 1796003345 * S


def test_the_preemption_of_an_earlier_attempt_is_none():
    assert judged(line(start=1796003400, end="1796003700", preempt="1796003337", restarts=1), restarts=1).notice is None


def test_a_job_that_may_not_be_requeued_would_not_come_back():
    assert judged(line(requeue="0")).returns is False


@pytest.mark.parametrize(
    "text", ["", "\n", "slurm_load_jobs error: Invalid job id specified", "7|7||main|1|2|N/A|0|1|None|", line().replace("|0|", "|x|")]
)
def test_what_is_no_line_of_squeue_is_refused(text):
    with pytest.raises(ValueError, match=r"squeue|invalid literal"):
        job.parse(text, 7)


def test_a_name_says_cluster_job_and_step_and_is_read_back():
    assert naming.name("lab", 7, naming.BATCH) == "slurm-lab-7"
    assert naming.name("lab", 7, "0") == "slurm-lab-7.0"
    assert naming.read("slurm-lab-7") == ("lab", 7, naming.BATCH)
    assert naming.read("slurm-my-lab.x-12.3") == ("my-lab.x", 12, "3")
    assert naming.read("train-7b") is None


@given(
    cluster=st.text(max_size=60),
    number=st.integers(1, 2**32 - 2),
    step=st.one_of(st.just(naming.BATCH), st.integers(0, 2**32 - 1).map(str)),
)
def test_whatever_a_cluster_is_called_the_name_is_one(cluster, number, step):
    made = naming.name(cluster, number, step)
    assert check_name(made) == made
    found = naming.read(made)
    assert found is not None
    assert found[1:] == (number, step)
