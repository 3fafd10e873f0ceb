"""The cure of timers that would never fire again: what it changes, and that it changes nothing else."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.checkpoint.images import container, openfiles, timers, wire

HEAD = struct.pack("<II", container.COMMON, container.FILES)
FOWN = bytes.fromhex("080010001800200028 00")


def encoded(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return wire.encode_varint(number << 3) + wire.encode_varint(value)
    return wire.encode_varint(number << 3 | 2) + wire.encode_varint(len(value)) + value


def timerfd(file_id: int, *, ticks: int, flags: int, value_ns: int, interval_ns: int) -> bytes:
    seconds, interval = divmod(value_ns, 10**9), divmod(interval_ns, 10**9)
    inner = encoded(1, file_id) + encoded(2, 2) + encoded(3, FOWN) + encoded(4, 1) + encoded(5, ticks) + encoded(6, flags)
    inner += encoded(7, seconds[0]) + encoded(8, seconds[1]) + encoded(9, interval[0]) + encoded(10, interval[1]) + encoded(77, b"future")
    return encoded(1, 17) + encoded(2, file_id) + encoded(12, inner) + encoded(78, 3)


def cured(tmp_path, *entries: bytes):
    path = tmp_path / "files.img"
    path.write_bytes(container.assemble(HEAD, entries))
    path.chmod(0o600)
    count = timers.cure_timerfds(tmp_path)
    return count, container.read(path, container.FILES).entries


OTHER = encoded(1, 1) + encoded(2, 3) + encoded(3, encoded(1, 3) + encoded(6, b"tmp/x"))


def test_an_expired_periodic_timer_fires_at_once(tmp_path):
    sick = timerfd(6, ticks=1, flags=0, value_ns=0, interval_ns=20_000_000)
    count, entries = cured(tmp_path, OTHER, sick, OTHER)
    assert count == 1
    assert entries == (OTHER, timerfd(6, ticks=1, flags=0, value_ns=1, interval_ns=20_000_000), OTHER)
    assert timers.cure_timerfds(tmp_path) == 0


def test_an_absolute_timer_that_is_off_stays_off(tmp_path):
    count, entries = cured(tmp_path, timerfd(6, ticks=0, flags=1, value_ns=0, interval_ns=0))
    assert (count, entries) == (1, (timerfd(6, ticks=0, flags=0, value_ns=0, interval_ns=0),))


def test_a_timer_that_was_switched_off_with_its_interval_kept_stays_off(tmp_path):
    off = timerfd(6, ticks=0, flags=0, value_ns=0, interval_ns=20_000_000)
    assert cured(tmp_path, off) == (0, (off,))


def test_nothing_to_mend_leaves_the_file_itself(tmp_path):
    path = tmp_path / "files.img"
    path.write_bytes(container.assemble(HEAD, [OTHER]))
    before = path.stat()
    assert timers.cure_timerfds(tmp_path) == 0
    assert path.stat().st_ino == before.st_ino


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 1, 10**9, 10**9 + 1]), st.sampled_from([0, 1, 10**9])),
        max_size=6,
    )
)
def test_running_timers_are_never_touched_and_no_periodic_one_is_lost(tmp_path_factory, states):
    before = [timerfd(place, ticks=t, flags=f, value_ns=v, interval_ns=i) for place, (t, f, v, i) in enumerate(states)]
    count, after = cured(tmp_path_factory.mktemp("images"), *before)
    assert count == sum(old != new for old, new in zip(before, after, strict=True))
    for (ticks, flags, value, interval), old, new in zip(states, before, after, strict=True):
        (found,) = openfiles.parse(container.assemble(HEAD, [new]))
        assert (found.ticks, found.interval_ns) == (ticks, interval)
        if value:
            assert new == old
        elif ticks and interval:
            assert (found.value_ns, found.set_flags) == (1, flags)
        else:
            assert (found.value_ns, found.set_flags) == (0, flags & ~1)


def test_missing_numbers_count_as_zero(tmp_path):
    inner = encoded(5, 1) + encoded(10, 5)
    count, (entry,) = cured(tmp_path, encoded(1, 17) + encoded(12, inner))
    assert count == 1
    assert wire.content(wire.parse(entry), 12) == inner + encoded(8, 1)


@pytest.mark.parametrize("text", [b"", HEAD + b"\x01\x00\x00\x00\xff", HEAD[:4]])
def test_a_damaged_image_is_refused_and_kept(tmp_path, text):
    (tmp_path / "files.img").write_bytes(text)
    with pytest.raises(errors.InputFormat):
        timers.cure_timerfds(tmp_path)
    assert (tmp_path / "files.img").read_bytes() == text


def test_images_that_are_missing_are_said_to_be_missing(tmp_path):
    with pytest.raises(errors.InputMissing):
        timers.cure_timerfds(tmp_path)
