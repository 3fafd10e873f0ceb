"""The saver: nothing is called committed of which garbage collection deleted a part."""

from __future__ import annotations

import os

import pytest
from stores import Still, content, describe, new_repository, noise, reopened, save

from perdure import errors
from perdure.model.checkpoint import Part
from perdure.store import gc, locks
from perdure.store.backends.memory import MemoryBackend
from perdure.supervisor import place, saver

NAME = "w@1.1"
CONTENT = noise(4096 * 40, 1)


@pytest.fixture
def request_(tmp_path):
    """A request for a checkpoint of one file."""
    staging, images = tmp_path / "staging", tmp_path / "images"
    staging.mkdir()
    images.mkdir()
    (tmp_path / "log").touch()
    (tmp_path / "a").write_bytes(CONTENT)
    return saver.Request(
        place=place.Place(url="", key_file=None, cache="", threads=1),
        manifest=describe(NAME),
        images=str(images),
        items=(saver.Item("a", str(tmp_path / "a"), Part.FILES),),
        log=str(tmp_path / "log"),
        staging=str(staging),
        keep=1,
        parent=os.getpid(),
    )


def write(request, repository, here):
    with locks.shared(repository, purpose=f"checkpoint {NAME}", surroundings=here) as lock:
        return saver._write(request, repository, None, lock, saver._Report(len(CONTENT)))


@pytest.fixture
def one_thread(monkeypatch):
    """No signs of life but those that are asked for: time is simulated."""
    monkeypatch.setattr(MemoryBackend, "parallel", 1)


@pytest.mark.parametrize("silent_s", [0, locks.TTL_S / 2, 10 * locks.TTL_S])
def test_a_manifest_that_takes_long_is_committed_where_nobody_came(tmp_path, one_thread, request_, silent_s):
    here = Still()

    def before_put(key: str) -> None:
        here.pass_time(silent_s if "/manifests/" in key else 0)

    repository = reopened(new_repository(tmp_path / "cache"), tmp_path / "cache", before_put=before_put)
    assert str(write(request_, repository, here).id) == NAME
    assert content(repository, NAME)["a"] == CONTENT


def test_a_manifest_that_arrives_after_garbage_collection_was_let_in_is_taken_back(tmp_path, one_thread, request_):
    store = new_repository(tmp_path / "cache")
    here, there = Still(host="here"), Still(host="there")
    collected = []

    def before_put(key: str) -> None:
        if "/manifests/" in key:
            here.pass_time(10 * locks.TTL_S)
            collected.append(gc.collect(reopened(store, tmp_path / "cache-gc"), surroundings=there))

    with pytest.raises(errors.StoreLocked, match=f"the lock of this checkpoint {NAME} was lost") as caught:
        write(request_, reopened(store, tmp_path / "cache", before_put=before_put), here)
    assert caught.value.retryable
    assert [one.removed_packs for one in collected] == [1]
    assert store.checkpoints("w") == ()
    save(store, NAME, {"a": CONTENT}, folder=tmp_path)
    assert content(store, NAME)["a"] == CONTENT
