"""A log that is followed: cut by a resume, replaced by a new start, and its end."""

from __future__ import annotations

import contextlib
import os

import pytest

from perdure.supervisor.following import Stage, Tail, follow


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    return path


@contextlib.contextmanager
def opened(path):
    with contextlib.closing(Tail(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)) as tail:
        yield tail


def test_what_a_resume_cut_off_and_wrote_again_is_read_again(log):
    got = []
    with opened(log) as tail:
        tail.copy(got.append)
        os.truncate(log, 4)
        tail.catch_up()
        with open(log, "ab") as handle:
            handle.write(b"two again\n")
        tail.copy(got.append)
    assert got == [b"one\ntwo\n", b"two again\n"]


def test_a_log_in_its_place_is_read_from_its_beginning(log):
    got = []
    with opened(log) as tail:
        tail.copy(got.append)
        log.rename(log.with_name("log.previous"))
        tail.catch_up()  # there is none for a moment
        tail.copy(got.append)
        log.write_bytes(b"another, and longer\n")
        tail.catch_up()
        tail.copy(got.append)
    assert got == [b"one\ntwo\n", b"another, and longer\n"]


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ([Stage.ENDED], 0),
        ([Stage.LOST], 0),
        ([Stage.RUNS, Stage.RUNS, Stage.ENDED], 0),
        ([Stage.RUNS, Stage.LOST, Stage.LOST, Stage.RUNS, Stage.LOST, Stage.RUNS, Stage.ENDED], 2),
        ([Stage.RUNS, Stage.LOST, Stage.ENDED], 1),
    ],
    ids=["ended", "lost-from-the-start", "ends", "resumed-twice", "removed-while-lost"],
)
def test_it_is_followed_until_it_ends_and_waited_for_when_it_is_lost(log, stages, told):
    looks, lost, got = iter(stages), [], []
    with opened(log) as tail:
        follow(tail, lambda: next(looks), got.append, wait=lambda _s: None, lost=lambda: lost.append(True))
    assert next(looks, None) is None
    assert len(lost) == told
    assert b"".join(got) == b"one\ntwo\n"


def test_what_is_written_until_the_end_is_read(log):
    got = []

    def look():
        with open(log, "ab") as handle:
            handle.write(b"last\n")
        return Stage.ENDED

    with opened(log) as tail:
        follow(tail, look, got.append, wait=lambda _s: None, lost=lambda: None)
    assert b"".join(got) == b"one\ntwo\nlast\n"
