"""Garbage collection and pruning: what goes, what never goes, a crash at every call, and a checkpoint that is written meanwhile."""

from __future__ import annotations

import threading

import pytest
from stores import Crashed, Crashing, SilentDeletes, Still, content, new_repository, noise, reopened, save

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import gc, layout, lives, locks, pins, prune
from perdure.store.backends import contract
from perdure.store.backends.memory import MemoryBackend
from perdure.store.backends.wrapping import WrappingBackend
from perdure.store.lock_records import Kind
from perdure.store.locks import Lock
from perdure.store.owners import Linux
from perdure.store.retention import Rules

BLOCKS = 4096 * 40


@pytest.fixture
def repository(tmp_path):
    """Three checkpoints of one workload, the first two alike in half their content, and one of another workload."""
    repository = new_repository(tmp_path / "cache")
    fill(repository, tmp_path)
    return repository


def fill(repository, folder) -> None:
    shared = noise(BLOCKS, 0)
    save(repository, "w@1.1", {"a": shared + noise(BLOCKS, 1)}, folder=folder)
    save(repository, "w@1.2", {"a": shared + noise(BLOCKS, 2)}, folder=folder)
    save(repository, "w@2.1", {"a": noise(BLOCKS, 3)}, folder=folder)
    save(repository, "v@1.1", {"b": noise(BLOCKS, 4), "empty": b""}, folder=folder)


def packs(repository) -> set[str]:
    return {info.key for info in repository.backend.list(layout.PACKS)}


def state(repository) -> dict[str, int]:
    return {info.key: info.size_bytes for info in repository.backend.list("")}


def needed(repository) -> set[str]:
    every = [one for name in repository.workloads() for one in repository.checkpoints(name)]
    return set().union(*(repository.packs_of(one) for one in every))


def collect(repository, here=None, **more) -> gc.Collected:
    return gc.collect(repository, surroundings=here or Still(), **more)


def remove(repository, *names: str) -> None:
    for name in names:
        prune.remove(repository, CheckpointId.parse(name))


def test_without_garbage_nothing_goes(repository):
    before = state(repository)
    result = collect(repository)
    assert (result.removed_packs, result.freed_bytes, result.missing_packs) == (0, 0, 0)
    assert state(repository) == before


def test_what_no_manifest_names_goes_and_all_others_can_be_read(repository):
    before = packs(repository)
    remove(repository, "w@1.1", "w@2.1")
    planned = gc.survey(repository)
    sizes = state(repository)
    assert packs(repository) == before
    told = []
    result = collect(repository, progress=lambda done, every: told.append((done, every)))
    assert result == planned
    assert packs(repository) == needed(repository) < before
    assert result.freed_bytes == sum(sizes[key] for key in before - packs(repository)) > 0
    assert told[-1] == (result.removed_packs, result.removed_packs)
    assert content(repository, "w@1.2")["a"] == noise(BLOCKS, 0) + noise(BLOCKS, 2)
    assert content(repository, "v@1.1") == {"b": noise(BLOCKS, 4), "empty": b""}


def test_a_checkpoint_after_it_does_not_share_what_is_gone(repository, tmp_path):
    """Also where another machine's index still knows the packs."""
    elsewhere = reopened(repository, tmp_path / "elsewhere")
    save(elsewhere, "u@1.1", {"x": noise(4096, 9)}, folder=tmp_path)  # fills its index
    remove(repository, "w@1.1", "w@1.2")
    assert collect(repository).removed_packs > 0
    save(elsewhere, "w@3.1", {"a": noise(BLOCKS, 0) + noise(BLOCKS, 1)}, folder=tmp_path)
    assert content(repository, "w@3.1")["a"] == noise(BLOCKS, 0) + noise(BLOCKS, 1)
    assert needed(repository) <= packs(repository)


@pytest.mark.parametrize("change", [lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b[:100], lambda _: b""])
def test_nothing_goes_while_a_manifest_cannot_be_read(repository, change):
    remove(repository, "w@1.1")
    key = layout.manifest_key(CheckpointId("v", 1, 1))
    repository.backend.put(key, change(repository.backend.get(key)))
    before = packs(repository)
    with pytest.raises(errors.StoreCorrupt, match=r"v@1\.1") as caught:
        collect(repository)
    assert caught.value.object_key == key
    assert "prune --damaged" in caught.value.hint
    assert packs(repository) == before
    assert list(repository.backend.list(layout.LOCKS)) == []
    planned = prune.plan(repository, Rules(damaged=True), surroundings=Still())
    assert [str(one) for one in prune.apply(repository, planned, surroundings=Still())] == ["v@1.1"]
    assert collect(repository).removed_packs == 1  # the other one is shared


def test_something_else_among_the_manifests_stops_it(repository):
    repository.backend.put("workloads/w/manifests/what-is-this", b"?")
    with pytest.raises(errors.StoreCorrupt, match="what-is-this"):
        collect(repository)


def test_a_workload_may_be_called_as_a_folder_of_the_store(repository, tmp_path):
    for name in ("manifests", "packs", "locks"):
        lives.begin(repository, name, restored_from=None, surroundings=Still())
        save(repository, f"{name}@1.1", {"a": noise(BLOCKS, 5)}, folder=tmp_path)
    remove(repository, "w@2.1", "manifests@1.1")
    assert collect(repository).removed_packs == 1
    assert packs(repository) == needed(repository)


def test_it_waits_for_a_checkpoint_and_says_for_whom(repository):
    lock = Lock(repository, Kind.SHARED, purpose="checkpoint w@3.1", surroundings=Still(pid=7))
    lock.acquire()
    with pytest.raises(errors.StoreLocked, match=r"process 7 on here \(checkpoint w@3.1\)"):
        collect(repository, Still(pid=8, alive={7}), wait_s=0)
    told = []
    here = Still(pid=8, alive={7}, on_pause=lock.release)
    collect(repository, here, waiting=lambda owner, _s: told.append(owner.pid))
    assert told == [7]


def test_it_stops_when_its_lock_is_lost(repository, monkeypatch):
    monkeypatch.setattr(gc, "BATCH", 1)
    remove(repository, "w@1.1", "w@1.2", "w@2.1")
    here = Still()
    before = len(packs(repository))

    def stand_still(_done: int, _all: int) -> None:
        here.pass_time(10 * locks.TTL_S)
        Lock(repository, Kind.SHARED, purpose="test", surroundings=Still(host="there")).acquire()

    with pytest.raises(errors.StoreLocked, match="was lost"):
        collect(repository, here, progress=stand_still)
    assert len(packs(repository)) == before - 1


def test_a_manifest_that_came_in_spite_of_the_lock_keeps_its_packs(repository, monkeypatch, tmp_path):
    monkeypatch.setattr(gc, "BATCH", 1)
    gone = content(repository, "w@1.1")
    manifest = repository.backend.get(layout.manifest_key(CheckpointId("w", 1, 1)))
    remove(repository, "w@1.1", "w@1.2", "w@2.1")
    kept = []

    def again(done: int, _all: int) -> None:
        if done == 1:
            repository.backend.put(layout.manifest_key(CheckpointId("w", 1, 1)), manifest)
            kept.extend(needed(repository) & packs(repository))

    collect(repository, progress=again)
    assert set(kept) <= packs(repository)
    assert gone  # it may have lost the pack that was deleted before: verify tells


@pytest.fixture
def one_thread(monkeypatch):
    """No signs of life but those that are asked for: time is simulated."""
    monkeypatch.setattr(MemoryBackend, "parallel", 1)


def test_no_try_to_delete_a_pack_may_end_after_the_lock(repository, one_thread, tmp_path):
    """Somebody let in then might build on the pack, as its index knows it."""
    remove(repository, "w@2.1", "v@1.1")
    here = Still()
    silent = SilentDeletes(repository.backend, here, times=5)
    result = collect(reopened(repository, tmp_path / "cache-gc", backend=silent.patient()), here)
    assert result.removed_packs == 2
    assert packs(repository) == needed(repository)
    assert silent.began_s
    assert max(silent.began_s) + contract.DELETE_S <= locks.TTL_S


def test_a_store_that_deletes_nothing_is_given_up(repository, one_thread, tmp_path):
    remove(repository, "w@2.1")
    here = Still()
    silent = SilentDeletes(repository.backend, here, times=1000)
    with pytest.raises(errors.StoreUnavailable):
        collect(reopened(repository, tmp_path / "cache-gc", backend=silent.patient()), here)
    assert needed(repository) < packs(repository)


def test_a_delete_that_hung_until_others_were_let_in_is_told(repository, one_thread, tmp_path):
    """A file system that never gives up, as a hard mount of NFS, says nothing until it is done."""
    remove(repository, "w@2.1")
    here, there = Still(host="here"), Still(host="there")

    class Hanging(WrappingBackend):
        def delete(self, key: str, **more: bool) -> None:
            if key.startswith(layout.PACKS):
                here.pass_time(10 * locks.TTL_S)
                with locks.shared(repository, purpose="test", surroundings=there):
                    save(repository, "x@1.1", {"a": noise(BLOCKS, 3)}, folder=tmp_path)
            self.inner.delete(key, **more)

    with pytest.raises(errors.StoreCorrupt, match=r"1 pack that this collection deleted, .* came into use meanwhile") as caught:
        collect(reopened(repository, tmp_path / "cache-gc", backend=Hanging(repository.backend)), here)
    assert "perdure store verify" in caught.value.hint
    assert caught.value.object_key in needed(repository) - packs(repository)


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_every_call_and_the_next_run_ends_the_same(tmp_path, monkeypatch, after):
    monkeypatch.setattr(gc, "BATCH", 2)
    original = new_repository(tmp_path / "cache")
    fill(original, tmp_path)
    remove(original, "w@1.1", "w@2.1")
    objects = {info.key: original.backend.get(info.key) for info in original.backend.list("")}

    def copy() -> MemoryBackend:
        backend = MemoryBackend()
        backend.create()
        for key, stored in objects.items():
            backend.put(key, stored)
        return backend

    whole = reopened(original, tmp_path / "cache", backend=copy())
    collect(whole)
    expected = state(whole)
    at = 1
    while True:
        backend = copy()
        crashing = Crashing(backend, at, after=after)
        try:
            collect(reopened(original, tmp_path / "cache", backend=crashing), Still(pid=1))
        except Crashed:
            pass
        else:
            break
        again = reopened(original, tmp_path / "cache", backend=backend)
        assert needed(again) <= packs(again)
        collect(again, Still(pid=2, alive=set()))
        assert state(again) == expected
        at += 1
    assert at > 10


def test_checkpoints_beside_collections(tmp_path):
    """Threads write and remove checkpoints while others collect; afterwards every checkpoint can be read."""
    repository = new_repository(tmp_path / "cache")
    ended = threading.Event()
    faults: list[BaseException] = []

    def write(name: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        own = reopened(repository, tmp_path / f"cache-{name}")
        try:
            for number in range(1, 9):
                with locks.shared(own, purpose=name, surroundings=Linux()) as lock:
                    blocks = noise(BLOCKS, number // 3) + noise(BLOCKS, number * 10)
                    save(own, f"{name}@1.{number}", {"a": blocks}, folder=folder)
                    lock.require()
                planned = prune.plan(own, Rules(keep_last=2), workloads=[name], surroundings=Linux())
                prune.apply(own, planned, surroundings=Linux())
        except BaseException as error:  # noqa: BLE001 - told by the test
            faults.append(error)

    def gather() -> None:
        own = reopened(repository, tmp_path / "cache-gc")
        try:
            while not ended.wait(0.2):
                gc.collect(own, surroundings=Linux())
        except BaseException as error:  # noqa: BLE001 - told by the test
            faults.append(error)

    writers = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    gatherer = threading.Thread(target=gather)
    for thread in (*writers, gatherer):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    gatherer.join()
    assert faults == []
    collect(repository)
    assert packs(repository) == needed(repository)
    for name in ("a", "b"):
        assert [one.sequence for one in repository.checkpoints(name)] == [7, 8]
        assert content(repository, f"{name}@1.8")["a"] == noise(BLOCKS, 2) + noise(BLOCKS, 80)
        assert content(repository, f"{name}@1.7")["a"] == noise(BLOCKS, 2) + noise(BLOCKS, 70)


def test_prune_removes_by_rules_but_not_what_is_pinned_or_used(repository):
    here = Still()
    pins.pin(repository, CheckpointId("w", 1, 1), note="", surroundings=here)
    Lock(repository, Kind.SHARED, purpose="restore", surroundings=here, using=[CheckpointId("w", 1, 2)]).acquire()
    rules = Rules(keep_last=1)
    planned = prune.plan(repository, rules, surroundings=here)
    assert planned.removed == ()
    pins.unpin(repository, CheckpointId("w", 1, 1))
    planned = prune.plan(repository, rules, surroundings=here)
    assert [str(one) for one in planned.removed] == ["w@1.1"]
    pins.pin(repository, CheckpointId("w", 1, 1), note="", surroundings=here)
    assert prune.apply(repository, planned, surroundings=here) == ()
    assert len(repository.checkpoints("w")) == 3


def test_prune_to_a_size_counts_all_workloads_and_removes_of_the_chosen(repository):
    here = Still()
    everything = prune.plan(repository, Rules(max_bytes=10**9), surroundings=here)
    assert everything.kept_bytes == sum(state(repository)[key] for key in packs(repository))
    planned = prune.plan(repository, Rules(max_bytes=0), workloads=["w"], surroundings=here)
    assert [str(one) for one in planned.removed] == ["w@1.1", "w@1.2"]
    assert {one.id.workload for one in planned.decisions} == {"w"}
    assert prune.apply(repository, planned, surroundings=here) == planned.removed
    assert planned.kept_bytes == sum(state(repository)[key] for key in needed(repository))


def test_a_checkpoint_with_a_missing_pack_is_not_the_last_good_one(repository):
    only = repository.packs_of(CheckpointId("w", 2, 1)) - repository.packs_of(CheckpointId("w", 1, 2))
    repository.backend.delete(next(iter(only)))
    planned = prune.plan(repository, Rules(keep_last=1), workloads=["w"], surroundings=Still())
    assert [str(one) for one in planned.damaged] == ["w@2.1"]
    assert [str(one) for one in planned.removed] == ["w@1.1"]


class Listed:
    """A backend that lets `change` alter what it lists of the packs."""

    def __init__(self, backend, change) -> None:
        self._backend = backend
        self._change = change
        self.calls: list[str] = []

    def __getattr__(self, name: str):
        found = getattr(self._backend, name)
        if not callable(found):
            return found

        def call(key: str = "", *arguments, **more):
            self.calls.append(f"{name} {key}")
            done = found(key, *arguments, **more)
            return iter(self._change(list(done))) if (name, key) == ("list", layout.PACKS) else done

        return call


def listed(repository, folder, change=lambda infos: infos):
    """Open the store again, as one whose packs are listed as `change` says; returns it and what was called."""
    backend = Listed(repository.backend, change)
    again = reopened(repository, folder / "cache-listed", backend=backend)
    backend.calls.clear()
    return again, backend.calls


def damaged_go(repository):
    planned = prune.plan(repository, Rules(damaged=True), surroundings=Still())
    return planned, prune.apply(repository, planned, surroundings=Still())


def test_a_checkpoint_that_is_committed_while_packs_are_listed_is_not_damaged(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(prune, "ASKED_BY_NAME", 0)

    def save_another(infos):
        if CheckpointId("w", 3, 1) not in repository.checkpoints("w"):
            save(repository, "w@3.1", {"a": noise(BLOCKS, 7)}, folder=tmp_path)
        return infos

    again, _ = listed(repository, tmp_path, save_another)
    planned, removed = damaged_go(again)
    assert planned.damaged == removed == ()
    assert content(repository, "w@3.1") == {"a": noise(BLOCKS, 7)}


def test_a_pack_that_is_listed_late_is_not_missing(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(prune, "ASKED_BY_NAME", 0)
    again, called = listed(repository, tmp_path, lambda infos: infos[:1])
    planned, removed = damaged_go(again)
    assert f"list {layout.PACKS}" in called
    assert planned.damaged == removed == ()
    assert planned.kept_bytes == sum(state(repository)[key] for key in packs(repository))


def test_a_damaged_checkpoint_that_was_brought_back_since_stays(repository):
    one, other = CheckpointId("w", 2, 1), CheckpointId("v", 1, 1)
    key, manifest = next(iter(repository.packs_of(one))), layout.manifest_key(other)
    pack, whole = repository.backend.get(key), repository.backend.get(manifest)
    repository.backend.delete(key)
    repository.backend.put(manifest, whole[:100])
    planned = prune.plan(repository, Rules(damaged=True), surroundings=Still())
    assert set(planned.removed) == {one, other}
    repository.backend.put(key, pack)
    assert prune.apply(repository, planned, surroundings=Still()) == (other,)
    repository.backend.put(manifest, whole)
    assert prune.apply(repository, planned, surroundings=Still()) == ()
    assert content(repository, "w@2.1") == {"a": noise(BLOCKS, 3)}


def test_after_a_commit_packs_are_asked_for_only_where_something_goes_and_never_listed(repository, tmp_path):
    again, called = listed(repository, tmp_path)
    named = repository.packs_of(CheckpointId("w", 1, 1)) | repository.packs_of(CheckpointId("w", 1, 2))
    others = repository.packs_of(CheckpointId("v", 1, 1))
    assert prune.keep_last(again, "w", 3, surroundings=Still()) == ()
    assert not any(layout.PACKS in call for call in called)
    assert [str(one) for one in prune.keep_last(again, "w", 2, surroundings=Still())] == ["w@1.1"]
    assert f"list {layout.PACKS}" not in called
    assert {f"size {key}" for key in named} <= set(called)
    assert {f"size {key}" for key in others}.isdisjoint(called)


def test_after_a_commit_one_with_a_missing_pack_counts_for_nothing_and_stays(repository):
    repository.backend.delete(next(iter(repository.packs_of(CheckpointId("w", 2, 1)))))
    assert prune.keep_last(repository, "w", 2, surroundings=Still()) == ()
    assert [str(one) for one in prune.keep_last(repository, "w", 1, surroundings=Still())] == ["w@1.1"]
    assert [str(one) for one in repository.checkpoints("w")] == ["w@1.2", "w@2.1"]


def test_only_what_is_there_can_be_pinned(repository):
    with pytest.raises(errors.WorkloadMissing):
        pins.pin(repository, CheckpointId("w", 9, 9), note="", surroundings=Still())
    assert pins.pinned(repository, "w") == frozenset()
