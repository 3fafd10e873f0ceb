"""The test cluster itself: what the proofs on it stand on must be true first."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cluster import shape, slurm
from cluster.machine import wait_until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]

_HOLDER = """\
import pathlib, sys
from cluster import slurm
with slurm.running(pathlib.Path(sys.argv[1]), slurm.Shape(nodes=("n1",))) as cluster:
    print(*(node.pid for node in cluster.nodes.values()), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm.running(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_a_users_job_runs_as_that_user_and_is_accounted_for_with_its_gpus(cluster):
    job = cluster.submit("alice", "id -u; id -Gn; hostname; echo $CUDA_VISIBLE_DEVICES\n", "-G1", "-w", "n2")
    cluster.wait_state(job, "COMPLETED")
    assert cluster.output(job).split("\n")[:3] == ["2001", "alice projx", "n2"]
    assert [attempt[0] for attempt in cluster.attempts(job)] == ["COMPLETED"]
    fields = cluster.head("sacct", "-a", "-X", "-n", "-P", "-j", str(job), "-o", "User,Account,State,ExitCode,AllocTRES").stdout.strip()
    user, account, state, code, resources = fields.split("|")
    assert (user, account, state, code) == ("alice", "physics", "COMPLETED", "0:0")
    assert "gres/gpu=1" in resources.split(",")


def test_a_jobs_own_status_is_in_the_accounting(cluster):
    job = cluster.submit("bob", "exit 3\n")
    cluster.wait_state(job, "FAILED")
    assert cluster.attempts(job) == [("FAILED", "3:0", cluster.job(job)["NodeList"])]


def test_who_has_no_account_may_not_submit(cluster):
    refused = cluster.head("sbatch", "--wrap=true", user="carol", check=False)
    assert (refused.returncode, "Invalid account" in refused.stderr) == (1, True)


def test_a_higher_partition_preempts_and_the_job_is_queued_again(cluster):
    job = cluster.submit("alice", "sleep 600\n", "-w", "n3", "--exclusive")
    cluster.wait_state(job, "RUNNING")
    higher = cluster.submit("bob", "sleep 600\n", "-w", "n3", "--exclusive", "-p", "high")
    cluster.wait_state(higher, "RUNNING")
    assert cluster.state(job) == "PENDING"
    cluster.head("scancel", str(job), str(higher))
    wait_until(lambda: [row[0] for row in cluster.attempts(job)][:1] == ["PREEMPTED"], "no record of it", timeout_s=slurm.LONG_S)


def test_folders_are_shared_where_a_site_shares_them_and_private_elsewhere(cluster):
    cluster.run("n1", "sh", "-c", "echo here | tee /home/alice/f /shared/f /var/spool/f /tmp/f /etc/f /dev/shm/f", user=None)
    seen = cluster.run("n2", "sh", "-c", "ls /home/alice/f /shared/f /var/spool/f /tmp/f /etc/f /dev/shm/f 2>/dev/null", check=False)
    assert seen.stdout.split() == ["/home/alice/f", "/shared/f"]


def test_a_node_that_is_cut_off_reaches_neither_the_others_nor_the_shared_folders(cluster):
    assert cluster.run("n1", "ls", "/shared", user="bob", check=False).returncode == 0
    cluster.cut("n1")
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run("n1", "ls", "/shared", user="bob", timeout_s=2, cwd="/")
    assert cluster.run("n1", "timeout", "-s", "KILL", "5", "scontrol", "ping", check=False).stdout.count("UP") == 0
    cluster.heal("n1")
    assert cluster.run("n1", "ls", "/shared", user="bob").returncode == 0
    # The first packets may still be sent to nobody.
    wait_until(
        lambda: "UP" in cluster.run("n1", "scontrol", "ping", check=False).stdout, "it does not reach the head", timeout_s=slurm.LONG_S
    )


def test_a_cluster_by_hand_has_a_shell_and_is_broken_and_mended_from_another_terminal():
    with tempfile.TemporaryDirectory(prefix="by-hand-") as folder:
        Path(folder).chmod(0o755)
        words = [str(ROOT / "scripts/cluster")]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": os.environ | {"TMPDIR": folder}}
        shell = subprocess.Popen([*words, "--bare", f"--slurm={shape.DEFAULT_VERSION}"], stdin=subprocess.PIPE, **options)
        with shell:
            said = list(itertools.takewhile(lambda line: line != "exit ends everything.\n", shell.stdout))
            assert any("you are alice on head" in line for line in said), said
            deeds = ("kill n1", "kill n1", "kill head", "boot n1", "boot n1", "cut n2", "heal n2")
            tried = [(deed, subprocess.run([*words, *deed.split()], timeout=300, **options)) for deed in deeds]
            told, _ = shell.communicate("sbatch --parsable --wait -w n2 --wrap 'echo ran' && cat slurm-*.out\nexit 7\n", timeout=300)
        assert [done.returncode for _deed, done in tried] == [0, 1, 1, 0, 1, 0, 0], [(deed, done.stdout) for deed, done in tried]
        assert (shell.returncode, "\nran" in told.replace("\r", "")) == (7, True), told
        assert "no cluster runs here" in subprocess.run([*words, "kill", "n1"], timeout=300, **options).stdout


def test_nothing_is_left_when_the_holder_of_a_cluster_is_killed(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    with holder:
        pids = holder.stdout.readline().split()
        assert len(pids) == 2
        # For as long as they are held, no other namespace gets their numbers.
        held = [os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY) for pid in pids]
        namespaces = [os.fstat(descriptor).st_ino for descriptor in held]
        holder.send_signal(signal.SIGKILL)
    try:
        wait_until(lambda: not _live(namespaces), "processes of the nodes are left", timeout_s=60)
    finally:
        for descriptor in held:
            os.close(descriptor)


def _live(namespaces: list[int]) -> list[str]:
    """Return the processes that are in one of the PID `namespaces`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.stat(entry / "ns/pid").st_ino in namespaces:
                    found.append(entry.name)
            except OSError:
                continue
    return found
