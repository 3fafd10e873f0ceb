"""Root file systems for the cluster's nodes: one per Slurm version, made once per machine and shared by all runs.

Called by `scripts/setup test` (``python -m cluster.rootfs 24.11``), so that making one does not count as a test's time, and by
`cluster.slurm`, which only looks. They lie in a folder that only root can enter, under a name that the recipe's content gives; what
an older recipe made is removed when no cluster stands on it any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from perdure import errors
from perdure.checkpoint.criu import apt

CACHE = Path("/var/cache/perdure-tests")
SUITES = {"22.05": "bookworm", "24.11": "trixie", "26.05": "sid"}
"""Debian's suite for each Slurm version."""

_ROOT = Path(__file__).resolve().parents[2]
_RECIPE = Path(__file__).with_name("make-root.sh")
_CRIU = "opt/perdure-base/criu"
_TIMEOUT_S = 1500


class Missing(Exception):
    """There is no root file system for this version, for the reason given."""


def lack(version: str) -> str | None:
    """Say in words why no cluster of this Slurm version can be started here, or None when one can."""
    if os.geteuid() != 0:
        return "needs root"
    namespaces = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "true"]
    if subprocess.run(namespaces, capture_output=True).returncode:
        return "namespaces are not allowed here"
    if not (place(version) / "root").is_dir():
        return f"no root file system for Slurm {version}: scripts/setup cluster {version} makes it"
    return None


@contextlib.contextmanager
def held(version: str) -> Iterator[Path]:
    """Give the root file system for `version`, and keep it from being removed meanwhile. Raises `Missing`."""
    ours = place(version)
    with kept(ours.name):
        if not (ours / "root").is_dir():
            raise Missing(f"no root file system for Slurm {version}")
        yield ours / "root"


@contextlib.contextmanager
def kept(name: str) -> Iterator[None]:
    """Keep `name` in the cache from being removed. Raises `Missing`."""
    try:
        descriptor = os.open(CACHE / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Missing(f"{CACHE}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def make(version: str) -> Path:
    """Make the root file system for `version` unless it is there; return it. Raises `Missing` with the last words of what failed."""
    CACHE.mkdir(mode=0o700, parents=True, exist_ok=True)
    ours = place(version)
    with _exclusively(f"{ours.name}.making"):
        if not (ours / "root").is_dir():
            sys.stderr.write(f"setup: making the root file system of nodes with Slurm {version} in {ours} (a few minutes)\n")
            fresh = Path(tempfile.mkdtemp(prefix=f".{ours.name}.", dir=CACHE))
            try:
                _build(SUITES[version], fresh)
                fresh.rename(ours)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        _remove_older(SUITES[version], ours)
    return ours / "root"


def place(version: str) -> Path:
    """Return where the root file system for `version`, as the recipe is now, lies or would lie."""
    recipe = hashlib.blake2b(digest_size=6)
    for path in (_RECIPE, _ROOT / "requirements.lock.txt"):
        recipe.update(path.read_bytes())
    recipe.update("\n".join([_CRIU, *_core_requirements()]).encode())
    return CACHE / f"{SUITES[version]}-{recipe.hexdigest()}"


def _core_requirements() -> list[str]:
    return tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def _build(suite: str, folder: Path) -> None:
    lock = (_ROOT / "requirements.lock.txt").read_text()
    # A name and a version each: as constraints, they choose for what the core needs, and add nothing.
    pins = [line.removesuffix(" \\") for line in lock.splitlines() if re.match(r"[a-z0-9]", line)]
    (folder / "perdure-pins.txt").write_text("\n".join(pins) + "\n")
    (folder / "perdure-core.txt").write_text("\n".join(_core_requirements()) + "\n")
    for name in ("debootstrap", "unshare"):
        if shutil.which(name) is None:
            raise Missing(f"{name} is not installed")
    try:
        mirror = apt.system_mirrors()[0]
    except (errors.EnvironmentUnfit, IndexError) as error:
        raise Missing(f"no mirror of Debian is known: {error}") from error
    log = folder / "log"
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    private = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private"]
    with open(log, "wb") as out:
        done = subprocess.run(
            [*private, "bash", str(_RECIPE), suite, mirror, str(folder)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, timeout=_TIMEOUT_S,
        )  # fmt: skip
    if done.returncode:
        raise Missing(f"making a root file system of Debian's {suite} failed: " + log.read_text(errors="replace")[-1500:])
    _bring_criu(folder / "root")


def _bring_criu(root: Path) -> None:
    """Put a CRIU where Perdure's environment finds it by itself: the one of ours, or a fresh one."""
    target = root / _CRIU
    ours = Path(sys.prefix) / "criu"
    if (ours / "perdure-prefix.json").is_file():
        shutil.copytree(ours, target, symlinks=True)
        return
    command = [sys.executable, "-m", "perdure", "doctor", "--bring-criu", "--prefix", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(_ROOT / "src")}, cwd="/")
    if not (target / "perdure-prefix.json").is_file():
        raise Missing(f"no CRIU could be brought: {done.stdout[-600:]} {done.stderr[-600:]}")


@contextlib.contextmanager
def once(name: str) -> Iterator[Path]:
    """Give the path `name` in the cache, for the caller to make if it is not there, while nobody else does."""
    with _exclusively(f"{name}.making"):
        yield CACHE / name


@contextlib.contextmanager
def _exclusively(name: str, *, wait: bool = True) -> Iterator[bool]:
    descriptor = os.open(CACHE / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _remove_older(suite: str, current: Path) -> None:
    for old in [*CACHE.glob(f"{suite}-*"), *CACHE.glob(f".{suite}-*")]:
        if old.is_dir() and old != current:
            # What begins with a dot is being made, unless its maker died.
            kind, name = ("making", old.name.split(".")[1]) if old.name.startswith(".") else ("lock", old.name)
            if name == current.name:
                continue
            remove(old, f"{name}.{kind}")


def remove(old: Path, lock: str) -> None:
    """Remove `old`, unless somebody holds its `lock`."""
    with _exclusively(lock, wait=False) as free:
        if free:
            shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    try:
        for wanted in sys.argv[1:]:
            make(wanted)
    except Missing as missing:
        sys.exit(f"{missing}")
