"""Files that only grow: whatever dies while one is written, what was in it stays, and what tore is kept beside it and counted once."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path

import dying
import pytest
from children import exit_status, in_child, wait_for
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.evaluation import lines

_objects = st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=8)), max_size=3).map(
    lambda each: json.dumps(each).encode()
)


def test_lines_come_back_in_order_and_the_file_is_private(tmp_path):
    for number in range(3):
        lines.append(tmp_path, "runs.jsonl", b'{"n":%d}' % number)
    assert lines.read(tmp_path, "runs.jsonl") == lines.Lines((b'{"n":0}', b'{"n":1}', b'{"n":2}'), 0)
    assert (tmp_path / "runs.jsonl").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["runs.jsonl"]


def test_no_file_is_no_lines(tmp_path):
    assert lines.read(tmp_path, "runs.jsonl") == lines.Lines()
    with pytest.raises(errors.InputMissing):
        lines.read(tmp_path / "none", "runs.jsonl")


@given(kept=st.lists(_objects, max_size=4), last=_objects, cut=st.integers(0, 60), again=_objects)
def test_a_line_that_tore_anywhere_costs_itself_alone(tmp_path_factory, kept, last, cut, again):
    folder = tmp_path_factory.mktemp("torn")
    path = folder / "runs.jsonl"
    fragment = last[:cut]
    path.write_bytes(b"".join(line + b"\n" for line in kept) + fragment)
    is_whole = fragment == last
    wanted = [*kept, last] if is_whole else kept
    torn = int(bool(fragment) and not is_whole)
    for _ in range(2):  # reading changes nothing
        assert lines.read(folder, "runs.jsonl") == lines.Lines(tuple(wanted), torn)
    lines.append(folder, "runs.jsonl", again)
    assert lines.read(folder, "runs.jsonl") == lines.Lines((*wanted, again), torn)
    if torn:
        assert (folder / "runs.jsonl.torn").read_bytes() == b"%d %b\n" % (sum(len(line) + 1 for line in kept), fragment)


def test_torn_bytes_need_not_be_text(tmp_path):
    (tmp_path / "runs.jsonl").write_bytes(b'{"n":0}\n{"n":\xff\x00\x00')
    lines.append(tmp_path, "runs.jsonl", b'{"n":1}')
    assert lines.read(tmp_path, "runs.jsonl") == lines.Lines((b'{"n":0}', b'{"n":1}'), 1)


def test_the_same_beginning_torn_twice_counts_twice(tmp_path):
    for _ in range(2):
        with open(tmp_path / "runs.jsonl", "ab") as handle:
            handle.write(b'{"n":')
        lines.append(tmp_path, "runs.jsonl", b"{}")
    assert lines.read(tmp_path, "runs.jsonl").torn == 2


def test_a_crash_at_every_step_of_a_repair_loses_nothing_and_counts_once(tmp_path):
    folder = tmp_path / "evaluation"
    crashed = 0

    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "runs.jsonl").write_bytes(b'{"n":0}\n{"n":1')

    for _ in dying.crashes(lambda: lines.append(folder, "runs.jsonl", b'{"n":2}'), prepare):
        crashed += 1
        found = lines.read(folder, "runs.jsonl")
        assert found.lines in ((b'{"n":0}',), (b'{"n":0}', b'{"n":2}'))
        assert found.torn == 1
        lines.append(folder, "runs.jsonl", b'{"n":3}')
        found = lines.read(folder, "runs.jsonl")
        assert found.lines in ((b'{"n":0}', b'{"n":3}'), (b'{"n":0}', b'{"n":2}', b'{"n":3}'))
        assert found.torn == 1
    assert crashed > 5


@pytest.mark.parametrize("aside", [b"", b'8 {"n":', b'8 {"n":1\n', b'0 older\n8 {"n"', b'0 older\n8 {"n":1\n'])
def test_a_repair_that_was_broken_off_is_done_again(tmp_path, aside):
    (tmp_path / "runs.jsonl").write_bytes(b'{"n":0}\n{"n":1')
    (tmp_path / "runs.jsonl.torn").write_bytes(aside)
    older = b"older" in aside
    assert lines.read(tmp_path, "runs.jsonl").torn == 1 + older
    lines.append(tmp_path, "runs.jsonl", b"{}")
    assert (tmp_path / "runs.jsonl.torn").read_bytes() == b"0 older\n" * older + b'8 {"n":1\n'
    assert lines.read(tmp_path, "runs.jsonl").torn == 1 + older


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path):
    lines.append(tmp_path, "runs.jsonl", b'{"n":0}')

    def write_over_the_limit() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
        try:
            lines.append(tmp_path, "runs.jsonl", b'{"n":"' + b"x" * 100 + b'"}')
        except errors.OutputError:
            os._exit(0)
        os._exit(1)

    assert exit_status(in_child(write_over_the_limit)) == 0
    assert (tmp_path / "runs.jsonl").read_bytes() == b'{"n":0}\n'


def test_links_are_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    folder = tmp_path / "evaluation"
    folder.mkdir()
    (folder / "runs.jsonl").symlink_to(victim)
    with pytest.raises(errors.LinkInPath):
        lines.append(folder, "runs.jsonl", b"{}")
    with pytest.raises(errors.LinkInPath):
        lines.read(folder, "runs.jsonl")
    (folder / "runs.jsonl").unlink()
    (folder / "runs.jsonl").write_bytes(b'{"torn')
    (folder / "runs.jsonl.torn").symlink_to(victim)
    with pytest.raises(errors.LinkInPath):
        lines.append(folder, "runs.jsonl", b"{}")
    assert victim.read_bytes() == b"precious"


def test_a_line_end_inside_is_refused(tmp_path):
    with pytest.raises(errors.OutputError):
        lines.append(tmp_path, "runs.jsonl", b"{}\n{}")
    assert not list(Path(tmp_path).iterdir())


def test_a_reader_waits_for_a_writer(tmp_path):
    import fcntl

    lines.append(tmp_path, "runs.jsonl", b'{"n":0}')
    with open(tmp_path / "runs.jsonl", "ab") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        writer.write(b'{"n":')
        writer.flush()
        child = in_child(lambda: os._exit(lines.read(tmp_path, "runs.jsonl").torn))
        wait_for(lambda: any("->" in lock and f" {child} " in lock for lock in Path("/proc/locks").read_text().splitlines()), 120.0)
        writer.write(b"1}\n")
        writer.flush()
        fcntl.flock(writer, fcntl.LOCK_UN)
    assert exit_status(child) == 0
