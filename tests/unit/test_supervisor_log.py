"""The console's log: what came from which stream, cut and given back."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from perdure.supervisor import log
from perdure.supervisor.log import Log

PIECES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=9)), max_size=30)


def write(path, pieces):
    opened = Log(path)
    for stream, content in pieces:
        assert opened.write(stream, content) == ""
    opened.close()
    return opened.size_bytes


def streams_of(path, limit, wanted, folder):
    with open(folder / "copy", "wb+") as target:
        done = log.write_pieces(log.chunks_of_streams(path, limit, frozenset(wanted)), target.fileno())
        target.seek(0)
        content = target.read()
    assert done == len(content)
    skipped = b"".join(log.chunks_of_streams(path, limit, frozenset(wanted), skip_bytes=done // 2))
    assert skipped == content[done // 2 :]
    return content


@given(pieces=PIECES, more=PIECES, share=st.floats(0, 1))
def test_each_stream_can_be_had_again_up_to_any_byte(tmp_path_factory, pieces, more, share):
    folder = tmp_path_factory.mktemp("log")
    path = folder / "log"
    size = write(path, pieces)
    whole = b"".join(content for _, content in pieces)
    assert path.read_bytes() == whole
    limit = int(size * share)
    for wanted in ({1}, {2}, {1, 2}):
        expected = bytes(
            byte
            for (stream, byte), at in zip(((stream, byte) for stream, content in pieces for byte in content), range(size), strict=True)
            if stream in wanted and at < limit
        )
        assert streams_of(path, limit, wanted, folder) == expected
    assert log.cut(path, limit, aside=folder / "tail") == size - limit
    assert path.read_bytes() == whole[:limit]
    assert ((folder / "tail").read_bytes() if size > limit else b"") == whole[limit:]
    write(path, more)
    assert streams_of(path, 10**9 if False else path.stat().st_size, {2}, folder).endswith(
        b"".join(content for stream, content in more if stream == 2)
    )


def test_a_log_without_word_of_its_streams_counts_as_stdout(tmp_path):
    (tmp_path / "log").write_bytes(b"abc")
    assert log.stretches(tmp_path / "log", 3) == [(1, 0, 3)]


def test_a_crash_between_the_two_writes_does_no_harm(tmp_path):
    path = tmp_path / "log"
    write(path, [(1, b"aa")])
    with open(log.streams_path(path), "ab") as handle:
        handle.write(log.encode([(2, 2, 0)]) + b"\x01\x02")  # a change at which nothing follows, and half of another
    os.truncate(log.streams_path(path), 18)
    write(path, [(1, b"bb"), (2, b"c")])
    assert log.stretches(path, 5) == [(1, 0, 2), (1, 2, 2), (2, 4, 1)]


def test_files_are_private(tmp_path):
    write(tmp_path / "log", [(1, b"x")])
    for one in tmp_path.iterdir():
        assert one.stat().st_mode & 0o777 == 0o600
