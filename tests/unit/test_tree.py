"""A tree seen from outside: who is in it, in what state; signals, ends, streams."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from supervised import wait_for

from perdure import errors
from perdure.base.proc import process
from perdure.checkpoint import alive, streams, tree
from perdure.checkpoint.tree import Process, Tree

CHILDREN = """
import os, sys, threading, time
for _ in range(2):
    if os.fork() == 0:
        time.sleep(1000)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
zombie = os.fork()
if zombie == 0:
    os._exit(0)
os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
print("up", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def running():
    with subprocess.Popen([sys.executable, "-c", CHILDREN], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout.readline() == b"up\n"
            yield Tree(process.pid, tree.start_ticks_of(process.pid)), process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_members_are_the_root_and_all_below_it_with_threads_and_zombies(running):
    root, _ = running
    found = tree.members(root)
    assert [each.pid for each in found] == list(tree.pids(root))
    assert found[0].pid == root.pid
    assert len(found) == 4
    assert len(found[0].states) == 2
    assert sum(each.is_dead for each in found) == 1
    assert {each.parent for each in found[1:]} == {root.pid}
    assert [fact.host_pid for fact in tree.facts(root)] == [each.pid for each in found if not each.is_dead]
    assert tree.facts(root)[0].parent == 0
    assert {fact.parent for fact in tree.facts(root)[1:]} == {tree.facts(root)[0].pid}


def test_what_is_stopped_goes_on_but_for_what_is_to_be_left(running):
    root, _ = running
    tree.stop(root)
    living = [each.pid for each in tree.members(root) if not each.is_dead]
    for pid in living:
        # A stop is carried out by the process itself, a moment later.
        wait_for(lambda pid=pid: tree.look(pid).is_stopped, 120, "for a stop")
    left = living[-1]
    assert sorted(tree.resume(root, leave=frozenset({left}))) == sorted(living[:-1])
    wait_for(lambda: not tree.look(root.pid).is_stopped, 120, "for the root to go on")
    assert tree.look(left).is_stopped
    assert tree.resume(root) == (left,)


WAITS_IN_THE_KERNEL = """
import os, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
print("goes on", flush=True)
"""
"""Waits, while it starts a program, until somebody opens the other end of a named pipe: no signal reaches it meanwhile."""


def test_a_stop_that_has_not_come_to_its_process_yet_is_undone_too(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen([sys.executable, "-S", "-c", WAITS_IN_THE_KERNEL, pipe], stdout=subprocess.PIPE) as waiting:
        try:
            root = Tree(waiting.pid, tree.start_ticks_of(waiting.pid))
            wait_for(lambda: process.children(root.pid) and process.stat(root.pid).state == "D", 120, "for it to wait in the kernel")
            stopped = tree.stop_running(root)
            assert root.pid in stopped
            tree.resume(root, only=stopped)
            os.close(os.open(pipe, os.O_WRONLY))
            assert select.select([waiting.stdout], [], [], 120)[0]
            assert waiting.stdout.read() == b"goes on\n"
        finally:
            waiting.kill()


def test_another_process_of_the_same_number_is_not_the_tree(running):
    root, _ = running
    other = Tree(root.pid, root.start_ticks + 1)
    assert tree.is_alive(root)
    assert not tree.is_alive(other)
    assert not tree.send(other, signal.SIGKILL)
    for look in (tree.pids, tree.members, tree.facts, tree.open_pidfd, tree.stop):
        with pytest.raises(errors.ProcessGone):
            look(other)
    assert tree.is_alive(root)


def test_an_end_is_seen_and_reaped_once():
    for code, expected in (("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 15)", 143)):
        read, write = os.pipe()
        pid = os.posix_spawn(
            sys.executable, [sys.executable, "-S", "-c", f"input()\n{code}"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, read, 0)]
        )
        os.close(read)
        root = Tree(pid, tree.start_ticks_of(pid))
        ended = tree.open_pidfd(root)
        try:
            assert tree.reap(root, wait=False) is None
            os.write(write, b"\n")
            assert select.select([ended], [], [], 120)[0]
            assert not tree.is_alive(root)
            assert tree.reap(root, wait=False) == expected
            with pytest.raises(errors.ProcessGone):
                tree.reap(root, wait=True)
        finally:
            os.close(ended)
            os.close(write)


def test_streams_are_told_apart_and_given_anew(tmp_path: Path):
    (tmp_path / "input").write_text("")
    master, slave = os.openpty()
    try:
        with (
            open(tmp_path / "input") as source,
            subprocess.Popen(
                [sys.executable, "-S", "-c", "import os; os.read(2, 1)"],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=slave,
                start_new_session=True,
            ) as process,
        ):
            try:
                found = streams.of(Tree(process.pid, tree.start_ticks_of(process.pid)))
                pipe = f"pipe:[{os.fstat(process.stdout.fileno()).st_ino}]"
            finally:
                process.kill()
        assert [stream.kind for stream in found] == ["file", "pipe", "tty"]
        assert found[0].path == str(tmp_path / "input")
        assert found[1].external == pipe
        there = os.fstat(slave)
        assert found[2].external == f"tty[{there.st_rdev:x}:{there.st_dev:x}]"
        assert streams.dump_options(found) == (f"--external={found[2].external}",)
        options, passed = streams.inherited(found, {0: 7, 1: 8, 2: 9})
        assert options == (f"--inherit-fd=fd[8]:{found[1].external}", f"--inherit-fd=fd[9]:{found[2].external}")
        assert passed == (8, 9)
    finally:
        os.close(master)
        os.close(slave)


def test_one_pipe_for_two_streams_stays_one():
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        found = streams.of(Tree(process.pid, tree.start_ticks_of(process.pid)))
        process.communicate(b"\n")
    options, passed = streams.inherited(found, {0: 3, 1: 5, 2: 6})
    assert len(options) == 2
    assert passed == (3, 5)


def one(pid: int, *, ticks: int = 0, switches: int = 0, state: str = "S") -> Process:
    return Process(pid, pid, 1, 0, "x", {pid: state}, 0, ticks, switches)


def test_movement_is_processor_time_or_switches_of_what_was_there_before():
    first = (one(1), one(2, ticks=5), one(3), one(4))
    now = (one(1, ticks=9), one(2, ticks=6), one(3, switches=1), one(4), one(5, ticks=3))
    assert alive.moved_between(first, now) == {2, 3}
    assert alive.moved_between(first, first) == frozenset()
