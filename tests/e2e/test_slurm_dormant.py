"""Nothing is opted in: a job is the same, byte for byte, with Perdure on its node and without."""

from __future__ import annotations

import re

import pytest
from cluster import installed, slurm, work

pytestmark = pytest.mark.cluster

# The node's service is left out, and the admin's way in: they are no part of any job.
# What a job can see of itself and of its node: environment, processes, descriptors, limits, mounts, control groups, files.
_LOOK = r"""
rm -rf look; mkdir look; cd look
echo '== environment'; env -0 | sort -z | tr '\0' '\n'
# Nor where processes are: what comes behind the bar is the shell itself until it has become another program.
echo '== processes'; ps -e -o uid,args --no-headers -H >seen; grep -v -e 'perdure agent$' -e 'perdure[.]agent[.]leftovers$' -e sshd seen
# No pipelines where descriptors are looked at: the shell's own ends of them come and go.
echo '== tree'; pid=$$; while [ $pid -gt 1 ]; do ps -o args= -p $pid; pid=$(ps -o ppid= -p $pid | tr -d ' '); done
echo '== descriptors'; ls -l /proc/$$/fd >seen; sed 's/.* \([0-9]* -> \)/\1/' seen
echo '== limits'; cat /proc/$$/limits
# By the shell itself: it blocks signals while it starts a program, and that may already look.
echo '== status'; while read -r line; do case $line in
    Uid*|Gid*|Groups*|SigBlk*|SigIgn*|SigCgt*|Cap*|NoNewPrivs*|Seccomp*|Cpus_allowed*|\
    Umask*|Threads*) echo "$line" ;; esac; done </proc/$$/status
echo '== mounts'; cut -d' ' -f3- /proc/$$/mountinfo
echo '== namespaces'; readlink /proc/$$/ns/*
echo '== maps'; sed 's/.* //' /proc/$$/maps | sort -u
echo '== control groups'; cat /proc/$$/cgroup
echo '== step'
srun sh -c 'env | sort; ls -l /proc/$$/fd >seen; sed "s/.* \([0-9]* -> \)/\1/" seen
    while read -r line; do case $line in Uid*|Cap*|SigBlk*|SigIgn*|SigCgt*) echo "$line" ;; esac; done </proc/$$/status'
rm seen
echo done >made-by-the-job
# How large a folder is depends on what else was ever in it.
echo '== files'; ls -lA | tail -n +2; stat -c '%A %h %U %G %n' . ..
"""
# Of a job's own, and different each time.
_NUMBERS = (
    (r"(?m)^(SLURM\w*SLUID)=.*", r"\1=…"),
    (r"(?m)^(SLURM_JOB_START_TIME|SLURM_JOB_END_TIME|SLURM_TASK_PID|SLURM_SRUN_COMM_PORT|SLURM_STEP_LAUNCHER_PORT)=.*", r"\1=…"),
    (r"(pipe|socket):\[[0-9]+\]", r"\1:[…]"),
    (r"[A-Z][a-z]{2} +[0-9]+ [0-9]{2}:[0-9]{2}", "…"),
)


@pytest.fixture(scope="module")
def looks(tmp_path_factory):
    """What the same job saw before Perdure was installed, with it, and after it was taken out; and what changed of Perdure's own files."""
    with slurm.running(tmp_path_factory.mktemp("cluster"), slurm.Shape(nodes=("n1",))) as cluster:
        without = _look(cluster)
        installed.install(cluster)
        before = _own_files(cluster)
        given = _look(cluster)
        after = _own_files(cluster)
        installed.uninstall(cluster)
        yield without, given, _look(cluster), before, after


def _look(cluster: slurm.Cluster) -> str:
    job = cluster.submit("alice", _LOOK, "--output=look.%j")
    cluster.wait_state(job, "COMPLETED")
    seen = work.without_waiting((cluster.home / "alice" / f"look.{job}").read_text()).replace(str(job), "JOB")
    for pattern, instead in _NUMBERS:
        seen = re.sub(pattern, instead, seen)
    return seen


def _own_files(cluster: slurm.Cluster) -> str:
    """Return all files of Perdure's on the node and in the store, with times and sizes."""
    places = "/opt/perdure /etc/perdure /var/lib/perdure /var/cache/perdure /run/perdure /shared/perdure"
    script = f"find {places} -printf '%p %y %m %u %s %T@\\n' 2>/dev/null | sort"
    return cluster.run("n1", "sh", "-c", script).stdout


def test_a_job_that_is_not_opted_in_is_the_same_byte_for_byte(looks):
    without, given, afterwards, _before, _after = looks
    assert "== step" in without
    assert without.count("SLURM_JOB_ID=JOB") == 2
    assert given == without
    assert afterwards == without


def test_it_leaves_no_trace_in_perdures_own_files(looks):
    *_seen, before, after = looks
    assert "/opt/perdure" in before
    assert after == before
