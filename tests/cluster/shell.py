"""A shell on a login node of a cluster that lasts as long as the shell. Called by `scripts/cluster`."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster import control, installed, rootfs, shape
from cluster.slurm import Cluster, Failed, Shape, running

_TO_TRY = """\

A Slurm {version} cluster: you are {user} on head; n1, n2 and n3 run jobs, each with 4 cores and 2 GPUs (in name only).
To try:
  sinfo; sbatch --wrap 'hostname; sleep 60'; squeue; sacct
"""
_WITH_PERDURE = """\
  PERDURE=every=10s sbatch --wrap 'for i in $(seq 600); do echo $i; sleep 1; done'     (opted in; a requeue goes on where it was)
  sbatch --comment=perdure …          (the same by comment);  scontrol requeue JOB, scancel JOB;  perdure store ls
"""
_FROM_OUTSIDE = """\
Another terminal, as root, in this checkout:
  scripts/cluster kill n1    cuts its power; boot n1 starts it again;  cut n1 takes it off the network; heal n1 connects it again
  {enter}    a shell of root on head{root}
exit ends everything.
"""
_TERMINALS = frozenset({"linux", "vt100", "xterm", "xterm-256color", "screen", "screen-256color", "tmux", "tmux-256color"})
"""Those that the nodes know too."""


def main() -> int:
    """Start a cluster and a shell, or do something to a node of one that runs; return the exit status."""
    deeds = "".join(f"\n  {name} NODE…   {meaning}" for name, meaning in control.DEEDS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/cluster",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="A Slurm cluster on this machine, and a shell on its login node.",
        epilog=f"While it runs, from another terminal:{deeds}",
    )
    parser.add_argument("--slurm", default="24.11", choices=sorted(rootfs.SUITES), help="version of Slurm")
    parser.add_argument("--user", default="alice", choices=[*shape.USERS, "root"])
    parser.add_argument("--bare", action="store_true", help="without Perdure on the nodes")
    parser.add_argument("deed", nargs="?", choices=sorted(control.DEEDS), metavar="DEED", help="to do to nodes of the cluster that runs")
    parser.add_argument("nodes", nargs="*", metavar="NODE")
    wanted = parser.parse_args()
    if wanted.deed is not None:
        if not wanted.nodes:
            parser.error(f"say which: scripts/cluster {wanted.deed} n1")
        return control.ask(wanted.deed, wanted.nodes)
    try:
        rootfs.make(wanted.slurm)
        with tempfile.TemporaryDirectory(prefix=control.PREFIX, ignore_cleanup_errors=True) as above:
            folder = Path(above) / "cluster"
            folder.mkdir()
            Path(above).chmod(0o755)
            with _cluster(folder, Shape(version=wanted.slurm), bare=wanted.bare) as cluster:
                control.Control(cluster, Path(above)).start()
                return _shell(cluster, user=wanted.user, bare=wanted.bare)
    except (rootfs.Missing, Failed) as error:
        sys.stderr.write(f"cluster: {error}\n")
        return 1


@contextlib.contextmanager
def _cluster(folder: Path, chosen: Shape, *, bare: bool) -> Iterator[Cluster]:
    """Start the cluster, and say that this takes a moment."""
    sys.stderr.write(f"cluster: starting Slurm {chosen.version} on head and {', '.join(chosen.nodes)}\n")
    if not bare:
        installed.template(chosen.version)
    with running(folder, chosen) if bare else installed.running(folder, chosen) as cluster:
        yield cluster


def _shell(cluster: Cluster, *, user: str, bare: bool) -> int:
    head = cluster.nodes[shape.HEAD]
    sys.stdout.write(_TO_TRY.format(version=cluster.shape.version, user=user))
    if not bare:
        sys.stdout.write(_WITH_PERDURE)
    root = "" if bare else ": perdure slurm status; perdure slurm policy"
    sys.stdout.write(_FROM_OUTSIDE.format(enter=f"nsenter -t {head.pid} -a bash -l", root=root))
    sys.stdout.flush()
    known = os.environ.get("TERM", "")
    terminal = {"TERM": known if known in _TERMINALS else "xterm"}
    # A terminal of the node's own, so that the shell has job control.
    shell = head.inside("script", "-q", "-e", "-c", "bash -l", "/dev/null", user=None if user == "root" else user, env=terminal)
    return subprocess.call(shell)


if __name__ == "__main__":
    sys.exit(main())
