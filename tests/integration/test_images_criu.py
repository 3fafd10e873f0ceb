"""Images of a real CRIU: page maps that fit, and the timers, counters and signals that a restore may or may not bring back."""

from __future__ import annotations

import mmap
import os
import textwrap
import time
from pathlib import Path

import pytest
from frozen import Frozen

from perdure.base.proc import descriptors
from perdure.checkpoint import images
from perdure.checkpoint.images import openfiles

pytestmark = pytest.mark.criu

TIMERS = """
import ctypes, mmap, select, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
def timerfd(value_ns, interval_ns, flags=0):
    number = libc.timerfd_create(1, 0)
    arm(number, value_ns, interval_ns, flags)
    return number
def arm(number, value_ns, interval_ns, flags=0):
    spec = struct.pack("qqqq", *divmod(interval_ns, 10**9), *divmod(value_ns, 10**9))
    assert libc.timerfd_settime(number, flags, spec, None) == 0
def ready(number, limit_s):
    return bool(select.select([number], [], [], limit_s)[0])
"""


@pytest.fixture
def program(tmp_path: Path):
    started: list[Frozen] = []

    def start(script: str) -> Frozen:
        one = Frozen(tmp_path, TIMERS + textwrap.dedent(script))
        started.append(one)
        one.start()
        return one

    yield start
    for one in started:
        one.kill()


# The state at the dump is the same each time: the timer has expired and is not read until it is told to go on.
EXPIRED = """
number = timerfd(20_000_000, 20_000_000)
ready(number, 5)
say("up"); wait("go")
first = struct.unpack("Q", os.read(number, 8))[0]
say("first", first)
for _ in range(5): os.read(number, 8)
say("five")
"""


@pytest.mark.parametrize("is_cured", [True, False])
def test_an_expired_periodic_timerfd_goes_on_only_when_cured(program, is_cured: bool):
    running = program(EXPIRED)
    running.reached("up")
    running.dump()
    (timer,) = (each for each in openfiles.of(running.images) if isinstance(each, openfiles.Timer))
    assert timer.ticks > 0
    assert timer.interval_ns == 20_000_000
    assert timer.value_ns == 0
    if is_cured:
        assert images.cure_timerfds(running.images) == 1
    running.restore()
    running.tell("go")
    running.reached("first")
    if is_cured:
        running.reached("five")
    else:
        # 25 periods: it never fires again. If it did, CRIU or the kernel would have mended it, and the cure could go.
        time.sleep(0.5)
        assert running.said("five") is None


def test_timerfds_that_are_off_or_running_are_left_as_they_are(program):
    running = program("""
        off = timerfd(20_000_000, 20_000_000); arm(off, 0, 20_000_000)
        past = timerfd(1, 0, 1); os.read(past, 8)
        far = timerfd(10_000_000_000, 10_000_000_000)
        say("up"); wait("go")
        say("fired", [ready(off, 0.3), ready(past, 0), ready(far, 60)])
    """)
    running.reached("up")
    running.dump()
    assert images.cure_timerfds(running.images) == 1
    running.restore()
    running.tell("go")
    assert running.reached("fired") == "[False, False, True]"


def test_interval_and_posix_timers_with_their_signal_pending_go_on(program):
    running = program("""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2])
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        event = struct.pack("qii48x", 0, signal.SIGUSR1, 0); posix = ctypes.c_void_p()
        assert libc.timer_create(1, event, ctypes.byref(posix)) == 0
        assert libc.timer_settime(posix, 0, struct.pack("qqqq", 0, 20_000_000, 0, 20_000_000), None) == 0
        event = struct.pack("qii48x", 0, signal.SIGUSR2, 0); once = ctypes.c_void_p()
        assert libc.timer_create(1, event, ctypes.byref(once)) == 0
        assert libc.timer_settime(once, 0, struct.pack("qqqq", 0, 0, 1, 500_000_000), None) == 0
        while not {signal.SIGALRM, signal.SIGUSR1} <= signal.sigpending(): time.sleep(0.01)
        say("up"); wait("go")
        for _ in range(5): signal.sigwait([signal.SIGALRM])
        for _ in range(5): signal.sigwait([signal.SIGUSR1])
        signal.sigwait([signal.SIGUSR2])
        say("five")
    """)
    running.reached("up")
    running.dump()
    running.restore()
    running.tell("go")
    running.reached("five")


def test_an_alarm_that_was_set_once_still_comes(program):
    running = program("""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        signal.alarm(5)
        say("up"); signal.sigwait([signal.SIGALRM]); say("rang"); wait("never")
    """)
    running.reached("up")
    running.dump()
    running.restore()
    running.reached("rang")


def test_counts_signals_and_edges_that_were_not_taken_are_there_again(program):
    running = program("""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        counter = os.eventfd(0); os.eventfd_write(counter, 3)
        mask = struct.pack("128s", (1 << (signal.SIGUSR1 - 1)).to_bytes(8, "little"))
        signals = libc.signalfd(-1, mask, 0); os.kill(os.getpid(), signal.SIGUSR1)
        reader, writer = os.pipe(); edge = select.epoll()
        edge.register(reader, select.EPOLLIN | select.EPOLLET); os.write(writer, b"x")
        once = select.epoll(); once.register(counter, select.EPOLLIN | select.EPOLLONESHOT)
        quiet = select.epoll(); quiet.register(counter, select.EPOLLIN | select.EPOLLONESHOT); quiet.poll(0)
        say("up"); wait("go")
        found = [os.eventfd_read(counter), ready(signals, 1)]
        found.append(struct.unpack_from("I", os.read(signals, 128))[0] == signal.SIGUSR1)
        found += [len(edge.poll(1)), len(edge.poll(0))]
        os.eventfd_write(counter, 1)
        found += [len(once.poll(1)), len(once.poll(0)), len(quiet.poll(0))]
        say("found", found)
    """)
    running.reached("up")
    running.dump()
    running.restore()
    running.tell("go")
    assert running.reached("found") == "[3, True, True, 1, 0, 1, 0, 0]"


def test_the_monotonic_clock_goes_on_and_waits_last_as_long_as_they_should(program):
    # CRIU restores into a time namespace: after a reboot a wait until an absolute time would otherwise last for days.
    began = time.monotonic()
    running = program("""
        import queue, threading
        start = time.monotonic()
        def wait_in_queue():
            try: queue.Queue().get(timeout=2)
            except queue.Empty: say("queue", time.monotonic() - start)
        threading.Thread(target=wait_in_queue, daemon=True).start()
        say("up"); time.sleep(2); say("slept", time.monotonic() - start); wait("never")
    """)
    running.reached("up")
    running.dump()
    away = time.monotonic()
    time.sleep(1.5)
    away = time.monotonic() - away
    running.restore()
    for name in ("slept", "queue"):
        lasted = float(running.reached(name))
        # By its own clock no longer than it was there: while it was away, that stood still.
        assert 2 <= lasted <= time.monotonic() - began - away


def test_what_an_inotify_had_to_tell_is_lost(program):
    # A fault of CRIU that no image can cure: the check before a dump has to name it.
    running = program("""
        os.mkdir("watched"); number = libc.inotify_init1(0); libc.inotify_add_watch(number, b"watched", 0x100)
        open("watched/one", "w").close(); assert ready(number, 1)
        say("up"); wait("go")
        found = [ready(number, 0.2)]; open("watched/two", "w").close(); found.append(ready(number, 1)); say("found", found)
    """)
    running.reached("up")
    running.dump()
    running.restore()
    running.tell("go")
    assert running.reached("found") == "[False, True]"


def test_an_eventfd_that_counts_one_by_one_does_not_any_more(program):
    # A fault of CRIU that no image can cure, since the flag is in none: the check before a dump has to name it.
    running = program("""
        semaphore = os.eventfd(2, os.EFD_SEMAPHORE)
        say("up"); wait("go"); say("found", os.eventfd_read(semaphore))
    """)
    running.reached("up")
    (number,) = (each for each in descriptors.of(running.pid) if each.target == "anon_inode:[eventfd]")
    assert "eventfd-semaphore: 1" in number.info.rest
    running.dump()
    running.restore()
    running.tell("go")
    assert running.reached("found") == "2"


def test_runs_say_where_each_page_of_private_and_shared_memory_belongs(program):
    running = program("""
        size = 64 * mmap.PAGESIZE
        private = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        shared = mmap.mmap(-1, size, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        for page in range(0, 64, 2):
            at = page * mmap.PAGESIZE
            private[at : at + 16] = b"private %08d" % page; shared[at : at + 16] = b"shared  %08d" % page
        say("up", ctypes.addressof(ctypes.c_char.from_buffer(private)))
        wait("never")
    """)
    address = int(running.reached("up"))
    running.dump()
    found = images.runs_of(running.images)
    written = {path.name for path in running.images.glob("pages-*.img")}
    assert set(found) == written
    spaces = {run.space for runs in found.values() for run in runs}
    assert "mm:1" in spaces
    assert any(space.startswith("shm:") for space in spaces)
    seen: dict[str, dict[int, bytes]] = {}
    for name, runs in found.items():
        pages = (running.images / name).read_bytes()
        assert len(pages) == sum(run.blocks for run in runs) * mmap.PAGESIZE
        at = 0
        for run in runs:
            for block in range(run.blocks):
                seen.setdefault(run.space, {})[run.address + block * mmap.PAGESIZE] = pages[at : at + 16]
                at += mmap.PAGESIZE
    private = {place: text for place, text in seen["mm:1"].items() if address <= place < address + 64 * mmap.PAGESIZE}
    for page in range(0, 64, 2):
        assert private[address + page * mmap.PAGESIZE] == b"private %08d" % page
    shared = next(pages for space, pages in seen.items() if space.startswith("shm:") and pages.get(0, b"").startswith(b"shared"))
    for page in range(0, 64, 2):
        assert shared[page * mmap.PAGESIZE] == b"shared  %08d" % page


def test_open_files_of_a_real_dump_are_listed(program, tmp_path: Path):
    running = program("""
        import socket
        log = open("log", "a"); log.write("12345"); log.flush()
        server = socket.create_server(("127.0.0.1", 0)); reader, writer = os.pipe(); queue = select.epoll()
        say("up", server.getsockname()[1]); wait("never")
    """)
    port = int(running.reached("up"))
    running.dump()
    found = openfiles.of(running.images)
    (log,) = (each for each in found if isinstance(each, openfiles.RegularFile) and each.name == str(tmp_path / "log"))
    assert log.flags & os.O_APPEND
    (server,) = (each for each in found if isinstance(each, openfiles.Inet))
    assert (server.state, server.local) == ("listen", ("127.0.0.1", port))
    assert len([each for each in found if isinstance(each, openfiles.Pipe)]) == 2
    assert any(isinstance(each, openfiles.Other) and each.kind == "epoll" for each in found)
