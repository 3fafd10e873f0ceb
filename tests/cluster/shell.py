"""A shell on a login node of a cluster that lasts as long as the shell. Called by `scripts/cluster`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from cluster import installed, rootfs, shape
from cluster.slurm import Cluster, Failed, Shape, running

_TO_TRY = """\

A Slurm {version} cluster: you are {user} on head; n1, n2 and n3 run jobs, each with 4 cores and 2 GPUs (in name only).
Another terminal, as root, breaks things:  {enter}
  kill -9 the first process of a node to cut its power:  {kills}
To try:
  sinfo; sbatch --wrap 'hostname; sleep 60'; squeue; sacct
  PERDURE=every=10s sbatch --wrap 'for i in $(seq 600); do echo $i; sleep 1; done'     (opted in; a requeue goes on where it was)
  sbatch --comment=perdure …          (the same by comment);  scontrol requeue JOB, scancel JOB
  perdure slurm status; perdure ps
exit ends everything.
"""


def main() -> int:
    """Start a cluster and a shell; return the shell's status."""
    parser = argparse.ArgumentParser(prog="scripts/cluster", description="A Slurm cluster on this machine, and a shell on its login node.")
    parser.add_argument("--slurm", default="24.11", choices=sorted(rootfs.SUITES), help="version of Slurm")
    parser.add_argument("--user", default="alice", choices=[*shape.USERS, "root"])
    parser.add_argument("--bare", action="store_true", help="without Perdure on the nodes")
    wanted = parser.parse_args()
    try:
        rootfs.make(wanted.slurm)
        with tempfile.TemporaryDirectory(prefix="perdure-cluster-", ignore_cleanup_errors=True) as above:
            folder = Path(above) / "cluster"
            folder.mkdir()
            Path(above).chmod(0o755)
            with running(folder, Shape(version=wanted.slurm)) as cluster:
                return _shell(cluster, user=wanted.user, bare=wanted.bare)
    except (rootfs.Missing, Failed) as error:
        sys.stderr.write(f"cluster: {error}\n")
        return 1


def _shell(cluster: Cluster, *, user: str, bare: bool) -> int:
    if not bare:
        installed.install(cluster)
    kills = ", ".join(f"{name} {node.pid}" for name, node in cluster.nodes.items() if name != shape.HEAD)
    enter = f"nsenter -t {cluster.nodes[shape.HEAD].pid} -a bash"
    sys.stdout.write(_TO_TRY.format(version=cluster.shape.version, user=user, enter=enter, kills=kills))
    sys.stdout.flush()
    # A terminal of the node's own, so that the shell has job control.
    inside = cluster.nodes[shape.HEAD].inside("script", "-q", "-c", "bash -l", "/dev/null", user=None if user == "root" else user)
    return subprocess.call(inside)


if __name__ == "__main__":
    sys.exit(main())
