"""The console between real processes: everything passed on, logged, held back, ended."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import termios
import time

import pytest

from perdure.base.proc import process
from perdure.supervisor import log
from perdure.supervisor.console import Console
from perdure.supervisor.log import Log
from perdure.supervisor.outward import Outward
from perdure.supervisor.reactor import READ, Reactor, now_s
from perdure.supervisor.voice import Voice
from perdure.supervisor.wiring import Plan


class Bench:
    """A console with pipes of the test's as our own stdin, stdout and stderr."""

    def __init__(self, folder, plan: Plan):
        self.saved = [os.dup(number) for number in range(3)]
        self.stdin_r, self.stdin = os.pipe()
        self.stdout, self.stdout_w = os.pipe()
        self.stderr, self.stderr_w = os.pipe()
        for descriptor in (self.stdout, self.stderr):
            os.set_blocking(descriptor, False)
        for descriptor, number in ((self.stdin_r, 0), (self.stdout_w, 1), (self.stderr_w, 2)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        self.reactor = Reactor()
        self.said = []
        self.path = folder / "log"
        self.log = Log(self.path)
        self.console = Console(plan, self.log, self.reactor, self.said.append)
        self.child = None

    def start(self, *command: str):
        streams = self.console.open()
        self.child = subprocess.Popen(
            command, stdin=streams[0], stdout=streams[1], stderr=streams[2], restore_signals=True, start_new_session=True
        )
        self.console.release()
        self.console.start()
        self.pidfd = os.pidfd_open(self.child.pid)
        self.ended = False
        self.reactor.watch(self.pidfd, READ, self.end)

    def end(self):
        self.ended = True
        self.reactor.forget(self.pidfd)

    def turn_until(self, is_true, limit_s=120.0):
        end_s = now_s() + limit_s
        self.reactor.at(end_s, lambda: None)
        while not is_true():
            assert now_s() < end_s, "waited in vain"
            self.reactor.turn()

    def read(self, descriptor) -> bytes:
        content = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(descriptor, 1 << 16):
                content += piece
        return content

    def close(self):
        for number, saved in enumerate(self.saved):
            os.dup2(saved, number)
            os.close(saved)
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            os.close(self.pidfd)
        self.console.close()
        self.log.close()
        self.reactor.close()
        for descriptor in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def bench(tmp_path):
    made = []

    def make(**changes) -> Bench:
        plan = Plan(**{"terminal": False, "stdin": "pipe", "one_output": False, **changes})
        made.append(Bench(tmp_path, plan))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_both_streams_are_passed_on_and_logged_in_order(bench):
    b = bench()
    b.start("sh", "-c", "echo out; read line; echo err >&2; read line; echo $line")
    b.turn_until(lambda: b.log.size_bytes == 4)
    os.write(b.stdin, b"go\n")
    b.turn_until(lambda: b.log.size_bytes == 8)
    os.write(b.stdin, b"last\n")
    b.turn_until(lambda: b.ended)
    b.console.finish()
    assert b.read(b.stdout) == b"out\nlast\n"
    assert b.read(b.stderr) == b"err\n"
    assert b.path.read_bytes() == b"out\nerr\nlast\n"
    assert log.stretches(b.path, 13) == [(1, 0, 4), (2, 4, 4), (1, 8, 5)]


def test_the_end_of_our_input_reaches_the_workload(bench):
    b = bench()
    b.start("wc", "-c")
    os.write(b.stdin, b"x" * 60_000)
    b.turn_until(lambda: True)
    os.close(b.stdin)
    b.turn_until(lambda: b.ended)
    b.console.finish()
    assert b.read(b.stdout).strip() == b"60000"


def test_a_slow_reader_holds_the_workload_back_and_loses_nothing(bench):
    b = bench()
    b.start(sys.executable, "-c", "import os\nfor i in range(2000): os.write(1, b'%07d\\n' % i * 128)")
    whole = b"".join(b"%07d\n" % number * 128 for number in range(2000))
    end_s = now_s() + 1.0
    b.reactor.at(end_s, lambda: None)
    while now_s() < end_s:
        b.reactor.turn()
    assert not b.ended
    assert b.log.size_bytes < len(whole)
    got = b""
    while not b.ended or len(got) < len(whole):
        got += b.read(b.stdout)
        b.reactor.after(0.01, lambda: None)
        b.reactor.turn()
        if b.ended:
            break
    os.set_blocking(b.stdout, False)
    import threading

    def pull():
        nonlocal got
        os.set_blocking(b.stdout, True)
        while len(got) < len(whole):
            got += os.read(b.stdout, 1 << 16)

    puller = threading.Thread(target=pull)
    puller.start()
    b.console.finish()
    puller.join(120)
    assert got == whole == b.path.read_bytes()


def test_a_reader_that_goes_away_is_told_to_the_workload(bench):
    b = bench()
    b.start("sh", "-c", "while echo line; do :; done")
    b.turn_until(lambda: b.log.size_bytes > 1000)
    os.close(b.stdout)
    b.turn_until(lambda: b.ended)
    assert b.child.wait() == -13


def test_draining_takes_every_byte_while_the_writers_stand_still(bench):
    b = bench()
    b.start("sh", "-c", "head -c 50000 /dev/zero; head -c 3 /dev/zero >&2; kill -STOP $$")
    end_s = now_s() + 120
    while process.stat(b.child.pid).state != "T":
        assert now_s() < end_s
        time.sleep(0.01)
    assert b.console.drain() == 50_003
    assert b.path.stat().st_size == 50_003


def test_a_log_that_cannot_be_written_is_said_once_and_the_workload_goes_on(bench, tmp_path):
    b = bench()
    os.close(b.log._log)
    b.log._log = os.open("/dev/full", os.O_WRONLY)
    b.start("sh", "-c", "echo a; read x; echo b")
    b.turn_until(lambda: b.said)
    os.write(b.stdin, b"\n")
    b.turn_until(lambda: b.ended)
    b.console.finish()
    assert b.read(b.stdout) == b"a\nb\n"
    assert b.said == ["the console's log cannot take what the workload writes: No space left on device"]


def test_in_the_background_there_is_only_the_log(bench):
    b = bench(stdin="null", passed_on=False)
    b.start("sh", "-c", "cat; echo out; echo err >&2")
    b.turn_until(lambda: b.ended)
    b.console.finish()
    assert (b.read(b.stdout), b.read(b.stderr)) == (b"", b"")
    assert sorted(b.path.read_bytes().split()) == [b"err", b"out"]


def test_a_terminal_of_its_own(bench):
    b = bench(terminal=True, one_output=True)
    b.start(
        sys.executable,
        "-c",
        "import os, sys; print(os.isatty(0), os.isatty(1), os.isatty(2), flush=True); print(sys.stdin.readline().strip() + '!')",
    )
    b.turn_until(lambda: b"True True True" in b.path.read_bytes())
    os.write(b.stdin, b"hello\n")
    b.turn_until(lambda: b.ended)
    b.console.finish()
    assert b.path.read_bytes().endswith(b"hello!\r\n")


def test_a_terminal_of_ours_that_hangs_up_is_waited_for_no_more(bench):
    ours, theirs = os.openpty()
    b = bench(one_output=True)
    os.dup2(theirs, 1)
    os.close(theirs)
    try:
        b.start(sys.executable, "-c", "import os, time\nwhile True: os.write(1, b'x' * 4096)")
        b.turn_until(lambda: b.console._outlets[0].pending)
    finally:
        os.close(ours)
    b.child.kill()
    b.turn_until(lambda: b.ended)
    b.turn_until(lambda: not b.console._outlets)
    # Nothing is left to happen: the one turn there is ends by the clock.
    rung = []
    b.reactor.after(0.3, lambda: rung.append(True))
    turns = 0
    while not rung:
        b.reactor.turn()
        turns += 1
    assert turns <= 2


@pytest.fixture
def unread():
    """The two sides of a terminal that nobody reads yet."""
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def read_all(descriptor: int, wanted: int) -> bytes:
    content = b""
    end_s = now_s() + 120
    while len(content) < wanted:
        assert now_s() < end_s, f"{len(content)} bytes came"
        with contextlib.suppress(BlockingIOError):
            content += os.read(descriptor, 1 << 16)
    return content


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("kind", ["terminal", "pipe", "socket"])
def test_what_has_no_room_is_never_waited_for(kind, is_refused, unread, monkeypatch):
    if is_refused:
        # What the kernel says of a terminal or a pipe of another user's.
        opened = os.open
        monkeypatch.setattr(os, "open", lambda path, *rest, **more: refuse() if "/fd/" in str(path) else opened(path, *rest, **more))
    if kind == "terminal":
        reads, writes = unread
    elif kind == "pipe":
        reads, writes = os.pipe()
        os.set_blocking(reads, False)
    else:
        first, second = socket.socketpair()
        first.setblocking(False)
        reads, writes = first.detach(), second.detach()
    with contextlib.closing(Outward(writes)) as outward:
        content = bytes(range(65, 91)) * 40_000
        sent = 0
        with pytest.raises(BlockingIOError):
            while True:
                sent += outward.write(content[sent : sent + 5000])
        assert sent > 4000
        assert os.get_blocking(writes)  # others share its flags
        assert read_all(reads, sent) == content[:sent]
        # The kernel moves a terminal's content on a moment later.
        outward.wait_for_room()
        assert outward.write(b"more") == 4
        assert read_all(reads, 4) == b"more"


def refuse():
    raise PermissionError(13, "Permission denied")


def test_a_terminal_that_is_stopped_keeps_nothing_else_waiting(bench, unread):
    ours, theirs = unread
    termios.tcflow(theirs, termios.TCOOFF)
    b = bench(one_output=True)
    os.dup2(theirs, 1)
    b.start(sys.executable, "-c", "import os\nfor i in range(100): os.write(1, b'%07d' % i * 1024)")
    b.turn_until(lambda: b.console._outlets[0].pending)
    assert b.console.drain() >= 7 * 1024
    termios.tcflow(theirs, termios.TCOON)
    shown = bytearray()

    def take():
        with contextlib.suppress(BlockingIOError):
            shown.extend(os.read(ours, 1 << 16))
        b.reactor.after(0.001, take)

    take()
    b.turn_until(lambda: len(shown) == 100 * 7 * 1024)
    assert bytes(shown) == b"".join(b"%07d" % i * 1024 for i in range(100))


def test_a_voice_that_nobody_hears_keeps_nothing_waiting(bench):
    b = bench()
    os.set_blocking(b.stderr, True)
    voice = Voice(quiet=False, as_json=False)
    for number in range(5000):
        voice.say(f"{number:050d}")
    with open(b.stderr, "rb", closefd=False) as heard:
        for number in range(5000):
            assert heard.readline() == b"perdure: %050d\n" % number
    voice.say("and on")
    assert os.read(b.stderr, 100) == b"perdure: and on\n"
