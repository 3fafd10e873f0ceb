"""Pulling from a real Slurm: jobs that ran, failed, lost their node, were requeued and cancelled, read through slurmdbd."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import slurmdbd
from supervised import wait_for

from perdure.history import table

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]

TASKS = sorted({number * number % 997 for number in range(40)})  # no ranges: their list is longer than sacct's usual 64 characters
SOURCE = Path(__file__).resolve().parents[2] / "src"
HOSTILE_NAME = "a|b\nCOMPLETED|c#<script>"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, request):
    """A cluster whose jobs have all ended, their records spread over the last days."""
    try:
        with slurmdbd.cluster(tmp_path_factory.mktemp("slurm")) as running:
            _run_jobs(running)
            _spread_over_days(running)
            yield running
    except slurmdbd.Unfit as lack:
        if "slurm" in request.config.getoption("--require").split(","):
            raise
        pytest.skip(str(lack))


def _run_jobs(cluster: slurmdbd.Cluster) -> None:
    cluster.jobs = {
        "node_fail": cluster.submit("sleep 300", "--gpus=4", "--requeue", "--job-name=pretrain_s1", "--signal=B:USR1@60", "--time=10"),
        "done": cluster.submit("true", "--gpus=a100:2", "--job-name=train 1", user="daemon"),
        "requeued": cluster.submit("sleep 300", "--gpus=1", "--job-name=with|#our|#delimiter", "--time=10"),
        "failed": cluster.submit("exit 3", "--gpus=1", f"--job-name={HOSTILE_NAME}"),
        "killed": cluster.submit("kill -9 $$", "--job-name=Müller", user="daemon"),
        "array": cluster.submit("true", "--array=0-2"),
    }
    jobs = cluster.jobs
    # Before a node goes down: one that is still at work there would fail with it.
    for name, states in {"done": ["COMPLETED"], "failed": ["FAILED"], "killed": ["FAILED"], "array": ["COMPLETED"] * 3}.items():
        cluster.wait(jobs[name], *states)
    cluster.wait(jobs["requeued"], "RUNNING")
    cluster.run("scontrol", "requeue", str(jobs["requeued"]))
    cluster.wait(jobs["node_fail"], "RUNNING")
    node = cluster.run("squeue", "-h", "-o", "%N", "-j", str(jobs["node_fail"])).stdout.strip()
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=broken")
    for name, first in {"requeued": "REQUEUED", "node_fail": "NODE_FAIL"}.items():
        cluster.wait(jobs[name], first, "RUNNING")
        cluster.run("scancel", str(jobs[name]))
        cluster.wait(jobs[name], first, "CANCELLED")
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=rest")
    jobs["waiting"] = cluster.submit("true", "--nodes=2", f"--array={','.join(map(str, TASKS))}%2")
    cluster.wait(jobs["waiting"], "PENDING")
    _wait_until_eligible(cluster, jobs["waiting"])


def _wait_until_eligible(cluster: slurmdbd.Cluster, job: int) -> None:
    """Wait for the scheduler's first look at a job: before it (seconds in 24.11), sacct shows the job in no time window."""
    deadline = time.monotonic() + slurmdbd.LONG_S
    found = ""
    while time.monotonic() < deadline:
        found = cluster.sql(f"SELECT time_eligible FROM lab_job_table WHERE id_job = {job}").strip()
        if found.isdigit() and 0 < int(found) < time.time() - 1:
            return
        time.sleep(0.2)
    raise AssertionError(f"job {job} never became eligible: {found}")


def _spread_over_days(cluster: slurmdbd.Cluster) -> None:
    """Move records into the past, in the real tables: one job three days back, one over a midnight, for two days long."""
    columns = ("time_submit", "time_eligible", "time_start", "time_end")
    shifts = {"done": 3, "killed": 2}
    for name, days in shifts.items():
        moved = ", ".join(f"{column} = {column} - {days * 86400}" for column in columns)
        cluster.sql(f"UPDATE lab_job_table SET {moved} WHERE id_job = {cluster.jobs[name]}")
    midnight = datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0) - datetime.timedelta(days=2)
    start, end = int(midnight.timestamp()) - 7200, int(midnight.timestamp()) + 86400 + 7200
    cluster.sql(
        f"UPDATE lab_job_table SET time_submit = {start}, time_eligible = {start}, time_start = {start}, time_end = {end}"
        f" WHERE id_job = {cluster.jobs['failed']}"
    )


def _attempts(path: Path) -> list[dict]:
    connection = table.connect()
    table.open_attempts(connection, path)
    found = connection.execute("SELECT * FROM attempts ORDER BY db_index")
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _pull(folder, cluster, *options, user=None):
    """Pull in `folder` with the cluster's sacct, as `user`; return the process and its result."""
    sacct = cluster.program("sacct", user=user)
    cluster.program("sacctmgr", user=user)
    command = [
        sys.executable,
        "-m",
        "perdure",
        "history",
        "pull",
        "--days",
        "4",
        "--sacct",
        sacct,
        "-o",
        "attempts.parquet",
        "--json",
        *options,
    ]
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PYTHONPATH": str(SOURCE), "LOGNAME": user or "root"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
    return done, json.loads(done.stdout) if done.returncode == 0 else None


@pytest.fixture(scope="module")
def pulled(cluster, tmp_path_factory):
    """A folder into which everything was pulled, and what was said of it."""
    folder = tmp_path_factory.mktemp("pulled")
    done, result = _pull(folder, cluster)
    assert done.returncode == 0, done.stderr
    return folder, result


def test_everything_in_the_database_arrives_once(cluster, pulled):
    folder, result = pulled
    rows = _attempts(folder / "attempts.parquet")
    by_job = {name: [row for row in rows if row["raw_id"] == str(job)] for name, job in cluster.jobs.items()}

    # Every record of the database.
    in_database = sorted(int(line) for line in cluster.sql("SELECT job_db_inx FROM lab_job_table").split())
    assert sorted(row["db_index"] for row in rows) == in_database
    assert len(rows) == len(in_database)

    lost, again = by_job["node_fail"]
    assert [(row["state"], row["outcome"]) for row in (lost, again)] == [
        ("NODE_FAIL", "infrastructure"),
        ("CANCELLED", "operator_cancel"),
    ]
    assert {(row["gpus"], row["user"], row["account"], row["limit_s"]) for row in (lost, again)} == {(4.0, "nobody", "physics", 600.0)}
    assert again["canceller_uid"] == 0
    assert lost["end"] <= again["submit"] <= again["start"]
    assert "--signal=B:USR1@60" in lost["submit_line"]

    requeued = by_job["requeued"]
    assert [row["state"] for row in requeued] == ["REQUEUED", "CANCELLED"]
    # A name with the delimiter in it spoils the texts at the end of its own record, and nothing else.
    assert {(row["gpus"], row["limit_s"], row["work_dir"]) for row in requeued} == {(1.0, 600.0, "/tmp")}

    (failed,) = by_job["failed"]
    assert (failed["state"], failed["exit_code"], failed["elapsed_s"]) == ("FAILED", 3, 86400 + 4 * 3600)
    assert failed["name"] == HOSTILE_NAME
    (killed,) = by_job["killed"]
    assert (killed["name"], killed["exit_signal"]) == ("Müller", 9)
    assert by_job["done"][0]["outcome"] == "success"
    assert sorted(row["array_task"] for row in rows if row["array_job"] == cluster.jobs["array"]) == [0, 1, 2]
    # What waits is one record that stands for all its tasks.
    (waiting,) = by_job["waiting"]
    assert (waiting["state"], waiting["outcome"], waiting["array_tasks"], waiting["nodes"]) == ("PENDING", "never_started", len(TASKS), 0)

    assert result["pull"]["sacct"].startswith("slurm")
    assert (result["pull"]["days"], result["pull"]["asked_days"]) == (5, 5)
    assert result["import"]["unaccounted"] == 0
    assert result["import"]["unreadable"] == 0
    assert not [note for note in result["notes"] if "visible" in note]


def test_the_pull_has_what_sacct_shows_when_asked_in_one_go(cluster, pulled):
    listed = cluster.run(*("sacct", "-a", "-D", "-X", "-P", "-n", "-S", "now-5days", "-o", "State"))
    expected = Counter(line.split()[0] for line in listed.stdout.splitlines())
    found = Counter(row["state"] for row in _attempts(pulled[0] / "attempts.parquet"))
    assert found == expected


def test_what_is_kept_is_private_and_windows_overlap(cluster, pulled):
    folder, _ = pulled
    assert (folder / "attempts.days").stat().st_mode & 0o777 == 0o700
    assert (folder / "attempts.parquet").stat().st_mode & 0o777 == 0o600
    # The job over two midnights is in three days' files, and in the table once.
    texts = [path.read_text() for path in sorted((folder / "attempts.days").glob("*.txt"))]
    assert sum("|#{0}|#{0}|#".format(cluster.jobs["failed"]) in text for text in texts) == 3


def test_an_ordinary_user_is_told_that_others_were_hidden_and_that_windows_are_limited(cluster, tmp_path):
    done, result = _pull(tmp_path, cluster, user="daemon")
    assert done.returncode == 0, done.stderr
    assert {row["user"] for row in _attempts(tmp_path / "attempts.parquet")} == {"daemon"}
    assert [note for note in result["notes"] if "Only your own jobs (daemon) were visible" in note and "no operator" in note]
    # The site allows 12 hours at a time to those who are not operators; its own words make the pull halve its days.
    assert len(result["pull"]["split_days"]) >= 4
    assert "Too wide of a date range" in done.stderr


@pytest.mark.parametrize("daemon", ["slurmdbd", "mariadbd"])
def test_a_database_that_is_down_ends_the_pull_and_the_next_one_goes_on(cluster, pulled, daemon):
    folder, first = pulled
    (folder / "attempts.parquet").unlink()
    cluster.stop(daemon)
    try:
        done, _ = _pull(folder, cluster, "--retries", "0")
    finally:
        cluster.start(daemon)
    assert done.returncode == 30
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["retryable"]
    assert "Problem talking to the database" in error["message"]
    assert not (folder / "attempts.parquet").exists()
    done, result = _pull(folder, cluster)
    assert done.returncode == 0, done.stderr
    # Today is asked for again, and yesterday within the hour after midnight.
    assert result["pull"]["asked_days"] in {1, 2}
    assert result["import"]["attempts"] == first["import"]["attempts"] == len(_attempts(folder / "attempts.parquet"))


def test_no_daemon_is_left_when_it_is_over(tmp_path):
    """The cluster ends with its first process, in whatever state it is."""
    with slurmdbd.cluster(tmp_path) as running:
        inside = running.run("pidof", "slurmctld", "slurmdbd", "mariadbd", "munged").stdout.split()
        assert len(inside) == 4
    # Killed, they take a moment to go.
    wait_for(lambda: str(tmp_path) not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout)
