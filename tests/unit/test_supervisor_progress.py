"""How far something is, as events and as one line."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading

import pytest

from perdure.supervisor.messages import Event
from perdure.supervisor.progress import Progress, Readout
from perdure.supervisor.voice import Voice

MIB = 1 << 20


def event(phase: str, done: int | None = None, total: int | None = None) -> Event:
    return Event(phase, "train", 0, done_bytes=done, total_bytes=total)


def test_the_line_has_phase_bytes_rate_and_the_time_left():
    readout = Readout()
    assert readout.of(event("fetch", 0, 40 * MIB), 100.0) == "fetch: 0 B of 40 MiB"
    assert readout.of(event("fetch", 10 * MIB, 40 * MIB), 102.0) == "fetch: 10 MiB of 40 MiB, 5 MiB/s, 6s left"
    # Another phase has a rate of its own; and one that nobody can count says only what it is.
    assert readout.of(event("restore"), 103.0) == "restore"
    assert readout.of(event("fetch", 40 * MIB, 40 * MIB), 105.0) == "fetch: 40 MiB of 40 MiB"
    # Files that grew meanwhile: no time runs backwards.
    assert readout.of(event("fetch", 50 * MIB, 40 * MIB), 106.0).endswith(", 0s left")


def test_what_is_untrusted_does_not_reach_the_terminal():
    assert "\x1b" not in Readout().of(event("\x1b[2J"), 0.0)


def test_every_phase_is_told_of_and_amounts_now_and_then():
    told: list[Event] = []
    progress = Progress("train", told.append)
    progress.enter("fetch", total_bytes=100_000)
    for done in range(100_000):
        progress.reach(done)
    progress.enter("restore")
    phases = [one.phase for one in told]
    assert phases[0] == "fetch"
    assert phases[-1] == "restore"
    assert len(phases) < 1000
    assert (told[0].done_bytes, told[0].total_bytes, told[0].workload) == (0, 100_000, "train")
    assert (told[-1].done_bytes, told[-1].total_bytes) == (None, None)


def test_what_several_threads_read_is_added_up():
    told: list[Event] = []
    clock = itertools.count()
    progress = Progress("train", told.append, clock=lambda: float(next(clock)))
    progress.enter("restore", total_bytes=8000)
    parts = [[memoryview(bytes(3)), memoryview(bytes(1))]] * 500

    def read() -> None:
        assert sum(1 for _ in progress.counted(parts)) == 500

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told[-1].done_bytes == 8000


@contextlib.contextmanager
def terminal():
    """Make our stderr a terminal while the block runs, and yield its other side."""
    ours, theirs = os.openpty()
    kept = os.dup(2)
    os.dup2(theirs, 2)
    os.close(theirs)
    try:
        yield ours
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(ours)


def read(shown: int, end: bytes) -> bytes:
    """Return what the terminal shows, up to `end`: it comes through in pieces."""
    content = b""
    while not content.endswith(end):
        content += os.read(shown, 4096)
    return content


def test_at_a_terminal_the_line_is_overwritten_and_goes_before_anything_is_said():
    voice = Voice(quiet=False, as_json=False, shows_progress=True)
    with terminal() as shown:
        voice.progress(event("fetch", 1 * MIB, 4 * MIB))
        voice.progress(event("restore"))
        voice.say("done")
        voice.clear()
        assert read(shown, b"done\r\n") == b"\r\x1b[Kfetch: 1 MiB of 4 MiB\r\x1b[Krestore\r\x1b[Kperdure: done\r\n"


@pytest.mark.parametrize("said", ["quiet", "json"])
def test_whoever_wants_no_notes_is_shown_none(said):
    voice = Voice(quiet=said == "quiet", as_json=said == "json", shows_progress=True)
    with terminal() as shown:
        voice.progress(event("fetch", 1, 4))
        voice.clear()
        os.write(2, b"|")
        assert b"\x1b" not in read(shown, b"|")
