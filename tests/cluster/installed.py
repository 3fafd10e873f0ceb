"""Perdure on the nodes, as an admin puts it there: `perdure slurm install`, run on the head, over ssh. Called by tests and `cluster.shell`.

What runs it is an environment of the root file system with the checkout's code, so that nothing has to be built first. Most tests need
what an installation leaves and not its making: `running` makes it on one node, once for each state of the code, and gives it to all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster import rootfs, shape, slurm
from cluster.machine import SOURCE
from cluster.slurm import Cluster, Shape

STORE = "/shared/perdure"
LEASE_TTL = "15s"
_ADMIN = ("/opt/perdure-base/bin/python", "-m", "perdure")
_ENVIRONMENT = {"PYTHONPATH": "/run/source", "PYTHONDONTWRITEBYTECODE": "1"}
_WORDS = ("--store", STORE, "--lease-ttl", LEASE_TTL)
_KEPT = ("opt/perdure", "etc/perdure", "var/lib/perdure", "var/cache/perdure")
"""Folders of a node that are Perdure's alone."""
_OTHERS = 4
"""So many installations of other states of the code, other checkouts' perhaps, stay; and those that a cluster stands on."""


def admin(cluster: Cluster, *arguments: str, check: bool = True, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """Run the checkout's `perdure` on the head as root, as an admin who has not installed anything there yet."""
    return cluster.head(*_ADMIN, *arguments, env=_ENVIRONMENT, check=check, timeout_s=timeout_s)


def install(cluster: Cluster, *nodes: str) -> subprocess.CompletedProcess[str]:
    """Install on `nodes`, by default on all and the head, and start their agents. Raises `Failed`."""
    names = nodes or (shape.HEAD, *cluster.shape.nodes)
    done = admin(cluster, "slurm", "install", "--node-list", ",".join(names), *_WORDS)
    for name in names:
        cluster.start_agent(name)
    return done


def uninstall(cluster: Cluster, *nodes: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Take Perdure out of `nodes` again, by default of all and the head. Raises `Failed`."""
    return admin(cluster, "slurm", "uninstall", "--node-list", ",".join(nodes or (shape.HEAD, *cluster.shape.nodes)), check=check)


@contextlib.contextmanager
def running(folder: Path, shape_: Shape | None = None) -> Iterator[Cluster]:
    """Start a cluster, as `slurm.running` does, on whose nodes and head Perdure is installed and its agents run."""
    chosen = shape_ or Shape()
    with template(chosen.version) as installed, slurm.running(folder, chosen, template=installed) as cluster:
        for name in cluster.nodes:
            cluster.wait_agent(name)
        yield cluster


@contextlib.contextmanager
def template(version: str) -> Iterator[Path]:
    """Give what an installation of the code as it is now leaves on a node, made if nobody has; nobody removes it meanwhile."""
    name = _name(version)
    with contextlib.ExitStack() as stack:
        with rootfs.once(name) as target:
            stack.enter_context(rootfs.kept(name))
            if not target.is_dir():
                _make(version, target)
        # Said to be used: the oldest are removed first.
        os.utime(target)
        yield target


def _name(version: str) -> str:
    code = hashlib.blake2b(digest_size=8)
    code.update(rootfs.place(version).name.encode())
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            code.update(f"{path.relative_to(SOURCE)}\0".encode())
            code.update(hashlib.blake2b(path.read_bytes()).digest())
    return f"installed-{version}-{code.hexdigest()}"


def _make(version: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=rootfs.CACHE) as scratch:
        folder, fresh = Path(scratch, "cluster"), Path(scratch, "fresh")
        folder.mkdir()
        with slurm.running(folder, Shape(version=version, nodes=("n1",))) as cluster:
            cluster.run("n1", *_ADMIN, "slurm", "install", "--here", *_WORDS, env=_ENVIRONMENT, timeout_s=600)
            # Tries CRIU and remembers the outcome, as the first job on each node would.
            cluster.run("n1", "/opt/perdure/bin/perdure", "doctor", check=False, timeout_s=600)
            _take(cluster, fresh)
        fresh.rename(target)
        _remove_older(target)


def _take(cluster: Cluster, target: Path) -> None:
    """Copy all that the installation made on n1, by its own list, to `target`: its disk, and what is in the shared folder."""
    disk = cluster.folder / "nodes/n1"
    for name in _KEPT:
        (target / "disk" / name).parent.mkdir(parents=True, exist_ok=True)
        if (disk / name).is_dir():
            shutil.copytree(disk / name, target / "disk" / name, symlinks=True)
    for entry in json.loads((disk / "var/lib/perdure/install.json").read_text())["entries"]:
        path = entry["path"].lstrip("/").replace("usr/local/", "local/", 1)
        if not path.startswith((*_KEPT, "shared/", "run/")) and entry["kind"] in ("file", "link"):
            copy = target / "disk" / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(disk / path, copy, follow_symlinks=False)
    shutil.copytree(cluster.shared, target / "shared", symlinks=True)


def _remove_older(target: Path) -> None:
    kind = target.name.rsplit("-", 1)[0]
    others = [path for path in rootfs.CACHE.glob(f"{kind}-*") if path.is_dir() and path != target]
    for old in sorted(others, key=_used_s)[:-_OTHERS]:
        rootfs.remove(old, f"{old.name}.lock")


def _used_s(path: Path) -> float:
    """Return when it was last used; 0 where another run has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        with template(wanted):
            pass
