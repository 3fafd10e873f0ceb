"""Which files go along by themselves."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.outputs import rules
from perdure.checkpoint.outputs.rules import Candidate, Limits
from perdure.model.checkpoint import Holder, OutputFile
from perdure.model.finding import Severity

MIB = 1 << 20


def candidate(key: int, weight: int, *, append: bool = False, read_write: bool = True, path: str = "", group: str = "") -> Candidate:
    path = path or f"/data/{key}"
    return Candidate(key=key, group=group or path, is_append_only=append, is_read_write=read_write, weight_bytes=weight, path=path)


def output(*flags: int, mapped: bool = False, stored_as: str | None = None, digest: str | None = None) -> OutputFile:
    holders = tuple(Holder(7, number, 0, each) for number, each in enumerate(flags))
    return OutputFile("/data/x", 10, 1, 2, 3, 0o644, 0, 0, holders, stored_as=stored_as, head_digest=digest, mapped=mapped)


def test_files_that_only_grow_stay_where_they_are_unless_their_folder_may_be_emptied():
    found = rules.choose([candidate(1, 10, append=True), candidate(2, 10, append=True, path="/tmp/log"), candidate(3, 10)], Limits())
    assert found == {2, 3}


def test_the_limits_hold_and_in_place_files_come_first():
    limits = Limits(file_bytes=64, total_bytes=100)
    files = [candidate(1, 65), candidate(2, 60, read_write=False), candidate(3, 50), candidate(4, 50), candidate(5, 64)]
    assert rules.choose(files, limits) == {3, 4}


def test_a_database_goes_along_with_its_journal_or_not_at_all():
    group = [candidate(1, 60, group="db"), candidate(2, 50, path="/data/db-wal", group="db")]
    assert rules.choose(group, Limits(file_bytes=64, total_bytes=100)) == frozenset()
    assert rules.choose(group, Limits(file_bytes=64, total_bytes=110)) == {1, 2}
    assert rules.choose(group, Limits(file_bytes=59, total_bytes=1000)) == frozenset()


@given(
    st.lists(st.tuples(st.integers(0, 100), st.booleans(), st.booleans(), st.sampled_from(["", "a", "b"])), max_size=20),
    st.integers(0, 100),
    st.integers(0, 300),
)
def test_what_is_chosen_fits(files, each, together):
    candidates = [
        candidate(key, weight, append=append, read_write=wide, group=group) for key, (weight, append, wide, group) in enumerate(files)
    ]
    chosen = rules.choose(candidates, Limits(file_bytes=each, total_bytes=together))
    taken = [one for one in candidates if one.key in chosen]
    assert sum(one.weight_bytes for one in taken) <= together
    assert all(one.weight_bytes <= each and not one.is_append_only for one in taken)
    for group in {one.group for one in taken}:
        assert {one.key for one in candidates if one.group == group and not one.is_append_only} <= chosen


APPEND = os.O_WRONLY | os.O_APPEND


@pytest.mark.parametrize(
    ("file", "only_grows", "size_checked"),
    [
        (output(APPEND), True, False),
        (output(APPEND, APPEND | os.O_CLOEXEC), True, False),
        (output(os.O_RDWR | os.O_APPEND), True, True),
        (output(APPEND, os.O_RDWR), False, True),
        (output(os.O_WRONLY), False, True),
        (output(APPEND, mapped=True), False, True),
        (output(mapped=True), False, True),
    ],
)
def test_what_flags_say(file, only_grows, size_checked):
    assert rules.is_append_only(file) is only_grows
    assert rules.is_size_checked(file) is size_checked


def test_only_what_can_be_overwritten_and_is_not_stored_is_warned_of():
    unreadable = output(os.O_RDWR)
    files = [output(APPEND, digest="aa"), output(os.O_RDWR, stored_as="outputs/0"), unreadable, output(os.O_RDWR, digest="bb")]
    (found,) = rules.unprotected(files)
    assert (found.code, found.severity, found.path, found.pid, found.fd) == ("file-overwrite-unsaved", Severity.WARNING, "/data/x", 7, 0)
    assert "--outputs /data/x" in found.remedy


def test_a_finding_about_a_hostile_name_can_be_shown_and_encoded():
    found = rules.finding("code", Severity.INFO, "/tmp/\udcff\x1b[31m", "is there")
    assert found.subject.isprintable()
    assert found.message.isprintable()
    found.path.encode("utf-8")
