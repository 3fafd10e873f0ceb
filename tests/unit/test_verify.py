"""Verification: every flipped bit and every truncation of any object is found, and is said with what it costs."""

from __future__ import annotations

import contextlib
import gc
import random
from concurrent.futures import Future

import msgspec
import pytest
from stores import SilentDeletes, Still, new_repository, noise, reopened, save

from perdure import errors
from perdure.model.checkpoint import CheckpointId, LifeEnd
from perdure.store import codec, layout, lives, locks, pins, verify
from perdure.store.backends import contract
from perdure.store.backends.memory import MemoryBackend
from perdure.store.layout import Kind
from perdure.store.lock_records import Kind as LockKind
from perdure.store.locks import Lock

BLOCKS = 4096 * 3
KEY = b"k" * 32


@pytest.fixture(params=[None, KEY], ids=["plain", "encrypted"])
def repository(tmp_path, request):
    """A small store with objects of every kind."""
    repository = new_repository(tmp_path / "cache", key=request.param)
    here = Still()
    first = lives.begin(repository, "w", restored_from=None, surroundings=here)
    save(repository, "w@1.1", {"a": noise(BLOCKS, 1) + b"text" * 3000, "empty": b"", "zeros": bytes(9000)}, folder=tmp_path)
    first.end(LifeEnd(at_ns=0, completed=False, status=None, reason="x"))
    lives.begin(repository, "w", restored_from=CheckpointId("w", 1, 1), surroundings=here)
    save(repository, "w@2.1", {"a": noise(BLOCKS, 1) + noise(BLOCKS, 2)}, folder=tmp_path)
    save(repository, "v@1.1", {"b": noise(5000, 4)}, folder=tmp_path)
    pins.pin(repository, CheckpointId("w", 1, 1), note="", surroundings=here)
    Lock(repository, LockKind.SHARED, purpose="test", surroundings=here).acquire()
    repository.key = request.param
    return repository


def check(repository, **more) -> verify.Verified:
    return verify.verify(repository, threads=2, **more)


def key_of(repository, kind: Kind) -> str:
    return next(info.key for info in repository.backend.list("") if layout.kind_of(info.key) is kind)


def test_nothing_is_wrong_with_a_good_store(repository):
    told = []
    result = check(repository, progress=told.append)
    assert (result.damages, result.unknown, result.lost, result.orphan_packs) == ((), (), (), 0)
    assert [str(one) for one in result.good] == ["v@1.1", "w@1.1", "w@2.1"]
    assert {layout.kind_of(info.key) for info in repository.backend.list("")} == set(Kind)
    assert (told[-1].objects, told[-1].done_bytes) == (result.objects, result.size_bytes)


def damage(stored: bytes, draw: random.Random) -> bytes:
    """Flip one bit, or cut something off."""
    if draw.random() < 0.25:
        return stored[: draw.randrange(len(stored))]
    changed = bytearray(stored)
    changed[draw.randrange(len(stored))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def test_two_thousand_damages_are_all_found(repository, tmp_path):
    """Half in a store with a key file, half in one without: spread over all objects, each as likely as the next."""
    draw = random.Random(20261129)
    objects = {info.key: repository.backend.get(info.key) for info in repository.backend.list("")}
    needs = {pack for one in ("w@1.1", "w@2.1", "v@1.1") for pack in repository.packs_of(CheckpointId.parse(one))}
    for _ in range(1000):
        key = draw.choice(sorted(objects))
        repository.backend.put(key, damage(objects[key], draw))
        result = check(repository)
        assert [one.key for one in result.damages] == [key]
        assert bool(result.lost) == (key in needs or "/manifests/" in key)
        assert set(map(str, result.good)) | set(map(str, result.lost)) == {"w@1.1", "w@2.1", "v@1.1"}
        repository.backend.put(key, objects[key])
    assert check(repository).damages == ()


def test_a_damaged_configuration_does_not_open(repository, tmp_path):
    draw = random.Random(1)
    stored = repository.backend.get(layout.CONFIG)
    repository.backend.put(layout.CONFIG, stored[:-1])
    reopened(repository, tmp_path, key=repository.key)  # only the end of the line is lost
    assert [one.key for one in check(repository).damages] == [layout.CONFIG]
    for _ in range(200):
        changed = damage(stored, draw)
        if changed == stored[:-1]:
            continue
        repository.backend.put(layout.CONFIG, changed)
        with pytest.raises((errors.StoreCorrupt, errors.StoreFormat, errors.StoreKeyWrong)):
            reopened(repository, tmp_path, key=repository.key)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.PACK, Kind.MANIFEST)])
def test_damage_to_what_checkpoints_do_not_need_costs_none_and_says_what_to_do(repository, kind):
    key = key_of(repository, kind)
    repository.backend.put(key, b"?")
    (found,) = check(repository).damages
    assert (found.key, found.kind, found.lost) == (key, kind, ())
    assert found.remedy


def test_two_objects_exchanged_are_both_found(repository):
    one, two = (layout.manifest_key(CheckpointId.parse(name)) for name in ("w@1.1", "w@2.1"))
    first, second = repository.backend.get(one), repository.backend.get(two)
    repository.backend.put(one, second)
    repository.backend.put(two, first)
    assert {damage.key for damage in check(repository).damages} == {one, two}


def test_a_missing_pack_names_the_checkpoints_that_need_it(repository):
    shared = repository.packs_of(CheckpointId("w", 1, 1)) & repository.packs_of(CheckpointId("w", 2, 1))
    key = min(shared)
    repository.backend.delete(key)
    told = []
    result = check(repository, found=told.append)
    assert told == list(result.damages)
    assert (result.damages[0].key, [str(one) for one in result.lost]) == (key, ["w@1.1", "w@2.1"])
    assert "missing" in result.damages[0].message
    assert result.newest_good("w") is None
    assert str(result.newest_good("v")) == "v@1.1"


def test_a_damaged_pack_that_nobody_needs_costs_nothing(repository):
    for checkpoint in repository.checkpoints("v"):
        repository.backend.delete(layout.manifest_key(checkpoint))
    result = check(repository)
    assert result.orphan_packs == 1
    orphan = next(
        info.key
        for info in repository.backend.list(layout.PACKS)
        if info.key not in {pack for one in repository.checkpoints("w") for pack in repository.packs_of(one)}
    )
    repository.backend.put(orphan, b"?")
    (found,) = check(repository).damages
    assert found.lost == ()
    assert "gc" in found.remedy


@pytest.fixture
def newer(monkeypatch):
    """Within this context objects are written in a newer format."""

    @contextlib.contextmanager
    def within():
        with monkeypatch.context() as patch:
            patch.setattr(codec, "VERSION", codec.VERSION + 1)
            yield

    return within


def test_few_of_many_objects_are_on_their_way_at_once(repository):
    for number in range(500):
        repository.backend.put(layout.lock_key(f"{number:032x}"), b"?")
    under_way = []

    def progress(how_far: verify.Progress) -> None:
        nonlocal seen
        seen += 1
        if seen % 50 == 1:  # looking through all of Python's objects takes its time
            under_way.append(sum(type(one) is Future for one in gc.get_objects()))

    seen = 0
    result = check(repository, progress=progress)
    assert seen == result.objects > 500
    assert len(result.damages) == 500
    assert max(under_way) < 100


def test_a_newer_perdures_objects_are_not_called_damaged_and_never_dropped(repository, tmp_path, newer):
    with newer():
        save(repository, "new@1.1", {"a": noise(BLOCKS, 7)}, folder=tmp_path)
        (pack,) = repository.packs_of(CheckpointId("new", 1, 1))
    result = check(repository)
    found = {one.key: one for one in result.damages}
    assert set(found) == {pack, layout.manifest_key(CheckpointId("new", 1, 1))}
    for one in result.damages:
        assert one.newer
        assert "format 2" in one.message
        assert one.remedy == "use the Perdure that wrote it, or a newer one"
    assert result.orphan_packs == 0
    for info in list(repository.backend.list(layout.LOCKS)):
        repository.backend.delete(info.key)
    with locks.exclusive(repository, purpose="verify", surroundings=Still()) as lock:
        assert verify.drop_damaged(repository, result.damages, lock=lock) == ()
        unmarked = [msgspec.structs.replace(one, newer=False) for one in result.damages]
        assert verify.drop_damaged(repository, unmarked, lock=lock) == ()


def test_a_new_checkpoint_shares_nothing_with_a_newer_perdures(repository, tmp_path, newer):
    with newer():
        save(repository, "new@1.1", {"a": noise(BLOCKS, 7)}, folder=tmp_path)
        there = repository.packs_of(CheckpointId("new", 1, 1))
    save(repository, "x@1.1", {"a": noise(BLOCKS, 7)}, folder=tmp_path)
    assert not there & repository.packs_of(CheckpointId("x", 1, 1))


def test_a_damaged_pack_that_was_brought_back_is_not_dropped(repository):
    key = min(repository.packs_of(CheckpointId("v", 1, 1)))
    whole = repository.backend.get(key)
    repository.backend.put(key, b"?")
    result = check(repository)
    repository.backend.put(key, whole)
    for info in list(repository.backend.list(layout.LOCKS)):
        repository.backend.delete(info.key)
    with locks.exclusive(repository, purpose="verify", surroundings=Still()) as lock:
        assert verify.drop_damaged(repository, result.damages, lock=lock) == ()
    assert check(repository).damages == ()


def test_what_is_not_ours_is_not_read(repository):
    repository.backend.put("lost+found.txt".replace("+", "-"), b"?")
    repository.backend.put("packs/zz/what", b"?")
    result = check(repository)
    assert result.damages == ()
    assert sorted(result.unknown) == ["lost-found.txt", "packs/zz/what"]


def test_what_goes_while_it_looks_is_no_damage(repository):
    gone = [key_of(repository, Kind.LOCK), key_of(repository, Kind.PIN), layout.lease_key("w", 1)]

    def progress(how_far: verify.Progress) -> None:
        for key in gone:
            repository.backend.delete(key)

    assert check(repository, progress=progress).damages == ()


def test_dropping_damaged_packs_needs_the_lock(repository):
    key = min(repository.packs_of(CheckpointId("v", 1, 1)))
    repository.backend.put(key, b"?")
    for info in list(repository.backend.list(layout.LOCKS)):
        repository.backend.delete(info.key)
    here = Still()
    lock = Lock(repository, LockKind.EXCLUSIVE, purpose="verify", surroundings=here)
    lock.acquire()
    result = check(repository)
    here.pass_time(1000)
    Lock(repository, LockKind.SHARED, purpose="test", surroundings=Still(host="there")).acquire()
    with pytest.raises(errors.StoreLocked):
        verify.drop_damaged(repository, result.damages, lock=lock)
    assert repository.backend.size(key) == 1


def test_no_damaged_pack_is_deleted_after_the_lock_ran_out(repository, monkeypatch, tmp_path):
    monkeypatch.setattr(MemoryBackend, "parallel", 1)
    key = min(repository.packs_of(CheckpointId("v", 1, 1)))
    repository.backend.put(key, b"?")
    result = check(repository)
    for info in list(repository.backend.list(layout.LOCKS)):
        repository.backend.delete(info.key)
    here = Still()
    silent = SilentDeletes(repository.backend, here, times=5)
    again = reopened(repository, tmp_path / "cache-again", backend=silent.patient(), key=KEY if repository.encrypted else None)
    with locks.exclusive(again, purpose="verify", surroundings=here) as lock:
        assert verify.drop_damaged(again, result.damages, lock=lock) == (key,)
    assert len(silent.began_s) == 6
    assert max(silent.began_s) + contract.DELETE_S <= locks.TTL_S
