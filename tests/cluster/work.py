"""What the jobs of tests do, and what they must have written in the end. Called by the end-to-end tests."""

from __future__ import annotations

import hashlib
import re

from cluster import shape
from cluster.installed import STORE
from cluster.slurm import Cluster

# Its state is in its memory alone: started again, it counts from 0, and adds a line to the file of its starts.
_COUNT = """\
import hashlib, os, sys, time
total, pause_s, status, starts = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
gate, hurries = "".join(sys.argv[5:6]), "hurries" in sys.argv[6:]
with open(starts, "a") as file:
    file.write("started\\n")
digest = hashlib.sha256()
for number in range(total):
    while number == total - 1 and gate and not os.path.exists(gate):
        time.sleep(0.1)
    digest.update(b"%d" % number)
    print(number, digest.hexdigest()[:16], flush=True)
    time.sleep(0 if hurries and os.path.exists(gate) else pause_s)
sys.exit(status)
"""


def lay(cluster: Cluster) -> None:
    """Put the programs of the jobs where all nodes see them."""
    path = cluster.shared / "count.py"
    path.write_text(_COUNT)
    path.chmod(0o644)


def count(number: int, pause_s: float, *, name: str, status: int = 0, waits: bool = False, hurries: bool = True) -> str:
    """Return a batch script that counts to `number`, a line each `pause_s` seconds, and ends with `status`.

    One that `waits` writes its last line only when there is ``NAME.go`` in the user's home. From then on it `hurries`: it looks for that
    after each line, and so stands still where its node is cut off. One that does not hurry touches no file before its last line.
    """
    gate = f" $HOME/{name}.go{' hurries' if hurries else ''}" if waits else ""
    return f"exec python3 /shared/count.py {number} {pause_s} {status} $HOME/{name}.starts{gate}\n"


def files(name: str) -> tuple[str, str]:
    """Return sbatch's options that send the job's output to files of its own in the user's home."""
    return f"--output={name}.out", f"--error={name}.err"


def lines(number: int) -> str:
    """Return what an undisturbed run of `count` writes."""
    digest = hashlib.sha256()
    written = []
    for value in range(number):
        digest.update(b"%d" % value)
        written.append(f"{value} {digest.hexdigest()[:16]}\n")
    return "".join(written)


def written(cluster: Cluster, user: str, name: str, kind: str = "out") -> str:
    """Return what a job of `user` has written to ``NAME.KIND`` in her home so far."""
    path = cluster.home / user / f"{name}.{kind}"
    return without_waiting(path.read_text(errors="replace")) if path.exists() else ""


def without_waiting(text: str) -> str:
    """Leave out what srun says where a step must wait for its turn, as it must on a busy machine."""
    return re.sub(r"(?m)^srun: (?:Job \S+ step creation|Step created for|Slurm is busy).*\n", "", text)


def checkpoints(cluster: Cluster, uid: int, job: int | str) -> list[str]:
    """Return the names of a job's, or with ``7.0`` of a step's, checkpoints in the store of the user with `uid`, the oldest first."""
    folder = cluster.folder / STORE.lstrip("/") / "users" / str(uid) / "workloads" / f"slurm-{shape.NAME}-{job}" / "manifests"
    # One that begins with a digit: what is still being written has another name.
    return sorted(path.name for path in folder.glob("[0-9]*")) if folder.is_dir() else []
