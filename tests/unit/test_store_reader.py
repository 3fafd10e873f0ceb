"""Reading checkpoints: every changed byte is found, nothing leaves the folder, and nothing half is left in it."""

import os
import random
from pathlib import Path

import pytest
from stores import describe, new_repository

from perdure import errors
from perdure.model.checkpoint import Manifest, Part, StoredFile
from perdure.store import layout, manifests
from perdure.store.extents import Extents
from perdure.store.repository import Repository

KEY = b"k" * 32
IDS = ["open", "encrypted"]


def fill(repository: Repository, folder: Path) -> tuple[Manifest, dict[str, bytes]]:
    """Make a small checkpoint of all kinds of content, twice, so that it is spread over packs; and records."""
    rng = random.Random(5)
    content = {
        "images/pages-1.img": rng.randbytes(300_000) + bytes(50_000) + rng.randbytes(10_001),
        "images/core-1.img": b"compressible " * 3_000,
        "files/0/log": b"line\n" * 9,
        "empty": b"",
    }
    previous = None
    for sequence in (1, 2):
        with repository.writer(previous=previous, progress=lambda _: None) as writer:
            for name, data in content.items():
                (folder / "staged").write_bytes(data)
                writer.add(name, folder / "staged", part=Part.MEMORY, mode=0o640 if name == "empty" else 0o600)
            previous = writer.commit(lambda sizes, files, sequence=sequence: describe(f"a@1.{sequence}", sizes=sizes, files=files))
        if sequence == 1:
            content["images/pages-1.img"] = (
                content["images/pages-1.img"][:100_000] + rng.randbytes(30_000) + content["images/pages-1.img"][130_000:]
            )
            content["new"] = rng.randbytes(20_000)
    repository.write_record(layout.lease_key("a", 1), b'{"holder": 1}', replace=False)
    assert previous is not None
    return previous, content


def extract(repository: Repository, saved: Manifest, into: Path) -> dict[str, bytes]:
    into.mkdir()
    assert repository.extract(saved.id, into, progress=lambda _: None) == saved
    return {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}


@pytest.mark.parametrize("key", [None, KEY], ids=IDS)
def test_any_byte_changed_in_any_object_is_found(key: bytes | None, tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache", key=key)
    saved, expected = fill(repository, tmp_path)
    backend = repository.backend
    every = {info.key: backend.get(info.key) for info in backend.list("")}
    needed = {*repository.packs_of(saved.id), layout.manifest_key(saved.id)}
    assert len(needed) == 3
    rng = random.Random(6)
    found = []
    for number in range(600):
        name = rng.choice(sorted(every))
        whole = every[name]
        # Half of the places near the ends, where the structure is.
        at = rng.choice(
            [rng.randrange(len(whole)), rng.randrange(min(len(whole), 64)), len(whole) - 1 - rng.randrange(min(len(whole), 300))]
        )
        damaged = whole[:at] if number % 5 == 0 else whole[:at] + bytes([whole[at] ^ rng.randrange(1, 256)]) + whole[at + 1 :]
        if damaged == whole.removesuffix(b"\n"):
            continue
        backend.put(name, damaged)
        with pytest.raises(errors.StoreCorrupt) as caught:
            repository.check_object(name)
        assert caught.value.object_key == name
        into = tmp_path / f"out{number}"
        try:
            assert extract(repository, saved, into) == expected
        except errors.StoreCorrupt as error:
            found.append((error.object_key, name, list(into.iterdir())))
        backend.put(name, whole)
    assert len(found) > 150
    assert all(named == name and name in needed and left == [] for named, name, left in found)
    assert extract(repository, saved, tmp_path / "out") == expected


@pytest.mark.parametrize("key", [None, KEY], ids=IDS)
def test_bytes_that_a_checkpoint_needs_are_all_verified_by_its_restore(key: bytes | None, tmp_path: Path) -> None:
    """A store with one checkpoint: it needs every byte of every pack and of its manifest."""
    repository = new_repository(tmp_path / "cache", key=key)
    (tmp_path / "staged").write_bytes(random.Random(1).randbytes(150_000) + b"text " * 10_000)
    with repository.writer(previous=None, progress=lambda _: None) as writer:
        writer.add("x", tmp_path / "staged", part=Part.MEMORY)
        saved = writer.commit(lambda sizes, files: describe("a@1.1", sizes=sizes, files=files))
    rng = random.Random(2)
    for name in (*repository.packs_of(saved.id), layout.manifest_key(saved.id)):
        whole = repository.backend.get(name)
        places = {rng.randrange(len(whole)) for _ in range(150)} | set(range(64)) | set(range(len(whole) - 64, len(whole)))
        for at in places:
            repository.backend.put(name, whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :])
            with pytest.raises(errors.StoreCorrupt) as caught:
                repository.read_file(saved.id, "x")
            assert caught.value.object_key == name
        repository.backend.put(name, whole)
    assert repository.read_file(saved.id, "x") == (tmp_path / "staged").read_bytes()


def test_a_missing_pack_is_damage_and_is_named(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    saved, _ = fill(repository, tmp_path)
    for key in repository.packs_of(saved.id):
        content = repository.backend.get(key)
        repository.backend.delete(key)
        with pytest.raises(errors.StoreCorrupt, match="missing") as caught:
            repository.extract(saved.id, tmp_path, progress=lambda _: None)
        assert caught.value.object_key == key
        repository.backend.put(key, content)


def test_only_wanted_files_are_made_with_their_modes(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    saved, expected = fill(repository, tmp_path)
    into = tmp_path / "into"
    into.mkdir()
    told: list[int] = []
    descriptor = os.open(into, os.O_RDONLY)
    repository.extract(saved.id, descriptor, names=["files/0/log", "empty"], progress=told.append)
    os.close(descriptor)
    assert sorted(str(path.relative_to(into)) for path in into.rglob("*")) == ["empty", "files", "files/0", "files/0/log"]
    assert (into / "files/0/log").read_bytes() == expected["files/0/log"]
    assert [(into / name).stat().st_mode & 0o7777 for name in ("empty", "files", "files/0/log")] == [0o640, 0o700, 0o600]
    assert told[-1] == len(expected["files/0/log"])
    with pytest.raises(errors.WorkloadMissing):
        repository.extract(saved.id, into, names=["nothing"], progress=lambda _: None)


def test_holes_stay_holes(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    (tmp_path / "staged").write_bytes(b"x" * 4096)
    os.truncate(tmp_path / "staged", 64 << 20)
    with repository.writer(previous=None, progress=lambda _: None) as writer:
        writer.add("x", tmp_path / "staged", part=Part.MEMORY)
        saved = writer.commit(lambda sizes, files: describe("a@1.1", sizes=sizes, files=files))
    (tmp_path / "into").mkdir()
    repository.extract(saved.id, tmp_path / "into", progress=lambda _: None)
    status = (tmp_path / "into/x").stat()
    assert status.st_size == 64 << 20
    assert status.st_blocks * 512 < 1 << 20
    assert (tmp_path / "into/x").read_bytes() == (tmp_path / "staged").read_bytes()


def test_what_is_there_already_is_neither_replaced_nor_followed_nor_removed(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    saved, _ = fill(repository, tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    for name, make in {
        "file": lambda path: path.write_bytes(b"mine"),
        "link": lambda path: path.symlink_to(outside / "made"),
    }.items():
        into = tmp_path / name
        into.mkdir()
        make(into / "new")
        with pytest.raises(errors.OutputError, match="exists"):
            repository.extract(saved.id, into, progress=lambda _: None)
        assert [path.name for path in into.iterdir()] == ["new"]
    into = tmp_path / "folder-link"
    into.mkdir()
    (into / "images").symlink_to(outside)
    with pytest.raises(errors.OutputError):
        repository.extract(saved.id, into, progress=lambda _: None)
    assert list(outside.iterdir()) == []
    with pytest.raises(errors.OutputError):
        repository.extract(saved.id, tmp_path / "missing", progress=lambda _: None)


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "", "."])
def test_an_authentic_manifest_with_a_hostile_name_is_refused(name: str, tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    head = describe("a@1.1", files=(StoredFile(name, 0, Part.FILES),))
    content, _ = manifests.encode(repository._keys, bytes(32), head, manifests.wrap_body((), (Extents(),)))
    repository.backend.put(layout.manifest_key(head.id), content)
    (tmp_path / "into").mkdir()
    for read in (
        lambda: repository.extract(head.id, tmp_path / "into", progress=lambda _: None),
        lambda: repository.check_object(layout.manifest_key(head.id)),
        lambda: repository.packs_of(head.id),
    ):
        with pytest.raises(errors.StoreCorrupt):
            read()
    assert list((tmp_path / "into").iterdir()) == []
    assert not (tmp_path / "out").exists()


class Enough(Exception):
    pass


def opened() -> set[str]:
    """The numbers of this process's descriptors. What others left behind may be closed at any time: garbage is, when it is collected."""
    return {number for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")}


def test_progress_can_cancel_a_restore_and_nothing_is_left(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    saved, _ = fill(repository, tmp_path)
    into = tmp_path / "into"
    into.mkdir()

    def progress(done_bytes: int) -> None:
        raise Enough

    descriptors = opened()
    with pytest.raises(Enough):
        repository.extract(saved.id, into, progress=progress)
    assert list(into.iterdir()) == []
    assert opened() <= descriptors


def test_more_files_than_descriptors(tmp_path: Path) -> None:
    import resource

    repository = new_repository(tmp_path / "cache")
    names = [f"d{number % 7}/f{number}" for number in range(600)]
    with repository.writer(previous=None, progress=lambda _: None) as writer:
        for name in names:
            (tmp_path / "staged").write_bytes(name.encode())
            writer.add(name, tmp_path / "staged", part=Part.IMAGES)
        saved = writer.commit(lambda sizes, files: describe("a@1.1", sizes=sizes, files=files))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, len(os.listdir("/proc/self/fd")) + 200), hard))
    try:
        found = extract(repository, saved, tmp_path / "into")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == {name: name.encode() for name in names}


def test_a_large_file_is_not_read_into_memory(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    (tmp_path / "staged").touch()
    os.truncate(tmp_path / "staged", (64 << 20) + 1)
    with repository.writer(previous=None, progress=lambda _: None) as writer:
        writer.add("x", tmp_path / "staged", part=Part.MEMORY)
        saved = writer.commit(lambda sizes, files: describe("a@1.1", sizes=sizes, files=files))
    with pytest.raises(errors.Unsupported):
        repository.read_file(saved.id, "x")
    with pytest.raises(errors.WorkloadMissing):
        repository.read_file(saved.id, "y")
