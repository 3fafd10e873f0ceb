"""CRIU loses hold of a task while it dumps: whoever dies of that is resumed, and never counts as having failed by itself."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from supervised import LIMIT_S, Site, wait_for

from perdure.base.proc.exits import Exits

pytestmark = pytest.mark.criu

BREAKING = """
import msgspec, os, signal, sys
from perdure.__main__ import main
from perdure.base.proc import exits, process
from perdure.checkpoint.criu import run

whole, who, tells = run.start, sys.argv.pop(1), sys.argv.pop(1)
if tells == "old":
    exits._status_of_reaped = lambda _: None


def start(criu, call):
    if call.action is run.Action.DUMP and os.path.exists("break"):
        os.kill([pid for pid in process.descendants(call.root) if process.stat(pid).command == who][0], signal.SIGTRAP)
        call = msgspec.structs.replace(call, options=("--there-is-no-such-option",))
    return whole(criu, call)


run.start = start
sys.exit(main(sys.argv[1:]))
"""
"""A supervisor whose dumps fail and break the process called as its first argument says, once there is a file `break`."""

WORK = """
import subprocess, sys, time
reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    time.sleep(0.02)
    try:
        reader.stdin.write(b"x")
        reader.stdin.flush()
    except BrokenPipeError:
        pass
    if reader.stdout.read(1) != b"x":
        reader.wait()
        sys.exit(9)
"""
"""Fails, and looks like a program's own fault, when its child is gone."""

RUN = ("run", "--name", "a", "--every", "never", "--", "python3", "work.py", "1000000")


@pytest.fixture
def site(site):
    (site.work / "work.py").write_text(WORK)
    return site


def resumes(site: Site) -> None:
    again = site.start(*RUN)
    said = again.stderr.readline() + again.stderr.readline() + again.stderr.readline()
    assert b"goes on from a@1.1" in said, said
    length = len(site.log("a"))
    wait_for(lambda: len(site.log("a")) > length, LIMIT_S)
    assert site.run("stop", "a").returncode == 0
    again.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize(("who", "kernel"), [("python3", "new"), ("python3", "old"), ("cat", "new")])
def test_a_workload_that_dies_of_a_dump_is_lost_and_not_failed(site, who, kernel):
    if kernel == "new" and who == "cat" and not told_of_the_reaped():
        pytest.skip("this kernel does not tell how others' children ended (Linux 6.15)")
    process = site.start(who, kernel, *RUN, by=BREAKING)
    wait_for(lambda: len(site.log("a").splitlines()) > 20, LIMIT_S)
    assert site.run("checkpoint", "a").returncode == 0
    (site.work / "break").touch()
    asked = site.run("checkpoint", "a")
    assert asked.returncode != 0
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 75, err.decode()
    assert b"CRIU lost hold of" in err
    assert site.ps("a")["state"] == "lost"
    (site.work / "break").unlink()
    resumes(site)


def test_a_workload_that_fails_by_itself_while_a_dump_fails_has_failed(site):
    process = site.start("cat", "new", *RUN, by=BREAKING.replace("signal.SIGTRAP", "signal.SIGKILL"))
    wait_for(lambda: len(site.log("a").splitlines()) > 20, LIMIT_S)
    assert site.run("checkpoint", "a").returncode == 0
    (site.work / "break").touch()
    site.run("checkpoint", "a")
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 9
    assert site.ps("a")["state"] == "failed"


def told_of_the_reaped() -> bool:

    child = os.fork()
    if child == 0:
        signal.pause()
    with Exits([child]) as exits:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return exits.killed_by({signal.SIGKILL}) == (child,)


STOPPING = """
import contextlib, os, signal, sys
from perdure.__main__ import main
from perdure.base.proc import process
from perdure.checkpoint import dump

make = dump._Attempts.make


def stop_and_make(self, *options):
    if os.path.exists("stop"):
        first = process.children(self._root.pid)[0]
        os.kill(first, signal.SIGSTOP)
        while not process.stat(first).is_stopped:
            pass
    return make(self, *options)


dump._Attempts.make = stop_and_make
sys.exit(main(sys.argv[1:]))
"""
"""A supervisor whose workload is told to stop, in part, between the look at it and the freeze, when there is a file `stop`."""


def test_what_is_being_stopped_when_it_is_saved_by_the_clock_takes_no_good_checkpoints_place(site):
    run = (*RUN[:3], "--every", "1s", "--events", "events", *RUN[5:])
    process = site.start(*run, by=STOPPING)
    wait_for(lambda: site.manifests("a"), LIMIT_S)
    (site.work / "stop").touch()
    wait_for(lambda: b"it was being stopped at that moment: python3" in (site.work / "events").read_bytes(), LIMIT_S)
    newest = site.manifests("a")[-1]
    (site.work / "stop").unlink()
    site.kill_all(process)
    again = site.start(*run)
    said = again.stderr.readline() + again.stderr.readline() + again.stderr.readline()
    assert f"goes on from a@{int(newest[:8])}.{int(newest[9:])}".encode() in said, said
    length = len(site.log("a"))
    wait_for(lambda: len(site.log("a")) > length, LIMIT_S)
    assert site.run("stop", "a").returncode == 0
    again.communicate(timeout=LIMIT_S)


ENDING = """
import os, sys, time
from perdure.__main__ import main
from perdure.checkpoint.criu import run

whole = run.start


def start(criu, call):
    running = whole(criu, call)
    if call.action is run.Action.DUMP:
        with open("end", "w") as word:
            word.write(sys.argv[-1])
        while not run._is_ending(call.root):
            time.sleep(0.001)
    return running


# Its own start takes until then, whatever the machine does meanwhile.
run.command = lambda criu, call, make=run.command: ["/bin/sh", "-c", 'sleep 1000 & wait', *make(criu, call)]
run.start = start
sys.exit(main(sys.argv[1:]))
"""
"""A supervisor whose workload ends by itself, with the status in the last argument, after CRIU was started and before it did anything."""


@pytest.mark.parametrize(("status", "state"), [(0, "completed"), (7, "failed")])
def test_a_workload_that_ends_by_itself_while_it_is_to_be_saved_has_ended_and_is_not_lost(site, status, state):
    (site.work / "work.py").write_text(
        "import os, sys, time\n"
        "print('up', flush=True)\n"
        "while not (os.path.exists('end') and open('end').read()):\n"
        "    time.sleep(0.01)\n"
        "sys.exit(int(open('end').read()))\n"
    )
    process = site.start("run", "--name", "a", "--every", "never", "--", sys.executable, "work.py", str(status), by=ENDING)
    wait_for(lambda: b"up" in site.log("a"), LIMIT_S)
    assert site.run("checkpoint", "a").returncode != 0
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == status, err.decode()
    assert site.ps("a")["state"] == state
