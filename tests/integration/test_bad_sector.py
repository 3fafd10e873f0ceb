"""A disk that cannot read one object of a store: what needs it is lost, and nothing else stops. A lock that goes while it is read."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from stores import Still, content, new_repository, noise, reopened, save, spoil

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import gc, layout, locks, prune, verify
from perdure.store.backends.local import LocalBackend
from perdure.store.repository import Repository
from perdure.store.retention import Rules
from perdure.supervisor import resume
from perdure.supervisor.voice import Voice

BLOCKS = 4096 * 40
OLDEST, SHARED, NEWEST = (CheckpointId("w", 1, number) for number in (1, 2, 3))


@pytest.fixture
def repository(tmp_path) -> Repository:
    """Three checkpoints; the last two share a pack that the first does not need."""
    made = new_repository(tmp_path / "cache", backend=LocalBackend(tmp_path / "store"))
    for number, files in enumerate(({"a": noise(BLOCKS, 1)}, {"b": noise(BLOCKS, 2)}, {"b": noise(2 * BLOCKS, 2)}), start=1):
        save(made, f"w@1.{number}", files, folder=tmp_path)
    return made


def shared_pack(repository: Repository) -> str:
    (key,) = repository.packs_of(SHARED) & repository.packs_of(NEWEST)
    return key


def bad_sector(monkeypatch, tmp_path: Path, key: str) -> None:
    spoil(monkeypatch, tmp_path / "store" / key, errno.EIO)


def newest_that_can_be_used(repository: Repository, folder: Path) -> CheckpointId | None:
    """Take out what a resume would go on from."""
    voice = Voice(quiet=True, as_json=False)
    for checkpoint in (NEWEST, SHARED, OLDEST):
        manifest = resume.head(repository, checkpoint, voice)
        if manifest is None:
            continue
        (folder / str(checkpoint)).mkdir()
        try:
            resume.take_out(repository, manifest, folder / str(checkpoint), voice, besides=(), reached=lambda _done: None)
        except errors.CheckpointDamaged:
            continue
        return checkpoint
    return None


def test_a_pack_that_cannot_be_read_costs_the_checkpoints_that_need_it(repository, tmp_path, monkeypatch):
    bad_sector(monkeypatch, tmp_path, shared_pack(repository))
    result = verify.verify(repository, threads=2)
    assert [(one.key, one.lost) for one in result.damages] == [(shared_pack(repository), (SHARED, NEWEST))]
    assert "Input/output error" in result.damages[0].message
    assert result.good == (OLDEST,)
    assert newest_that_can_be_used(repository, tmp_path) == OLDEST


def test_a_new_checkpoint_does_without_a_pack_that_cannot_be_read(repository, tmp_path, monkeypatch):
    key = shared_pack(repository)
    bad_sector(monkeypatch, tmp_path, key)
    for number, cache in enumerate(("cache", "empty"), start=4):
        again = reopened(repository, tmp_path / cache)
        save(again, f"w@1.{number}", {"b": noise(BLOCKS, 2)}, folder=tmp_path)
        assert key not in again.packs_of(CheckpointId("w", 1, number))
        assert content(again, f"w@1.{number}") == {"b": noise(BLOCKS, 2)}


def test_a_manifest_that_cannot_be_read_costs_its_checkpoint(repository, tmp_path, monkeypatch):
    key = layout.manifest_key(NEWEST)
    head = repository.head(NEWEST)
    bad_sector(monkeypatch, tmp_path, key)
    result = verify.verify(repository, threads=2)
    assert [(one.key, one.lost) for one in result.damages] == [(key, (NEWEST,))]
    assert newest_that_can_be_used(repository, tmp_path) == SHARED
    with pytest.raises(errors.StoreCorrupt, match=r"w@1\.3") as caught:
        gc.survey(repository)
    assert caught.value.object_key == key
    with repository.writer(previous=head, progress=lambda _done: None):
        pass
    planned = prune.plan(repository, Rules(damaged=True), surroundings=Still())
    assert planned.removed == planned.damaged == (NEWEST,)
    prune.apply(repository, planned, surroundings=Still())
    gc.survey(repository)


def test_a_lock_that_goes_while_it_is_read_is_in_nobodys_way(repository, tmp_path, monkeypatch):
    left = locks.Lock(repository, locks.Kind.SHARED, purpose="test", surroundings=Still(host="there"))
    left.acquire()
    (key,) = (info.key for info in repository.backend.list(layout.LOCKS))
    spoil(monkeypatch, tmp_path / "store" / key, errno.ESTALE, times=1, failing=left.release)
    here = Still()
    with locks.exclusive(repository, purpose="gc", surroundings=here):
        assert here.paused_s == 0


def test_a_lock_that_cannot_be_read_is_given_up_after_a_while(repository, tmp_path, monkeypatch):
    left = locks.Lock(repository, locks.Kind.SHARED, purpose="test", surroundings=Still(host="there"))
    left.acquire()
    (key,) = (info.key for info in repository.backend.list(layout.LOCKS))
    bad_sector(monkeypatch, tmp_path, key)
    with locks.exclusive(repository, purpose="gc", surroundings=Still()):
        assert key not in [info.key for info in repository.backend.list(layout.LOCKS)]
