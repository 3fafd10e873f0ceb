"""A workload on a terminal: window size, Ctrl-C, Ctrl-Z and fg, the terminal given back, and a terminal that comes back after a kill."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import pytest
from screens import Screen
from supervised import wait_for

pytestmark = pytest.mark.criu


@pytest.fixture
def screen(site):
    made = Screen(site.work, site.environment)
    yield made
    made.close()


def perdure(*arguments: str) -> bytes:
    return " ".join([sys.executable, "-m", "perdure", *arguments]).encode() + b"\n"


def test_it_has_a_terminal_of_the_same_size_and_is_told_of_a_new_one(site, screen):
    (site.work / "size.py").write_text(
        "import os, signal\n"
        "def show(*_): size = os.get_terminal_size(); os.write(1, b'size %d %d\\n' % size)\n"
        "signal.signal(signal.SIGWINCH, show)\n"
        "print(os.isatty(0), os.isatty(1), os.isatty(2))\n"
        "show()\n"
        "print('got', input())\n"
    )
    screen.type(perdure("run", "--name", "a", "-q", "--", "python3", "size.py"))
    screen.expect(b"True True True")
    screen.expect(b"size 90 30")
    screen.resize(40, 100)
    screen.expect(b"size 100 40")
    screen.type(b"hello\r")
    screen.expect(b"got hello")
    screen.expect(b"READY> ")


def test_how_far_a_restore_is_is_shown_and_gone_before_the_workload_writes(site, screen):
    (site.work / "held.py").write_text("print('up', flush=True)\nprint('got', input())\n")
    command = perdure("run", "--name", "a", "--every", "never", "--", "python3", "held.py")
    screen.type(command)
    screen.expect(b"up\r\n")
    assert site.run("checkpoint", "a", "--stop").returncode == 0
    screen.expect(b"READY> ")
    screen.type(command)
    # Each in the place of the one before; the last thing is that the line is empty.
    for shown in (b"\r\x1b[Kfetch", b"\r\x1b[Krestore", b"\r\x1b[Kverify", b"\r\x1b[K", b"perdure: a goes on from a@1.1"):
        between = screen.expect(shown)
    assert between == b""
    screen.type(b"hello\r")
    screen.expect(b"got hello")
    screen.expect(b"READY> ")


def test_ctrl_c_reaches_the_workload_alone_and_the_terminal_is_given_back(site, screen):
    before = screen.modes()
    (site.work / "wait.py").write_text(
        "import time\ntry: print('up', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt: print('caught', flush=True); raise SystemExit(7)\n"
    )
    screen.type(perdure("run", "--name", "a", "-q", "--", "python3", "wait.py"))
    screen.expect(b"\nup\r\n")
    assert screen.modes() != before
    screen.type(b"\x03")
    screen.expect(b"caught")
    screen.expect(b"READY> ")
    assert screen.modes() == before
    screen.type(b"echo status $?\n")
    screen.expect(b"status 7")


def test_ctrl_z_gives_the_prompt_back_and_fg_goes_on(site, screen):
    before = screen.modes()
    screen.type(perdure("run", "--name", "a", "-q", "--every", "never", "--", "python3", "count.py", "100000", "0.05"))
    screen.expect(b"line 5\r\n")
    screen.type(b"\x1a")
    screen.expect(b"Stopped")
    screen.expect(b"READY> ")
    assert screen.modes() == before
    stood = len(site.log("a"))
    time.sleep(0.5)
    assert len(site.log("a")) == stood
    screen.type(b"echo still here\n")
    screen.expect(b"still here\r\n")
    screen.type(b"fg\n")
    screen.expect(b"line ")
    wait_for(lambda: len(site.log("a")) > stood + 50)
    screen.type(b"\x03")
    screen.expect(b"READY> ")
    assert screen.modes() == before


def test_the_terminal_is_given_back_when_the_supervisor_is_asked_to_go(site, screen):
    before = screen.modes()
    screen.type(perdure("run", "--name", "a", "--every", "never", "--", "python3", "count.py", "100000", "0.05"))
    screen.expect(b"line 5\r\n")
    os.kill(site.supervisor("a"), signal.SIGTERM)
    screen.expect(b"goes on from a@1.1")
    screen.expect(b"READY> ")
    assert screen.modes() == before
    screen.type(b"echo status $?\n")
    screen.expect(b"status 75")


def test_a_terminal_that_nobody_reads_holds_the_workload_back_and_no_checkpoint(site, screen):
    (site.work / "flood.py").write_text("for number in range(60_000): print(f'line {number:07d}', flush=True)\nprint('all of it')\n")
    screen.type(perdure("run", "--name", "a", "--every", "never", "--", "python3", "flood.py"))
    screen.expect(b"line 0000005\r\n")
    # A connection that hangs: the window reads no more. Once everything in between is full, the workload stands still.
    stood = 0
    while stood != len(site.log("a")):
        stood = len(site.log("a"))
        time.sleep(0.5)
    done = site.run("checkpoint", "a")
    assert done.returncode == 0, done.stderr
    shown = screen.expect(b"line 0059999\r\n")
    numbers = [int(line[5:]) for line in shown.split(b"\r\n") if line.startswith(b"line 0")]
    assert numbers == list(range(6, 59_999))
    screen.expect(b"all of it")
    screen.expect(b"READY> ")


def test_a_workload_comes_back_to_another_terminal_after_a_kill(site, screen):
    (site.work / "talk.py").write_text(
        "import sys, os\nprint('up', os.isatty(1), flush=True)\n"
        "for line in sys.stdin: print('heard', line.strip(), os.isatty(1), flush=True)\n"
    )
    command = perdure("run", "--name", "a", "-q", "--every", "1s", "--", "python3", "talk.py")
    screen.type(command)
    screen.expect(b"up True")
    wait_for(lambda: site.manifests("a"))
    os.kill(site.supervisor("a"), signal.SIGKILL)
    screen.expect(b"READY> ")
    screen.type(b"stty sane\n")
    screen.expect(b"READY> ")
    screen.type(command)
    wait_for(lambda: site.ps("a")["epoch"] == 2 and site.ps("a")["state"] == "running")
    screen.type(b"again\r")
    screen.expect(b"heard again True")
    screen.type(b"\x04")
    screen.expect(b"READY> ")


def test_a_job_in_the_background_leaves_the_terminal_alone(site, screen):
    before = screen.modes()
    screen.type(
        perdure("run", "--name", "a", "-q", "--every", "never", "--", "python3", "count.py", "40", "0.05").strip() + b" > out.txt &\n"
    )
    screen.expect(b"READY> ")
    wait_for(lambda: site.log("a"))
    assert screen.modes() == before
    screen.type(b"wait; echo ended $?\n")
    screen.expect(b"ended 0\r\n")
    with contextlib.suppress(FileNotFoundError):
        assert (site.work / "out.txt").read_bytes().endswith(b"line 39\n")
