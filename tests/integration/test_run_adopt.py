"""A process that was running already is kept, saved, killed and brought back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from supervised import LIMIT_S, lines, wait_for

pytestmark = pytest.mark.criu

MANY = 4000
"""Lines, one every 50 ms: more than anything here takes, until `Site.hurry`."""


@pytest.fixture
def runner(site):
    """A program that writes to a file and was started by nobody of ours, in a session of its own."""
    path = site.work / "out.txt"
    with open(path, "ab") as target:
        process = subprocess.Popen(
            ["python3", "count.py", str(MANY), "0.05"],
            cwd=site.work,
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            start_new_session=True,
        )
    yield process
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()


def test_it_is_saved_and_goes_on_after_a_stop(site, runner):
    kept = site.start("run", "--name", "a", "--every", "never", "--adopt", str(runner.pid))
    out = site.work / "out.txt"
    wait_for(lambda: site.run("checkpoint", "a").returncode == 0)
    assert site.ps("a")["pid"] == runner.pid
    wait_for(lambda: len(out.read_bytes().splitlines()) > 30)
    kept.send_signal(signal.SIGTERM)
    assert kept.wait(LIMIT_S) == 75, kept.stderr.read().decode()
    runner.wait(LIMIT_S)
    stood = out.read_bytes()
    again = site.start("restore", "a")
    wait_for(lambda: again.poll() is not None or site.ps("a")["state"] == "running")
    site.hurry()
    _, err = again.communicate(timeout=LIMIT_S)
    assert again.returncode == 0, err.decode()
    assert len(stood) < len(lines(MANY))
    assert out.read_bytes() == lines(MANY)


def test_it_lives_on_without_its_supervisor_and_can_be_kept_again(site, runner):
    run = ["run", "--name", "a", "--every", "never", "--adopt", str(runner.pid)]
    kept = site.start(*run)
    wait_for((site.folder / "run/a/control.sock").exists)
    kept.kill()
    kept.wait()
    assert runner.poll() is None
    refused = site.run("restore", "a")
    assert refused.returncode == 11
    assert str(runner.pid).encode() in refused.stderr
    kept = site.start(*run)
    wait_for(lambda: site.run("checkpoint", "a").returncode == 0)
    site.hurry()
    assert runner.wait(LIMIT_S) == 0
    assert kept.wait(LIMIT_S) == 0
    assert site.ps("a")["state"] == "completed"
    assert os.path.getsize(site.work / "out.txt") == len(lines(MANY))


def test_what_cannot_be_adopted_is_refused(site):
    # In a PID namespace, the second process is a program like any other.
    threads = Path("/proc/2/comm")
    kernel = [(2, 2)] if threads.exists() and threads.read_text() == "kthreadd\n" else []
    for pid, status in ((os.getpid(), 2), *kernel, (2**22 - 1, 21)):
        done = site.run("run", "--name", "a", "--adopt", str(pid))
        assert done.returncode == status, done.stderr.decode()
