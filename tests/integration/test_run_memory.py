"""A machine that is short of memory: a checkpoint that finds no room is refused with the reason, and the workload runs on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from supervised import LIMIT_S, remove_group, wait_for

from perdure.base.proc import process

pytestmark = pytest.mark.criu

LIMIT_BYTES = 256 << 20

HOLDS = """
import os, sys, time
kept = bytearray(b"x") * (120 << 20)
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    if not os.path.exists("hurry"):
        time.sleep(0.05)
"""

PLACED = """
echo $$ > "$0/cgroup.procs" && mount -t tmpfs -o size=2m tmpfs /var/tmp && mount -t tmpfs -o size=2m,mode=0700 tmpfs "$1" &&
shift && exec "$@"
"""
"""In a memory group, and with disks that have no room either: where images go when memory has none."""


def _make_group() -> Path | None:
    for controllers, path in process.cgroups(os.getpid()).items():
        if controllers == "" or "memory" in controllers.split(","):
            root, limit = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
            made = Path("/sys/fs/cgroup", root, path.lstrip("/"), f"perdure-test-{os.getpid()}")
            try:
                made.mkdir()
            except OSError:
                continue
            try:
                (made / limit).write_text(str(LIMIT_BYTES))
            except OSError:
                made.rmdir()
                continue
            return made
    return None


@pytest.fixture
def group():
    """A group of the memory controller that holds little."""
    made = _make_group()
    if made is None:
        pytest.skip("no memory group can be made here")
    yield made
    remove_group(made)


@pytest.fixture
def site(group, site):
    return site


def test_a_checkpoint_without_room_is_refused_with_its_reason_and_the_workload_runs_on(site, group):
    (site.work / "holds.py").write_text(HOLDS)
    site.state.mkdir(mode=0o700)
    store = str(site.folder / "store")
    command = ["run", "--name", "a", "--every", "never", "--store", store, "--", "python3", "holds.py", "10000"]
    running = site.start(*command, wrapped_in=["unshare", "-m", "sh", "-c", PLACED, str(group), str(site.state)])
    asked = ["nsenter", "-m", "-t", str(running.pid)]
    log = Path(f"/proc/{running.pid}/root{site.state}/workloads/a/log")
    wait_for(lambda: running.poll() is not None or (log.exists() and log.read_bytes().count(b"\n") >= 3))
    assert running.poll() is None, running.stderr.read().decode()
    refused = site.run("checkpoint", "a", "--json", wrapped_in=asked)
    assert refused.returncode == 22, refused.stderr.decode()
    *events, last = map(json.loads, refused.stderr.splitlines())
    error = last["error"]
    assert "there is no room for" in error["message"]
    assert "/dev/shm has room for" in error["message"]
    assert "(memory limit of cgroup " in error["message"]
    assert error["hint"].startswith("free memory or disk")
    # It was never stopped for it, and goes on to its end.
    assert [event["phase"] for event in events] == ["check", "failed"]
    before = log.read_bytes().count(b"\n")
    wait_for(lambda: log.read_bytes().count(b"\n") > before + 3)
    (Path(f"/proc/{running.pid}/root{site.work}") / "hurry").touch()
    out, err = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, out.count(b"\n")) == (0, 10000), err.decode()
