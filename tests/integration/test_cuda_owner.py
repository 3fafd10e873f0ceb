"""An ordinary user's workload on a GPU of the stand-in, under a root supervisor: the helper is root's, the memory the user's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from owners import PYTHON, USER, home, needs_root
from standin.world import Gpu, Standin, build
from supervised import ROOT, descendants, is_zombie, wait_for

__all__ = ["home"]

pytest.importorskip("cuda.bindings", reason="needs the extra gpu")
pytestmark = [needs_root, pytest.mark.users, pytest.mark.criu]

A, B = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-bbbbbbbb-0000-4000-8000-000000000002"
LIMIT_S = 240.0


@pytest.fixture
def world(home):
    folder = home.parent / "driver"
    folder.mkdir()
    folder.chmod(0o755)
    world = Standin(home.parent / "world", build(folder))
    world.gpus(Gpu(A))
    open_to_all(world)
    return world


def open_to_all(world: Standin) -> None:
    """As the device files of a driver are."""
    for entry in (world.root, *world.root.rglob("*")):
        entry.chmod(0o777 if entry.is_dir() else 0o666)


@contextlib.contextmanager
def supervised(home: Path, world: Standin, *argv: str):
    told = {
        "uid": USER.uid,
        "gid": USER.gid,
        "groups": USER.groups,
        "argv": argv,
        "cwd": str(home),
        "environment": {"PATH": os.environ["PATH"], "HOME": str(home)} | world.environment,
        "name": "job",
        "state": str(home.parent / "state"),
        "run": str(home.parent / "run"),
        "store": str(home.parent / "store"),
        "options": {"every": "never"},
        "more": {"must_resume": not argv},
    }
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/owner_run.py"), json.dumps(told)],
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "HOME": "/nonexistent"} | world.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        below = descendants(process.pid)
        for pid in (process.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
        for pid in below:
            wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists() or is_zombie(pid), LIMIT_S, f"for {pid} to go")


def until(process: subprocess.Popen, least: int) -> int:
    """Read on until it says that it is at `least`; returns where it is then."""
    for line in process.stdout:
        found = re.match(rb"at (\d+)", line)
        if found and int(found[1]) >= least:
            return int(found[1])
    raise AssertionError(f"it ended: {process.stderr.read().decode()}")


def test_a_users_gpu_memory_is_saved_and_comes_back_to_that_user(home, world):
    program = home / "program.py"
    shutil.copy(Path(__file__).parent.parent / "standin" / "program.py", program)
    program.chmod(0o644)
    manifests = home.parent / "store" / "workloads" / "job" / "manifests"
    with supervised(home, world, PYTHON, "-u", str(program), str(1 << 20)) as process:
        until(process, 20)
        process.send_signal(signal.SIGUSR1)
        wait_for(lambda: manifests.is_dir() and list(manifests.glob("[0-9]" * 8 + "." + "[0-9]" * 8)), LIMIT_S, "for the checkpoint")
    world.gpus(Gpu(B))
    open_to_all(world)
    with supervised(home, world) as process:
        first = until(process, 0)
        assert first >= 20
        until(process, first + 50)
        (file,) = (world.root / "memory" / B).iterdir()
        assert file.stat().st_uid == USER.uid
