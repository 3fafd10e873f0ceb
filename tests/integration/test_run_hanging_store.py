"""A store in a folder of a file system that does not answer, as one in the network may: whoever asks for an end is heard all the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from supervised import Site, lines, wait_for

pytestmark = [pytest.mark.criu, pytest.mark.skipif(not shutil.which("bindfs") or not Path("/dev/fuse").exists(), reason="no bindfs here")]

LARGE = """
import os, sys, time
kept = os.urandom(192 << 20)
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    if not os.path.exists("hurry"):
        time.sleep(0.05)
"""


class Share:
    """A folder that another process hands out, which can be made to hang."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "share"
        for made in (folder / "served", self.folder):
            made.mkdir(mode=0o700)
        self.server = subprocess.Popen(["bindfs", "-f", "--no-allow-other", str(folder / "served"), str(self.folder)])
        wait_for(lambda: os.path.ismount(self.folder))

    def hang(self) -> None:
        self.server.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.server.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.go_on()
        subprocess.run(["umount", "-l", str(self.folder)], check=True)
        self.server.kill()
        self.server.wait(60)


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    (made.work / "large.py").write_text(LARGE)
    yield made
    made.close()


@pytest.fixture
def share(site):
    made = Share(site.folder)
    yield made
    made.close()


def test_one_that_hangs_in_a_restore_keeps_nobody_from_ending_it_and_the_next_run_goes_on(site, share):
    run = ["run", "--name", "a", "--every", "never", "--store", share.folder / "store", "--json", "--", "python3", "large.py", "10000"]
    first = site.start(*run)
    wait_for(lambda: len(site.log("a").splitlines()) >= 3)
    saved = site.run("checkpoint", "a", "--stop")
    assert saved.returncode == 0, saved.stderr.decode()
    assert first.wait(60) == 75
    restoring = site.start(*run)
    # In the middle: some of it is there.
    fetched = _wait_said(restoring, b'"phase":"fetch"')
    share.hang()
    restoring.send_signal(signal.SIGTERM)
    out, err = restoring.communicate(timeout=120)
    assert restoring.returncode == 75, (fetched + err).decode()
    assert out == b""
    share.go_on()
    site.hurry()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert b'"text":"a@1.1"' in again.stderr
    assert site.log("a") == lines(10000)


def _wait_said(process: subprocess.Popen[bytes], wanted: bytes) -> bytes:
    said = b""
    while wanted not in said:
        line = process.stderr.readline()
        assert line, said.decode()
        said += line
    return said
