"""Output files of jobs, brought back whole: emptied, written on, with lines of Perdure and of Slurm in between."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.supervisor import handback, splice
from perdure.supervisor.handback import Written
from perdure.supervisor.log import Log
from perdure.supervisor.record import Target

BOTH = frozenset({1, 2})
SAID = b"perdure: slurm-lab-7, life 2 on n2, restart 1: goes on from slurm-lab-7@1.3\n"
KILLED = b"slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T01:58:15 DUE TO JOB REQUEUE ***\n"


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


class Job:
    """A job's log and its output file."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "slurm-7.out"
        self.log = folder / "log"

    def wrote(self, *pieces):
        log = Log(self.log)
        for stream, content in pieces:
            log.write(stream, content)
        log.close()
        return log.size_bytes

    def brought_back(self, content, size_bytes, *, streams=BOTH, known=None, append=True, epoch=2):
        self.path.write_bytes(content)
        flags = os.O_WRONLY | (os.O_APPEND if append else 0)
        descriptor = os.open(self.path, flags)
        try:
            target, done = handback.give_back(Written(self.log, size_bytes, streams), descriptor, known, epoch=epoch, owner=None)
            os.write(descriptor, b"[goes on]")
        finally:
            os.close(descriptor)
        return target, done, self.path.read_bytes()


@pytest.mark.parametrize("append", [True, False])
def test_a_file_that_was_emptied_gets_all_of_it_back(job, append):
    size = job.wrote((1, b"one\n"), (2, b"two\n"), (1, b"three\n"))
    target, done, content = job.brought_back(b"", size, append=append)
    assert content == b"one\ntwo\nthree\n[goes on]"
    assert (target.start_bytes, done) == (0, "14 B of earlier output put back")


def test_lines_of_ours_in_an_emptied_file_stay_before_it(job):
    size = job.wrote((1, b"one\ntwo\n"))
    assert job.brought_back(SAID, size)[2] == SAID + b"one\ntwo\n[goes on]"


@pytest.mark.parametrize("append", [True, False])
def test_what_was_written_after_the_checkpoint_is_cut_off_and_slurms_lines_stay(job, append):
    job.wrote((1, b"one\ntwo\nthree\nfour"))
    _, done, content = job.brought_back(b"one\ntwo\nthree\nfour" + b"\n" + KILLED + SAID, 8, append=append)
    assert content == b"one\ntwo\n" + KILLED + SAID + b"[goes on]"
    assert done == "11 B written after the checkpoint cut off, and kept as slurm-7.out.perdure-tail-2"
    assert (job.folder / "slurm-7.out.perdure-tail-2").read_bytes() == b"three\nfour\n" + KILLED + SAID


def test_what_others_wrote_behind_it_is_kept_beside_whoever_owns_the_file(job):
    job.wrote((1, b"one\ntwo\n"))
    _, done, content = job.brought_back(b"one\ntwo\nsaid by another program\n", 4)
    assert content == b"one\n[goes on]"
    assert (job.folder / "slurm-7.out.perdure-tail-2").read_bytes() == b"two\nsaid by another program\n"
    assert done.endswith("and kept as slurm-7.out.perdure-tail-2")


def test_with_nothing_but_lines_of_others_behind_it_is_left_as_it_is(job):
    size = job.wrote((1, b"one\n"))
    _, done, content = job.brought_back(b"one\n" + KILLED + SAID, size)
    assert (done, content) == ("", b"one\n" + KILLED + SAID + b"[goes on]")


def test_lines_of_others_in_between_are_passed_over(job):
    size = job.wrote((1, b"one\ntw"), (2, b"o\nthree\n"))
    there = SAID + b"one\ntw" + SAID + b"o\n" + KILLED + b"three\nfour\n"
    _, done, content = job.brought_back(there, size)
    assert content == SAID + b"one\ntw" + SAID + b"o\n" + KILLED + b"three\n[goes on]"
    assert done == "5 B written after the checkpoint cut off, and kept as slurm-7.out.perdure-tail-2"


def test_a_line_of_the_workload_that_begins_as_ours_do_is_the_workloads(job):
    size = job.wrote((1, b"perdure: slurm-lab-7, life nine\nslurmstepd: no\n"))
    there = SAID + b"perdure: slurm-lab-7, life nine\nslurmstepd: no\nmore\n"
    assert job.brought_back(there, size)[2] == SAID + b"perdure: slurm-lab-7, life nine\nslurmstepd: no\n[goes on]"


def test_a_file_that_lost_its_end_with_its_node_gets_that_back(job):
    size = job.wrote((1, b"one\ntwo\nthree\n"))
    _, done, content = job.brought_back(SAID + b"one\ntw", size)
    assert (content, done) == (SAID + b"one\ntwo\nthree\n[goes on]", "8 B of earlier output put back")


def test_a_file_that_holds_something_else_is_left_alone(job):
    size = job.wrote((1, b"one\ntwo\n"))
    target, done, content = job.brought_back(b"of somebody else\n", size)
    assert (target, done, content) == (None, "", b"of somebody else\n[goes on]")


def test_where_nothing_was_written_what_is_there_is_not_touched_unless_it_is_known(job):
    size = job.wrote()
    assert job.brought_back(b"from before\n", size)[0] is None
    found = os.stat(job.path)
    known = Target(descriptor=1, device=found.st_dev, inode=found.st_ino, start_bytes=12)
    assert job.brought_back(b"from before\nmore\n", size, known=known)[2] == b"from before\n[goes on]"


def test_a_file_with_something_from_before_is_brought_back_behind_it_and_from_its_start_when_it_was_emptied(job):
    size = job.wrote((1, b"one\n"))
    job.path.write_bytes(b"")
    found = os.stat(job.path)
    known = Target(descriptor=1, device=found.st_dev, inode=found.st_ino, start_bytes=12)
    assert job.brought_back(b"from before\none\ntwo\n", size, known=known)[2] == b"from before\none\n[goes on]"
    assert job.brought_back(SAID, size, known=known)[2] == SAID + b"one\n[goes on]"


def test_one_stream_of_two_goes_to_its_own_file(job):
    size = job.wrote((1, b"out\n"), (2, b"err\n"), (1, b"more\n"))
    assert job.brought_back(b"", size, streams=frozenset({2}))[2] == b"err\n[goes on]"
    assert job.brought_back(b"out\n", size, streams=frozenset({1}))[2] == b"out\nmore\n[goes on]"


def test_what_is_no_file_is_nothing_to_bring_back(job):
    size = job.wrote((1, b"one\n"))
    reading, writing = os.pipe()
    try:
        assert handback.give_back(Written(job.log, size, BOTH), writing, None, epoch=2, owner=None) == (None, "")
    finally:
        os.close(reading)
        os.close(writing)


WORDS = st.lists(st.sampled_from([b"a", b"perdure: ", b"p", b"slurmstepd", b"\n", b"-n1: ", b"line\n"]), max_size=12).map(b"".join)


@given(
    pieces=st.lists(st.tuples(WORDS, st.sampled_from([b"", SAID, KILLED])), max_size=8),
    tail=st.sampled_from([b"", b"more\n", SAID, b"half a line"]),
)
def test_whatever_the_workload_writes_lines_of_others_in_it_are_told_apart(tmp_path_factory, pieces, tail):
    """The content is found whole wherever lines of others were put in; what follows is behind it."""
    path = tmp_path_factory.mktemp("splice") / "file"
    expected = b"".join(word for word, _ in pieces)
    path.write_bytes(b"".join(word + other for word, other in pieces) + tail)
    with open(path, "rb") as file:
        found = splice.match(file.fileno(), 0, iter([word for word, _ in pieces if word]))
    assert (found.is_whole, found.done_bytes) == (True, len(expected))


def test_what_was_put_back_is_cut_off_again_and_other_descriptors_are_left_alone(tmp_path):
    with open(tmp_path / "out", "w+b") as file:
        file.write(b"before\n")
        file.flush()
        reader, writer = os.pipe()
        before = handback.lengths([file.fileno(), writer])
        assert before == {file.fileno(): 7}
        file.write(b"put back\n")
        file.flush()
        handback.shorten(before)
        handback.shorten({writer: 0})
        assert (tmp_path / "out").read_bytes() == b"before\n"
        os.close(reader)
        os.close(writer)
