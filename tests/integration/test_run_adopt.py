"""A process that was running already is kept, saved, killed and brought back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import pytest
from supervised import lines, wait_for

pytestmark = pytest.mark.criu


@pytest.fixture
def runner(site):
    """A program that writes to a file and was started by nobody of ours, in a session of its own."""
    path = site.work / "out.txt"
    with open(path, "ab") as target:
        process = subprocess.Popen(
            ["python3", "count.py", "150", "0.05"],
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
    assert kept.wait(60) == 75, kept.stderr.read().decode()
    runner.wait(20)
    stood = out.read_bytes()
    again = site.run("restore", "a")
    assert again.returncode == 0, again.stderr.decode()
    assert len(stood) < len(lines(150))
    assert out.read_bytes() == lines(150)


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
    assert runner.wait(60) == 0
    assert kept.wait(60) == 0
    assert site.ps("a")["state"] == "completed"
    assert os.path.getsize(site.work / "out.txt") == len(lines(150))


def test_what_cannot_be_adopted_is_refused(site):
    for pid, status in ((os.getpid(), 2), (2, 2), (2**22 - 1, 21)):
        done = site.run("run", "--name", "a", "--adopt", str(pid))
        assert done.returncode == status, done.stderr.decode()
