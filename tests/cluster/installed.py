"""Perdure on the nodes, as an admin puts it there: `perdure slurm install`, run on the head, over ssh. Called by tests and `cluster.shell`.

What runs it is an environment of the root file system with the checkout's code, so that nothing has to be built first.
"""

from __future__ import annotations

import subprocess

from cluster import shape
from cluster.slurm import Cluster

STORE = "/shared/perdure"
LEASE_TTL = "15s"
_ADMIN = ("/opt/perdure-base/bin/python", "-m", "perdure")
_ENVIRONMENT = {"PYTHONPATH": "/run/source", "PYTHONDONTWRITEBYTECODE": "1"}


def admin(cluster: Cluster, *arguments: str, check: bool = True, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run the checkout's `perdure` on the head as root, as an admin who has not installed anything there yet."""
    return cluster.head(*_ADMIN, *arguments, env=_ENVIRONMENT, check=check, timeout_s=timeout_s)


def install(cluster: Cluster, *nodes: str) -> subprocess.CompletedProcess[str]:
    """Install on `nodes`, by default on all and the head. Raises `Failed`."""
    names = nodes or (shape.HEAD, *cluster.shape.nodes)
    done = admin(cluster, "slurm", "install", "--node-list", ",".join(names), "--store", STORE, "--lease-ttl", LEASE_TTL)
    for name in names:
        cluster.start_agent(name)
    return done


def uninstall(cluster: Cluster, *nodes: str) -> subprocess.CompletedProcess[str]:
    """Take Perdure out of `nodes` again, by default of all and the head. Raises `Failed`."""
    return admin(cluster, "slurm", "uninstall", "--node-list", ",".join(nodes or (shape.HEAD, *cluster.shape.nodes)))
