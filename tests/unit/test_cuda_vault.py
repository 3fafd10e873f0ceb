"""GPU memory into a store and out of it, with a driver that only copies."""

from __future__ import annotations

import ctypes
import random
import time
from pathlib import Path

import pytest
from copying import Driver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.checkpoint.cuda import vault
from perdure.checkpoint.cuda.contract import HELD, Kept, Operation, Request, Store, Trouble
from perdure.checkpoint.cuda.stretches import Refused, Stretch
from perdure.checkpoint.cuda.vault import Vault
from perdure.model.checkpoint import CheckpointId
from perdure.supervisor import place


@pytest.fixture
def store(tmp_path: Path) -> Store:
    where = place.Place(url=str(tmp_path / "store"), key_file=None, cache=str(tmp_path / "cache"), threads=2)
    with place.opened(where, create=True):
        pass
    return Store(url=where.url, key_file=None, cache=where.cache, threads=2, checkpoint=CheckpointId("a", 1, 1))


@pytest.fixture
def opened():
    made = Vault()
    yield made
    made.close()


def stretches(*contents: bytes) -> tuple[tuple[Stretch, ...], list[ctypes.Array]]:
    memories = [ctypes.create_string_buffer(content, len(content)) for content in contents]
    found = [Stretch(n, f"GPU-{n}", ctypes.addressof(memory), len(memory), 0) for n, memory in enumerate(memories)]
    return tuple(found), memories


ASKED = Request(number=1, operation=Operation.CHECKPOINT, pid=7, name="gpu/2-")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=3), st.booleans())
def test_all_of_it_comes_back(tmp_path_factory, store, sizes, locks):
    contents = [random.Random(size).randbytes(size) for size in sizes]
    found, _memories = stretches(*contents)
    folder = tmp_path_factory.mktemp("records")
    with_store, driver = Vault(), Driver(locks=locks)
    with_store.prepare(store, str(folder))
    regions = with_store.put(driver, ASKED, found)
    with_store.close()
    assert [(region.uuid, region.kept, region.size_bytes) for region in regions] == [
        (one.uuid, Kept.PLACED, one.size_bytes) for one in found
    ]
    empty, targets = stretches(*map(bytes, sizes))
    request = Request(number=2, operation=Operation.RESTORE, pid=7, regions=regions, store=store)
    vault.restore(driver, request, empty, {region.uuid: region for region in regions})
    assert [target.raw for target in targets] == contents
    assert driver.locked == {}


def test_a_fault_of_ours_leaves_the_other_way_open(tmp_path, store, opened, monkeypatch):
    def stumble(*_):
        raise IndexError("array index out of range")

    found, _memories = stretches(bytes(5000))
    opened.prepare(store, str(tmp_path))
    monkeypatch.setattr(vault.files, "write_bytes", stumble)
    with pytest.raises(Refused) as refused:
        opened.put(Driver(), ASKED, found)
    assert refused.value.problem.trouble is Trouble.STORE
    assert not (tmp_path / HELD).exists()
    with pytest.raises(Refused, match="given up"):
        opened.put(Driver(), ASKED, found)


def test_a_copy_that_fails_is_a_refusal(tmp_path, store, opened):
    found, _memories = stretches(bytes(5000))
    opened.prepare(store, str(tmp_path))
    with pytest.raises(Refused) as refused:
        opened.put(Driver(fails_at=1), ASKED, found)
    assert refused.value.problem.trouble is Trouble.STORE


def test_a_store_that_is_not_there_is_a_refusal_before_anything_is_done(tmp_path, store, opened):
    (Path(store.url) / "perdure.json").unlink()
    with pytest.raises(Refused) as refused:
        opened.prepare(store, str(tmp_path))
    assert refused.value.problem.trouble is Trouble.STORE
    assert not (tmp_path / HELD).exists()


def test_it_is_let_go_when_its_folder_is_gone(tmp_path, store, opened):
    folder = tmp_path / "gpu"
    folder.mkdir()
    opened.prepare(store, str(folder))
    assert list((Path(store.url) / "locks").iterdir())
    (folder / HELD).unlink()
    folder.rmdir()
    end_s = time.monotonic() + 120.0
    while list((Path(store.url) / "locks").iterdir()):
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_record_that_was_touched_is_damage_and_nothing_is_read(tmp_path, store, opened):
    found, memories = stretches(bytes(range(256)) * 40)
    opened.prepare(store, str(tmp_path))
    regions = opened.put(Driver(), ASKED, found)
    path = Path(regions[0].path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    before = memories[0].raw
    request = Request(number=2, operation=Operation.RESTORE, pid=7, regions=regions, store=store)
    with pytest.raises(Refused) as refused:
        vault.restore(Driver(), request, found, {region.uuid: region for region in regions})
    assert refused.value.problem.trouble is Trouble.DAMAGED
    assert memories[0].raw == before
