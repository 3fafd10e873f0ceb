"""One checkpoint in one file: round trips between stores, and files that were damaged, forged or made to harm."""

from __future__ import annotations

import io
import os
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import Crashed, Crashing, Still, content, describe, new_repository, noise, reopened, save

from perdure import errors
from perdure.model.checkpoint import CheckpointId, LifeEnd, Part, StoredFile
from perdure.store import gc, layout, lives, locks, transfer, transfer_format
from perdure.store.backends.memory import MemoryBackend
from perdure.store.transfer_format import PIECE_BYTES

KEY = b"k" * 32
FILES = {
    "images/core-1.img": noise(5000, 1),
    "images/pages-1.img": noise(PIECE_BYTES + 4096 * 3, 2) + bytes(PIECE_BYTES * 2) + b"text" * 1000,
    "files/empty": b"",
}
ID = CheckpointId("w", 3, 2)


@pytest.fixture
def here(tmp_path):
    repository = new_repository(tmp_path / "cache")
    save(repository, "w@3.2", FILES, folder=tmp_path)
    return repository


@pytest.fixture
def there(tmp_path):
    return new_repository(tmp_path / "other-cache", key=b"o" * 40)


def export(repository, output, key=KEY, **more):
    return transfer.export(
        repository, ID, output, key_file=key, surroundings=Still(), random=os.urandom, progress=more.get("progress", lambda _done: None)
    )


def bring(repository, source, tmp_path, keys=(KEY,), trusted=False, here=None, progress=lambda _done: None):
    return transfer.import_(
        repository,
        source,
        key_files=keys,
        trusted=trusted,
        scratch=tmp_path,
        surroundings=here or Still(),
        progress=progress,
    )


@pytest.mark.parametrize(("key", "keys", "trusted"), [(KEY, (b"x" * 32, KEY), False), (None, (), True)])
def test_there_and_the_same(here, there, tmp_path, key, keys, trusted):
    told = []
    manifest = export(here, tmp_path / "w.perdure", key, progress=told.append)
    assert told[-1] == sum(map(len, FILES.values()))
    imported = bring(there, tmp_path / "w.perdure", tmp_path, keys, trusted)
    assert imported.is_new
    assert content(there, "w@3.2") == FILES
    plain = msgspec.structs.replace(imported.manifest, sizes=())
    assert plain == msgspec.structs.replace(manifest, sizes=())
    assert there.head(ID) == imported.manifest
    size_bytes = (tmp_path / "w.perdure").stat().st_size
    assert PIECE_BYTES < size_bytes < PIECE_BYTES * 1.1  # zeros and text take next to nothing
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_one_whose_manifest_arrives_after_garbage_collection_was_let_in_is_not_imported(here, there, tmp_path, monkeypatch):
    monkeypatch.setattr(MemoryBackend, "parallel", 1)
    export(here, tmp_path / "w.perdure")
    importing = Still(host="a")

    def before_put(key: str) -> None:
        if "/manifests/" in key:
            importing.pass_time(10 * locks.TTL_S)
            assert gc.collect(reopened(there, tmp_path / "cache-gc", key=b"o" * 40), surroundings=Still(host="b")).removed_packs

    watched = reopened(there, tmp_path / "cache-in", before_put=before_put, key=b"o" * 40)
    with pytest.raises(errors.StoreLocked, match="was lost"):
        bring(watched, tmp_path / "w.perdure", tmp_path, here=importing)
    assert there.checkpoints("w") == ()


def test_names_and_arguments_that_are_no_text_come_through(there, tmp_path):
    command, name = ("cat", "caf\udce9.txt"), "files/caf\udce9.txt"
    repository = new_repository(tmp_path / "cache")
    save(repository, "w@3.2", {name: noise(5000, 1)}, folder=tmp_path, command=command)
    export(repository, tmp_path / "w.perdure")
    assert bring(there, tmp_path / "w.perdure", tmp_path).manifest.command == command
    assert content(there, "w@3.2") == {name: noise(5000, 1)}


def test_again_is_nothing_new_and_another_one_is_refused(here, there, tmp_path):
    export(here, tmp_path / "w.perdure")
    bring(there, tmp_path / "w.perdure", tmp_path)
    before = {info.key for info in there.backend.list("")}
    assert not bring(there, tmp_path / "w.perdure", tmp_path).is_new
    assert {info.key for info in there.backend.list("")} == before
    third = new_repository(tmp_path / "third")
    save(third, "w@3.2", FILES, folder=tmp_path, reason="another one")
    with pytest.raises(errors.ObjectExists, match="another one"):
        bring(third, tmp_path / "w.perdure", tmp_path)


def test_lives_are_counted_on_from_the_imported_one(here, there, tmp_path):
    export(here, tmp_path / "w.perdure")
    bring(there, tmp_path / "w.perdure", tmp_path)
    past = lives.latest(there, "w")
    assert (past.epoch, past.end.completed) == (3, False)
    assert "imported" in past.end.reason
    held = lives.begin(there, "w", restored_from=ID, surroundings=Still())
    assert held.life.epoch == 4
    held.renew()


def test_a_workload_that_completed_here_before_goes_on_from_what_was_imported(here, there, tmp_path):
    lives.begin(there, "w", restored_from=None, surroundings=Still()).end(LifeEnd(at_ns=0, completed=True, status=0, reason="done"))
    export(here, tmp_path / "w.perdure")
    bring(there, tmp_path / "w.perdure", tmp_path)
    assert not lives.latest(there, "w").end.completed
    assert lives.begin(there, "w", restored_from=ID, surroundings=Still()).life.epoch == 4


def test_nothing_is_mixed_into_a_workload_that_runs(here, there, tmp_path):
    export(here, tmp_path / "w.perdure")
    held = lives.begin(there, "w", restored_from=None, surroundings=Still(pid=7))
    with pytest.raises(errors.WorkloadBusy, match="process 7 on here"):
        bring(there, tmp_path / "w.perdure", tmp_path, here=Still(pid=8, alive={7}))
    held.renew()
    assert there.checkpoints("w") == ()


@pytest.mark.parametrize("moment", ["while the file is read", "while its life is recorded"])
def test_a_workload_that_is_started_meanwhile_goes_on_and_the_import_is_refused(here, there, tmp_path, moment):
    export(here, tmp_path / "w.perdure")
    held = []

    def start(_done: object) -> None:
        if not held:
            held.append(lives.begin(there, "w", restored_from=None, surroundings=Still(host="elsewhere", pid=7)))

    def record(key: str) -> None:
        if key == layout.end_key("w", ID.epoch):
            start(key)

    own = reopened(there, tmp_path / "own", before_put=record, key=b"o" * 40)
    with pytest.raises(errors.WorkloadBusy, match="process 7 on elsewhere"):
        bring(own, tmp_path / "w.perdure", tmp_path, progress=start if moment.endswith("read") else lambda _done: None)
    assert there.checkpoints("w") == ()
    held[0].renew()
    assert lives.latest(there, "w").epoch == 1
    held[0].end(LifeEnd(at_ns=0, completed=True, status=0, reason="done"))
    bring(there, tmp_path / "w.perdure", tmp_path)
    past = lives.latest(there, "w")
    assert (past.epoch, past.end.completed) == (ID.epoch, False)
    assert lives.begin(there, "w", restored_from=ID, surroundings=Still()).life.epoch == ID.epoch + 1


def test_a_life_that_begins_meanwhile_with_the_epoch_of_the_imported_one_is_not_ended(here, there, tmp_path):
    export(here, tmp_path / "w.perdure")
    for _ in range(1, ID.epoch):
        lives.begin(there, "w", restored_from=None, surroundings=Still()).end(LifeEnd(at_ns=0, completed=False, status=1, reason="failed"))
    held = []

    def record(key: str) -> None:
        if key == layout.end_key("w", ID.epoch) and not held:
            held.append(lives.begin(there, "w", restored_from=None, surroundings=Still(host="elsewhere", pid=7)))

    own = reopened(there, tmp_path / "own", before_put=record, key=b"o" * 40)
    with pytest.raises(errors.WorkloadBusy, match="elsewhere"):
        bring(own, tmp_path / "w.perdure", tmp_path)
    held[0].renew()
    assert lives.alive(there, "w", Still()).epoch == held[0].life.epoch == ID.epoch
    assert there.checkpoints("w") == ()


def test_keys_and_trust(here, there, tmp_path):
    export(here, tmp_path / "sealed")
    export(here, tmp_path / "plain", None)
    for keys, trusted, message in [((), True, "with a key file"), ((b"x" * 32,), True, "not with this one")]:
        with pytest.raises(errors.StoreKeyWrong, match=message):
            bring(there, tmp_path / "sealed", tmp_path, keys, trusted)
    with pytest.raises(errors.UsageError, match="without a key file") as caught:
        bring(there, tmp_path / "plain", tmp_path, (KEY,))
    assert "--trust" in caught.value.hint
    assert there.workloads() == ()


def test_a_full_disk_or_an_absent_folder_leaves_nothing(here, tmp_path):
    with pytest.raises(errors.OutputError):
        export(here, tmp_path / "absent" / "w.perdure")

    def fail(_done: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(errors.OutputError):
        export(here, tmp_path / "w.perdure", progress=fail)
    assert [path.name for path in tmp_path.iterdir() if "perdure" in path.name] == []


def test_damage_in_the_store_is_not_exported(here, tmp_path):
    key = min(here.packs_of(ID))
    stored = bytearray(here.backend.get(key))
    stored[100] ^= 1
    here.backend.put(key, bytes(stored))
    with pytest.raises(errors.StoreCorrupt) as caught:
        export(here, tmp_path / "w.perdure")
    assert caught.value.object_key == key
    assert not (tmp_path / "w.perdure").exists()


def test_a_crash_before_the_end_shows_nothing(here, there, tmp_path):
    export(here, tmp_path / "w.perdure")
    whole = (tmp_path / "w.perdure").read_bytes()
    (tmp_path / "short").write_bytes(whole[:-1])
    with pytest.raises(errors.InputFormat, match="cut short"):
        bring(there, tmp_path / "short", tmp_path)
    assert there.checkpoints("w") == ()
    assert lives.latest(there, "w") is None


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_every_call_leaves_all_or_nothing_and_can_be_tried_again(small, tmp_path, after):
    at = 1
    while True:
        repository = new_repository(tmp_path / "cache")
        crashing = Crashing(repository.backend, at, after=after)
        try:
            bring(reopened(repository, tmp_path / "own", backend=crashing), small / "sealed", tmp_path, here=Still(pid=7))
        except Crashed:
            pass
        else:
            break
        assert lives.alive(repository, "w", Still(pid=8)) is None
        if repository.checkpoints("w"):
            assert content(repository, "w@3.2") == SMALL
        bring(repository, small / "sealed", tmp_path, here=Still(pid=8))
        assert content(repository, "w@3.2") == SMALL
        assert lives.latest(repository, "w").epoch == 3
        at += 1
    assert at > 8
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".perdure-")]


SMALL = {"a": noise(3000, 1), "b": b"text" * 100}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small exported file, sealed with a key and without one."""
    folder = tmp_path_factory.mktemp("small")
    repository = new_repository(folder / "cache")
    save(repository, "w@3.2", SMALL, folder=folder)
    export(repository, folder / "sealed")
    export(repository, folder / "plain", None)
    return folder


@pytest.mark.parametrize("name", ["sealed", "plain"])
def test_every_flip_and_every_cut_is_refused(small, tmp_path, name):
    whole = (small / name).read_bytes()
    draw = random.Random(3)
    repository = new_repository(tmp_path / "cache")
    for number in range(200):
        changed = bytearray(whole)
        if number % 4:
            changed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        else:
            changed = changed[: draw.randrange(len(whole))]
        (tmp_path / "x").write_bytes(changed)
        with pytest.raises((errors.InputFormat, errors.StoreFormat, errors.StoreKeyWrong, errors.UsageError)):
            bring(repository, tmp_path / "x", tmp_path, trusted=True)
        assert repository.checkpoints("w") == ()
    (tmp_path / "x").write_bytes(whole + b"!")
    with pytest.raises(errors.InputFormat):
        bring(repository, tmp_path / "x", tmp_path, trusted=True)
    (tmp_path / "x").write_bytes(whole)
    assert bring(repository, tmp_path / "x", tmp_path, trusted=True).is_new


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_make_it_fail_otherwise(rest, with_front):
    valid = io.BytesIO()
    transfer_format.Writer(valid, describe("w@1.1"), salt=b"s" * 32, key_file=None)
    source = io.BytesIO((valid.getvalue()[:80] if with_front else b"") + rest)
    try:
        front = transfer_format.read_front(source, "x")
        transfer_format.Reader(source, front, key_file=None, name="x")
    except (errors.InputFormat, errors.StoreFormat):
        pass
    else:
        pytest.fail("it took what nobody wrote")


@pytest.mark.parametrize(
    "file",
    [
        StoredFile("../escape", 1, Part.FILES),
        StoredFile("/absolute", 1, Part.FILES),
        StoredFile("a/../b", 1, Part.FILES),
        StoredFile("a\0b", 1, Part.FILES),
        StoredFile("a", -1, Part.FILES),
        StoredFile("a", 1, Part.FILES, mode=0o4755),
    ],
)
def test_names_sizes_and_modes_that_would_harm_are_refused(there, tmp_path, file):
    """As one who knows no key, but is trusted, could write them."""
    with open(tmp_path / "x", "wb") as handle:
        writer = transfer_format.Writer(handle, describe("w@1.1", files=(file,)), salt=b"s" * 32, key_file=None)
        writer.piece(b"!")
        writer.finish()
    with pytest.raises(errors.InputFormat, match="cannot be"):
        bring(there, tmp_path / "x", tmp_path, trusted=True)
    assert there.workloads() == ()


def test_twice_the_same_name_is_refused(there, tmp_path):
    with open(tmp_path / "x", "wb") as handle:
        files = (StoredFile("a", 0, Part.FILES), StoredFile("a", 0, Part.FILES))
        transfer_format.Writer(handle, describe("w@1.1", files=files), salt=b"s" * 32, key_file=None).finish()
    with pytest.raises(errors.InputFormat):
        bring(there, tmp_path / "x", tmp_path, trusted=True)


def test_a_size_that_the_file_does_not_hold_takes_no_memory(there, tmp_path):
    with open(tmp_path / "x", "wb") as handle:
        writer = transfer_format.Writer(
            handle, describe("w@1.1", files=(StoredFile("a", 2**60, Part.FILES),)), salt=b"s" * 32, key_file=None
        )
        writer.piece(bytes(PIECE_BYTES))
        writer.finish()
    with pytest.raises(errors.InputFormat):
        bring(there, tmp_path / "x", tmp_path, trusted=True)
    assert there.checkpoints("w") == ()


def test_a_newer_format_is_refused_by_name(small, there, tmp_path):
    changed = bytearray((small / "sealed").read_bytes())
    changed[8] = 2
    (tmp_path / "x").write_bytes(changed)
    with pytest.raises(errors.StoreFormat, match="format 2"):
        bring(there, tmp_path / "x", tmp_path)
    (tmp_path / "y").write_bytes(b"#!/bin/sh\n" * 50)
    with pytest.raises(errors.InputFormat, match="not an exported checkpoint"):
        bring(there, tmp_path / "y", tmp_path)
    with pytest.raises(errors.InputMissing):
        bring(there, tmp_path / "absent", tmp_path)


def test_an_imported_checkpoint_is_garbage_to_nobody(here, there, tmp_path):
    export(here, tmp_path / "w.perdure")
    bring(there, tmp_path / "w.perdure", tmp_path)
    assert list(there.backend.list(layout.LOCKS)) == []
    assert there.packs_of(ID) == {info.key for info in there.backend.list(layout.PACKS)}
