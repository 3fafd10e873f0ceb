"""A store in a folder of a file system that does not answer, as one in the network may: whoever asks for an end is heard all the same."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from supervised import LIMIT_S, lines, wait_for

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
    """A folder that another process hands out, which can be made to hang. What is read takes seconds: it hangs in the middle of that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "share"
        for made in (folder / "served", self.folder):
            made.mkdir(mode=0o700)
        self.server = subprocess.Popen(["bindfs", "-f", "--no-allow-other", "--read-rate=48M", str(folder / "served"), str(self.folder)])
        wait_for(lambda: os.path.ismount(self.folder))

    def hang(self) -> None:
        self.server.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.server.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.go_on()
        subprocess.run(["umount", "-l", str(self.folder)], check=True)
        self.server.kill()
        self.server.wait(LIMIT_S)


@pytest.fixture
def site(site):
    (site.work / "large.py").write_text(LARGE)
    return site


@pytest.fixture
def share(site):
    made = Share(site.folder)
    yield made
    made.close()


def test_one_that_hangs_in_a_restore_keeps_nobody_from_ending_it_and_the_next_run_goes_on(site, share):
    run = ["run", "--name", "a", "--every", "never", "--store", share.folder / "store", "--", "python3", "large.py", "10000"]
    first = site.start(*run)
    wait_for(lambda: len(site.log("a").splitlines()) >= 3)
    saved = site.run("checkpoint", "a", "--stop")
    assert saved.returncode == 0, saved.stderr.decode()
    first.communicate(timeout=LIMIT_S)
    assert first.returncode == 75
    said = site.folder / "said"
    with open(said, "wb") as stderr:
        restoring = site.start(*run[:-4], "--events", "events", *run[-4:], stderr=stderr)
    # Memory is being read, before or, as from a disk of this machine, after CRIU was started.
    wait_for(lambda: re.search(rb'"phase":"(restore"|fetch".*"done_bytes":[1-9])', _read(site.work / "events")))
    share.hang()
    restoring.send_signal(signal.SIGTERM)
    # It leaves in good order, or because what it waits for does not come: its last call to such a file system may then keep the kernel
    # from letting it go until that answers.
    wait_for(lambda: restoring.poll() is not None or b"SIGTERM: what was waited for, perhaps the store, has not come" in said.read_bytes())
    share.go_on()
    assert restoring.wait(LIMIT_S) == 75, said.read_text()
    site.hurry()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert b"goes on from a@1.1" in again.stderr
    assert site.log("a") == lines(10000)


def _read(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return b""
