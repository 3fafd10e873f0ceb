"""GPU memory through a few buffers: all of it, each byte once, in bounded memory, page-locked or not."""

from __future__ import annotations

import ctypes
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from copying import Driver
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.checkpoint.cuda import stretches
from perdure.checkpoint.cuda.contract import Trouble
from perdure.checkpoint.cuda.stretches import Reading, Refused, Stretch

PIECE = 4096


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(stretches, "PIECE_BYTES", PIECE)


def device_memory(content: bytes) -> tuple[Stretch, ctypes.Array]:
    memory = ctypes.create_string_buffer(content, len(content))
    return Stretch(0, "GPU-1", ctypes.addressof(memory), len(content), 0), memory


@given(st.integers(0, 10 * PIECE), st.booleans(), st.integers(1, 2 * PIECE))
def test_all_of_it_is_read_in_chunks_of_any_size(size_bytes, locks, chunk_bytes):
    content = random.Random(size_bytes).randbytes(size_bytes)
    stretch, _memory = device_memory(content)
    driver = Driver(locks=locks)
    found = bytearray()
    with Reading(driver, stretch) as reading:
        for offset in range(0, size_bytes, chunk_bytes):
            into = memoryview(bytearray(b"?" * chunk_bytes))
            reading.read(offset, into)
            found += into
    assert bytes(found[:size_bytes]) == content
    assert not any(found[size_bytes:]), "what is behind the end is zeros"
    assert driver.locked == {}, "page-locked memory is given back"
    assert driver.most_locked <= 3 * PIECE
    assert driver.most_locked > 0 or not locks or not size_bytes


def test_several_threads_read_what_lies_close_together():
    content = random.Random(1).randbytes(40 * PIECE)
    stretch, _memory = device_memory(content)
    chunk = PIECE // 4
    with Reading(Driver(), stretch) as reading, ThreadPoolExecutor(4) as pool:
        views = [memoryview(bytearray(chunk)) for _ in range(len(content) // chunk)]
        for at in range(0, len(views), 4):
            list(pool.map(lambda number: reading.read(number * chunk, views[number]), reversed(range(at, at + 4))))
    assert b"".join(views) == content


@given(st.integers(0, 10 * PIECE), st.booleans(), st.data())
def test_all_of_it_is_written_whatever_the_parts_are(size_bytes, locks, data):
    content = random.Random(size_bytes).randbytes(size_bytes)
    stretch, memory = device_memory(bytes(size_bytes))
    cuts = sorted(data.draw(st.lists(st.integers(0, size_bytes), max_size=12)))
    parts = [memoryview(content)[low:high] for low, high in zip([0, *cuts], [*cuts, size_bytes], strict=True)]
    driver = Driver(locks=locks)
    stretches.write(driver, stretch, parts)
    assert memory.raw == content
    assert driver.locked == {}
    assert driver.most_locked <= 2 * PIECE


@pytest.mark.parametrize("difference", [-1, 1])
def test_what_is_too_short_or_too_long_is_refused(difference):
    stretch, _memory = device_memory(bytes(3 * PIECE))
    with pytest.raises(Refused) as refused:
        stretches.write(Driver(), stretch, [memoryview(bytes(3 * PIECE + difference))])
    assert refused.value.problem.trouble is Trouble.FILES


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_copy_that_fails_is_told_to_who_reads_and_nothing_stays_locked(number):
    stretch, _memory = device_memory(bytes(8 * PIECE))
    driver = Driver(fails_at=number)
    with pytest.raises(errors.CheckpointFailed, match="the copy failed"), Reading(driver, stretch) as reading:
        for _ in reading.pieces():
            pass
    assert driver.locked == {}
    with pytest.raises(Refused, match="the copy failed"):
        stretches.write(Driver(fails_at=number), stretch, [memoryview(bytes(8 * PIECE))])


def test_who_stops_reading_ends_it():
    stretch, _memory = device_memory(bytes(100 * PIECE))
    driver = Driver()
    with Reading(driver, stretch) as reading:
        next(reading.pieces())
    assert driver.locked == {}
