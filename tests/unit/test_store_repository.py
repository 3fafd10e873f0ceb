"""Making and opening a store, and what is found in it by keys."""

import os
from pathlib import Path

import pytest
from stores import describe, new_repository, noise, save

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import config, layout
from perdure.store.backends.memory import MemoryBackend
from perdure.store.keys import Keys
from perdure.store.repository import Repository

KEY = b"k" * 32


def reopen(repository: Repository, cache: Path, key: bytes | None = None) -> Repository:
    return Repository.open(repository.backend, key=key, cache=cache)


def test_a_store_opens_with_what_it_was_made_with(tmp_path: Path) -> None:
    for key in (None, KEY):
        made = new_repository(tmp_path, key=key)
        opened = reopen(made, tmp_path, key)
        assert (opened.id, opened.encrypted) == ("0" * 32, key is not None)
        with pytest.raises(errors.ObjectExists):
            new_repository(tmp_path, backend=made.backend)


def test_a_key_is_asked_for_compared_and_not_taken_in_vain(tmp_path: Path) -> None:
    secret, plain = new_repository(tmp_path, key=KEY), new_repository(tmp_path)
    for repository, key in ((secret, None), (secret, b"K" * 32), (secret, KEY + b"\n"), (secret, b"short"), (plain, KEY)):
        with pytest.raises(errors.StoreKeyWrong) as caught:
            reopen(repository, tmp_path, key)
        assert caught.value.hint
    with pytest.raises(errors.StoreKeyWrong):
        new_repository(tmp_path, key=b"short")


def test_a_place_without_a_store_says_so(tmp_path: Path) -> None:
    backend = MemoryBackend()
    backend.create()
    with pytest.raises(errors.StoreMissing):
        Repository.open(backend, key=None, cache=tmp_path)


@pytest.mark.parametrize("left", ["packs/", "workloads/"])
def test_a_store_that_lost_its_configuration_is_damaged_and_not_missing(tmp_path: Path, left: str) -> None:
    """Its secret is in there: a new one would open nothing of what lies here."""
    made = new_repository(tmp_path)
    save(made, "w@1.1", {"a": noise(10_000, 1)}, folder=tmp_path)
    for info in made.backend.list(""):
        if not info.key.startswith(left):
            made.backend.delete(info.key)
    with pytest.raises(errors.StoreCorrupt, match=r"perdure\.json") as caught:
        reopen(made, tmp_path, None)
    assert caught.value.object_key == layout.CONFIG
    assert "copy" in caught.value.hint


def test_a_store_that_is_made_at_this_moment_is_neither(tmp_path: Path) -> None:
    made = new_repository(tmp_path)
    save(made, "w@1.1", {"a": noise(10_000, 1)}, folder=tmp_path)
    content = made.backend.get(layout.CONFIG)
    made.backend.delete(layout.CONFIG)

    class Being:
        """The configuration is written, and a checkpoint after it, between the look for it and the look for others."""

        def __getattr__(self, name: str):
            return getattr(made.backend, name)

        def list(self, prefix: str):
            made.backend.put(layout.CONFIG, content)
            return made.backend.list(prefix)

    assert Repository.open(Being(), key=None, cache=tmp_path).id == made.id


def test_every_changed_byte_of_the_configuration_is_found(tmp_path: Path) -> None:
    for key in (None, KEY):
        repository = new_repository(tmp_path, key=key)
        backend = repository.backend
        content = backend.get(layout.CONFIG)
        repository.check_object(layout.CONFIG)
        for at in range(len(content)):
            for damaged in (content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :], content[:at]):
                if damaged == content.removesuffix(b"\n"):
                    continue
                backend.put(layout.CONFIG, damaged)
                with pytest.raises(errors.StoreCorrupt, match=r"perdure\.json"):
                    reopen(repository, tmp_path, key)
                with pytest.raises(errors.StoreCorrupt):
                    repository.check_object(layout.CONFIG)


def test_a_newer_store_is_refused_by_name(tmp_path: Path) -> None:
    from blake3 import blake3

    backend = MemoryBackend()
    backend.create()
    body = b'{"format":2,"id":"x","colour":"blue"'
    backend.put(layout.CONFIG, body + b',"digest":"' + blake3(body).hexdigest().encode() + b'"}\n')
    with pytest.raises(errors.StoreFormat, match="format 2"):
        Repository.open(backend, key=None, cache=tmp_path)


def test_the_configuration_gives_no_key_of_an_encrypted_store_away() -> None:
    keys = Keys(bytes(32), KEY)
    content = config.encode("0" * 32, bytes(32), keys)
    for secret in (keys.block, keys.pack, keys.preamble, keys.fingerprint, keys.cache, KEY):
        assert secret.hex().encode() not in content


def test_each_use_and_each_store_has_keys_of_its_own() -> None:
    def uses(keys: Keys) -> list[bytes]:
        return [keys.block, keys.pack, keys.preamble, keys.fingerprint, keys.cache, keys.check]

    every = [uses(Keys(secret, key)) for secret in (bytes(32), b"x" * 32) for key in (None, KEY, KEY + b"\0")]
    flat = [key for own in every for key in own]
    assert len(set(flat)) == len(flat)
    with pytest.raises(ValueError, match="32 bytes"):
        Keys(bytes(31), None)


def test_workloads_and_checkpoints_are_found_by_keys(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    assert repository.workloads() == ()
    for name in ("b@1.1", "a@10.1", "a@2.2", "a@2.10"):
        save(repository, name, {"f": os.urandom(5000)}, folder=tmp_path)
    repository.write_record(layout.life_key("c", 1), b"{}", replace=False)
    assert repository.workloads() == ("a", "b", "c")
    assert repository.checkpoints("a") == (CheckpointId("a", 2, 2), CheckpointId("a", 2, 10), CheckpointId("a", 10, 1))
    assert repository.checkpoints("c") == ()
    assert repository.head(CheckpointId("b", 1, 1)).id == CheckpointId("b", 1, 1)
    for missing in (CheckpointId("b", 1, 2), CheckpointId("z", 1, 1)):
        with pytest.raises(errors.WorkloadMissing):
            repository.head(missing)
        with pytest.raises(errors.WorkloadMissing):
            repository.extract(missing, tmp_path, progress=lambda _: None)


def test_a_long_head_is_read_in_two_parts(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    command = tuple(os.urandom(16).hex() for _ in range(20_000))
    saved = save(repository, "a@1.1", {"f": b"x"}, folder=tmp_path, command=command)
    assert repository.head(saved.id) == saved
    assert saved.command == command


def test_a_manifest_cannot_be_given_to_another_checkpoint(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    save(repository, "a@1.1", {"f": b"x"}, folder=tmp_path)
    content = repository.backend.get("workloads/a/manifests/00000001.00000001")
    for other in (CheckpointId("a", 1, 2), CheckpointId("a", 2, 1), CheckpointId("b", 1, 1)):
        key = layout.manifest_key(other)
        repository.backend.put(key, content)
        for read in (lambda other=other: repository.head(other), lambda key=key: repository.check_object(key)):
            with pytest.raises(errors.StoreCorrupt) as caught:
                read()
            assert caught.value.object_key == key


def test_an_object_of_no_kind_is_damage(tmp_path: Path) -> None:
    repository = new_repository(tmp_path)
    repository.backend.put("packs/zz", b"x")
    with pytest.raises(errors.StoreCorrupt):
        repository.check_object("packs/zz")
    with pytest.raises(errors.ObjectMissing):
        repository.check_object("locks/" + "0" * 32)


def test_a_record_is_replaced_only_when_asked(tmp_path: Path) -> None:
    repository = new_repository(tmp_path, key=KEY)
    key = layout.lease_key("a", 1)
    repository.write_record(key, b"one", replace=False)
    with pytest.raises(errors.ObjectExists):
        repository.write_record(key, b"two", replace=False)
    assert repository.read_record(key) == b"one"
    repository.write_record(key, b"three", replace=True)
    assert repository.read_record(key) == b"three"
    repository.check_object(key)
    assert describe("a@1.1").id.workload == "a"
