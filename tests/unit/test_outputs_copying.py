"""Copying and comparing content between descriptors, holes and interruptions included."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.outputs import copying

PAGE = 4096
# A file as pieces: data of one byte value, or a hole (None), in pages and a rest.
pieces = st.lists(st.tuples(st.sampled_from([None, 1, 2, 0]), st.integers(0, 3 * PAGE)), max_size=6)


@contextlib.contextmanager
def a_file(content: list[tuple[int | None, int]]) -> Iterator[int]:
    with tempfile.TemporaryFile() as handle:
        at = 0
        for value, size in content:
            if value is not None:
                os.pwrite(handle.fileno(), bytes([value]) * size, at)
            at += size
        handle.truncate(at)
        yield handle.fileno()


def read(descriptor: int) -> bytes:
    return os.pread(descriptor, 1 << 20, 0)


def blocks(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks


@given(pieces)
def test_a_copy_is_equal_and_no_larger_on_disk(content):
    with a_file(content) as source, a_file([]) as target:
        size = os.fstat(source).st_size
        copying.copy(source, target, size)
        assert read(target) == read(source)
        assert copying.is_equal(source, target, 0, size)
        assert blocks(target) <= blocks(source)


@given(pieces, st.integers(0, 20_000), st.integers(0, 20_000), st.integers(0, 5000))
def test_a_range_lands_where_it_should(content, begin, length, at):
    with a_file(content) as source, a_file([]) as target:
        whole = read(source)
        begin, end = min(begin, len(whole)), min(begin + length, len(whole))
        os.ftruncate(target, at + end - begin)
        copying.copy_range(source, target, begin, end, at)
        assert read(target) == bytes(at) + whole[begin:end]
        os.lseek(target, 0, os.SEEK_SET)
        with a_file([]) as part:
            os.pwrite(part, whole[begin:end], 0)
            assert copying.is_equal(source, part, begin, end - begin)


@given(pieces, pieces)
def test_equal_means_the_same_bytes(first, second):
    with a_file(first) as one, a_file(second) as other:
        size = max(os.fstat(one).st_size, os.fstat(other).st_size)
        assert copying.is_equal(one, other, 0, size) == (read(one) == read(other))


@given(pieces, pieces)
def test_any_file_can_be_made_equal_in_place(before, wanted):
    with a_file(before) as target, a_file(wanted) as source:
        inode = os.fstat(target).st_ino
        copying.make_equal(target, source)
        assert read(target) == read(source)
        assert os.fstat(target).st_ino == inode


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(0, 200), st.integers(0, 200))
def test_what_an_interruption_leaves_is_known(before, wanted, done, cut):
    done = min(done, len(wanted))
    with tempfile.TemporaryFile() as kept, tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as mixed:
        for handle, content in ((kept, before), (source, wanted), (mixed, wanted[:done] + before[done:])):
            os.pwrite(handle.fileno(), content, 0)
        assert copying.is_mixture(mixed.fileno(), kept.fileno(), source.fileno())
        # One byte that is in neither at its place.
        content = read(mixed.fileno())
        if cut < len(content):
            strange = next(value for value in range(256) if value not in (*before[cut : cut + 1], *wanted[cut : cut + 1]))
            os.pwrite(mixed.fileno(), bytes([strange]), cut)
            assert not copying.is_mixture(mixed.fileno(), kept.fileno(), source.fileno())
        os.ftruncate(mixed.fileno(), max(len(before), len(wanted)) + 1)
        assert not copying.is_mixture(mixed.fileno(), kept.fileno(), source.fileno())


def test_a_copy_never_replaces_what_lies_in_the_staging_folder(tmp_path):
    with a_file([(1, PAGE)]) as source:
        folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            copying.to_staging(source, folder, "x", PAGE)
            with pytest.raises(FileExistsError):
                copying.to_staging(source, folder, "x", PAGE)
        finally:
            os.close(folder)
    assert (tmp_path / "x").read_bytes() == bytes([1]) * PAGE
