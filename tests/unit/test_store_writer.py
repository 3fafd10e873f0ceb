"""Writing checkpoints: what is stored once, what is not stored again, what it counts, and what a failure leaves."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_vectors import counted
from stores import describe, new_repository

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES, CheckpointId, Manifest, Part, Run
from perdure.store import layout, packs
from perdure.store.backends.faulty import Fault, FaultyBackend, Rule
from perdure.store.backends.memory import MemoryBackend
from perdure.store.repository import Repository

MIB = 1 << 20
Files = dict[str, tuple[bytes, list[Run] | None]]


def write(repository: Repository, name: str, files: Files, folder: Path, *, previous: Manifest | None = None, part=Part.MEMORY) -> Manifest:
    with repository.writer(previous=previous, progress=lambda _: None) as writer:
        for file, (content, runs) in files.items():
            staged = folder / "staged"
            staged.write_bytes(content)
            writer.add(file, staged, part=part, runs=runs)
        return writer.commit(lambda sizes, files: describe(name, sizes=sizes, files=files))


def read(repository: Repository, checkpoint: CheckpointId, folder: Path) -> dict[str, bytes]:
    into = folder / f"out-{checkpoint}-{random.random()}"
    into.mkdir()
    repository.extract(checkpoint, into, progress=lambda _: None)
    return {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}


def objects(repository: Repository, prefix: str = "") -> dict[str, int]:
    return {info.key: info.size_bytes for info in repository.backend.list(prefix)}


def blocks(*numbers: int) -> bytes:
    """Blocks that are told apart by their number and do not compress; 0 is zeros."""
    return b"".join(random.Random(number).randbytes(BLOCK_BYTES) if number else bytes(BLOCK_BYTES) for number in numbers)


@pytest.fixture(params=[None, b"k" * 32], ids=["open", "encrypted"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    return new_repository(tmp_path / "cache", key=request.param)


def test_files_of_all_lengths_come_back(repository: Repository, tmp_path: Path) -> None:
    lengths = [0, 1, 4095, 4096, 4097, 65_536, 131_072, 131_073, 3 * MIB + 5]
    files: Files = {f"images/{length}.img": (random.Random(length).randbytes(length), None) for length in lengths}
    files["text"] = (b"the same line again\n" * 50_000, None)
    files["zeros"] = (bytes(5 * MIB), None)
    saved = write(repository, "a@1.1", files, tmp_path)
    assert read(repository, saved.id, tmp_path) == {name: content for name, (content, _) in files.items()}
    assert repository.read_file(saved.id, "text") == files["text"][0]
    for key in objects(repository):
        repository.check_object(key)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_checkpoint_after_checkpoint_comes_back(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Random images of random address spaces, each like the one before in part: what is reused is always the right thing."""
    folder = tmp_path_factory.mktemp("chain")
    repository = new_repository(folder / "cache")
    number = st.integers(0, 40)
    previous = None
    kept: list[tuple[CheckpointId, dict[str, bytes]]] = []
    runs_of: dict[str, list[tuple[int, list[int]]]] = {}
    for sequence in range(1, 5):
        for name in data.draw(st.sets(st.sampled_from(["p1", "p2", "p3"]), min_size=1)):
            spaces = data.draw(st.lists(st.tuples(st.integers(0, 60), st.lists(number, min_size=1, max_size=40)), max_size=4))
            start, runs = 0, []
            for gap, content in spaces:
                runs.append((start + gap, content))
                start += gap + len(content)
            runs_of[name] = runs
        files: Files = {}
        for name, runs in runs_of.items():
            files[name] = (
                b"".join(blocks(*content) for _, content in runs),
                [Run(f"mm:{name}", address * BLOCK_BYTES, len(content)) for address, content in runs],
            )
        saved = write(repository, f"a@1.{sequence}", files, folder, previous=previous)
        kept.append((saved.id, {name: content for name, (content, _) in files.items()}))
        previous = data.draw(st.sampled_from([saved, saved, saved, None]))
    for one, expected in kept:
        assert read(repository, one, folder) == expected
    for key in objects(repository):
        repository.check_object(key)


def test_a_block_is_stored_once(repository: Repository, tmp_path: Path) -> None:
    content = blocks(*range(1, 101))
    write(repository, "a@1.1", {"x": (content, None), "y": (content, None), "z": (content[BLOCK_BYTES:] * 3, None)}, tmp_path)
    first = objects(repository, layout.PACKS)
    assert sum(first.values()) < 1.02 * len(content)
    other = write(repository, "b@1.1", {"other/name": (blocks(*range(50, 101), *range(1, 50)), None)}, tmp_path)
    assert objects(repository, layout.PACKS) == first
    assert other.new_bytes == repository.backend.size(layout.manifest_key(other.id))
    assert other.stored_bytes >= len(content)
    again = Repository.open(repository.backend, key=b"k" * 32 if repository.encrypted else None, cache=tmp_path / "elsewhere")
    write(again, "c@1.1", {"f": (content, None)}, tmp_path)
    assert objects(repository, layout.PACKS) == first, "an index that is new is filled from the store"


def dirty(content: bytes, share: float, seed: int) -> tuple[bytes, int]:
    """Change `share` of the pages, scattered; return the bytes that changed too."""
    chosen = random.Random(seed).sample(range(len(content) // BLOCK_BYTES), int(share * len(content) / BLOCK_BYTES))
    changed = bytearray(content)
    for page in chosen:
        changed[page * BLOCK_BYTES : (page + 1) * BLOCK_BYTES] = random.Random(seed * 1000 + page).randbytes(BLOCK_BYTES)
    return bytes(changed), len(chosen) * BLOCK_BYTES


def test_a_second_checkpoint_stores_the_changed_pages_and_little_else(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    content = random.Random(1).randbytes(64 * MIB)
    pages = len(content) // BLOCK_BYTES
    # In the second, pages were mapped before the others: all of the file shifts, and no address does.
    one = [Run("mm:7", 0x400000, pages // 2), Run("mm:7", 0x7F0000003000, pages // 2)]
    first = write(repository, "a@1.1", {"pages-1.img": (content, one)}, tmp_path)
    before = sum(objects(repository).values())
    changed, changed_bytes = dirty(content, 0.01, 2)
    inserted = random.Random(3).randbytes(3 * BLOCK_BYTES)
    second = write(repository, "a@1.2", {"pages-1.img": (inserted + changed, [Run("mm:7", 0x10000, 3), *one])}, tmp_path, previous=first)
    added = sum(objects(repository).values()) - before
    assert added <= 1.1 * (changed_bytes + len(inserted))
    assert second.new_bytes == added
    assert read(repository, second.id, tmp_path) == {"pages-1.img": inserted + changed}
    assert read(repository, first.id, tmp_path) == {"pages-1.img": content}


def test_sizes_are_exact(repository: Repository, tmp_path: Path) -> None:
    with repository.writer(previous=None, progress=lambda _: None) as writer:
        for number, part in enumerate((Part.MEMORY, Part.FILES, Part.IMAGES, Part.MEMORY)):
            (tmp_path / "f").write_bytes(random.Random(number).randbytes(300_001) + bytes(100_000))
            writer.add(f"f{number}", tmp_path / "f", part=part)
        saved = writer.commit(lambda sizes, files: describe("a@1.1", sizes=sizes, files=files))
    assert repository.head(saved.id) == saved
    assert [(size.part, size.logical_bytes) for size in saved.sizes] == [
        (Part.MEMORY, 800_002),
        (Part.IMAGES, 400_001),
        (Part.FILES, 400_001),
    ]
    assert saved.new_bytes == sum(size for key, size in objects(repository).items() if key != layout.CONFIG)
    for size in saved.sizes:
        random_bytes = size.logical_bytes * 300_001 // 400_001
        # Whole frames, of which the first and the last of a file hold blocks of its neighbours.
        assert random_bytes < size.stored_bytes < random_bytes + 4 * (packs.FRAME_BYTES + 16)
    same = write(repository, "a@1.2", {"f": (random.Random(0).randbytes(300_001), None)}, tmp_path, previous=saved)
    assert 300_001 < same.stored_bytes < 600_000
    assert same.new_bytes == repository.backend.size(layout.manifest_key(same.id))


def small_chain(repository: Repository, folder: Path) -> tuple[Manifest, Files]:
    first = write(repository, "a@1.1", {"x": (blocks(*range(1, 200)), None), "y": (b"small", None)}, folder)
    return first, {
        "x": (blocks(*range(1, 100), *range(300, 400)), None),
        "y": (b"other", None),
        "big": (random.Random(9).randbytes(20 * MIB), None),
    }


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.IO_ERROR, Fault.LOST_ANSWER, Fault.PARTIAL])
def test_a_failure_at_any_write_leaves_the_old_checkpoint_and_no_half_of_the_new(fault: Fault, tmp_path: Path) -> None:
    writes = 0
    while True:
        repository = new_repository(tmp_path / "cache")
        first, files = small_chain(repository, tmp_path)
        before = read(repository, first.id, tmp_path)
        rule = Rule(fault=fault, calls=("put", "put_if_absent"), after=writes, times=None)
        faulty = FaultyBackend(repository.backend, [rule])
        failing = Repository.open(faulty, key=None, cache=tmp_path / "cache")
        try:
            write(failing, "a@1.2", files, tmp_path, previous=first)
            failed = False
        except errors.StoreUnavailable:
            failed = True
        assert read(repository, first.id, tmp_path) == before
        second = CheckpointId("a", 1, 2)
        if second in repository.checkpoints("a"):
            # Either it went well, or the last answer of all was lost.
            assert not failed or fault is Fault.LOST_ANSWER
            assert read(repository, second, tmp_path) == {name: content for name, (content, _) in files.items()}
        else:
            assert failed
            again = write(repository, "a@1.2", files, tmp_path, previous=first)
            assert read(repository, again.id, tmp_path) == {name: content for name, (content, _) in files.items()}
        for key in objects(repository):
            repository.check_object(key)
        if not failed:
            break
        writes += 1
    assert writes >= 3


class Enough(Exception):
    pass


def test_progress_can_cancel_and_leaves_nothing_to_be_seen(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    (tmp_path / "f").write_bytes(random.Random(1).randbytes(40 * MIB))
    told: list[int] = []

    def progress(done_bytes: int) -> None:
        told.append(done_bytes)
        if done_bytes > 35 * MIB:
            raise Enough

    with pytest.raises(Enough), repository.writer(previous=None, progress=progress) as writer:
        writer.add("f", tmp_path / "f", part=Part.MEMORY)
    assert told == sorted(told)
    assert repository.checkpoints("a") == ()
    with repository.writer(previous=None, progress=lambda _: None) as writer:
        writer.add("f", tmp_path / "f", part=Part.MEMORY)
    assert repository.checkpoints("a") == ()
    saved = write(repository, "a@1.1", {"f": ((tmp_path / "f").read_bytes(), None)}, tmp_path)
    assert read(repository, saved.id, tmp_path) == {"f": (tmp_path / "f").read_bytes()}


def test_where_packs_end_does_not_depend_on_who_is_quicker(tmp_path: Path) -> None:
    rng = random.Random(4)
    content = b"".join(rng.randbytes(3000) + bytes(1096) for _ in range(9000))
    every = []
    for number in range(2):
        backend = MemoryBackend()
        backend.create()
        repository = Repository.create(
            backend, key=None, secret=bytes(32), repository_id="0" * 32, cache=tmp_path / str(number), threads=3, random=counted(b"x")
        )
        saved = write(repository, "a@1.1", {"x": (content, None)}, tmp_path)
        every.append(objects(repository))
    assert every[0] == every[1]
    assert len(repository.packs_of(saved.id)) == 2


def test_two_checkpoints_cannot_have_one_name(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    saved = write(repository, "a@1.1", {"f": (b"one", None)}, tmp_path)
    with pytest.raises(errors.ObjectExists):
        write(repository, "a@1.1", {"f": (b"two", None)}, tmp_path)
    assert read(repository, saved.id, tmp_path) == {"f": b"one"}


@pytest.mark.parametrize("harm", ["delete", "cut", "table"])
def test_a_pack_that_is_gone_or_damaged_is_not_used_again(harm: str, tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    content = blocks(*range(1, 300))
    first = write(repository, "a@1.1", {"x": (content, None)}, tmp_path)
    (key,) = repository.packs_of(first.id)
    stored = repository.backend.get(key)
    if harm == "delete":
        repository.backend.delete(key)
    else:
        repository.backend.put(key, stored[:-1] if harm == "cut" else stored[:-100] + b"\xff" + stored[-99:])
    for previous in (first, None):
        name = "a@1.2" if previous else "b@1.1"
        saved = write(repository, name, {"x": (content, None)}, tmp_path, previous=previous)
        assert read(repository, saved.id, tmp_path) == {"x": content}


def test_damage_is_not_inherited_when_it_is_known(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    content = blocks(*range(1, 300))
    first = write(repository, "a@1.1", {"x": (content, None)}, tmp_path)
    (key,) = repository.packs_of(first.id)
    repository.backend.put(key, b"\xff" + repository.backend.get(key)[1:])
    with repository.writer(previous=first, progress=lambda _: None, avoid=[key]) as writer:
        writer.add("x", tmp_path / "staged", part=Part.MEMORY)
        saved = writer.commit(lambda sizes, files: describe("a@1.2", sizes=sizes, files=files))
    assert read(repository, saved.id, tmp_path) == {"x": content}


def test_a_pack_that_vanishes_meanwhile_fails_the_checkpoint(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    first = write(repository, "a@1.1", {"x": (blocks(*range(1, 300)), None)}, tmp_path)
    (key,) = repository.packs_of(first.id)
    with pytest.raises(errors.StoreCorrupt) as caught, repository.writer(previous=first, progress=lambda _: None) as writer:
        writer.add("x", tmp_path / "staged", part=Part.MEMORY)
        repository.backend.delete(key)
        writer.commit(lambda sizes, files: describe("a@1.2", sizes=sizes, files=files))
    assert caught.value.object_key == key
    assert repository.checkpoints("a") == (first.id,)


def ruin_index(cache: Path) -> None:
    (cache / "index.db").write_bytes(b"not a database" * 1000)
    for suffix in ("-wal", "-shm"):
        (cache / f"index.db{suffix}").unlink(missing_ok=True)


def lie_in_index(cache: Path) -> None:
    import sqlite3

    with sqlite3.connect(cache / "index.db") as connection:
        connection.execute("UPDATE blocks SET place = (place & ~63) | ((place + 7) & 63)")
    connection.close()


def flip_fingerprints(cache: Path) -> None:
    path = next(cache.glob("*.fingerprints"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty_cache(cache: Path) -> None:
    for path in cache.iterdir():
        path.unlink()


@pytest.mark.parametrize("harm", [ruin_index, lie_in_index, flip_fingerprints, empty_cache])
def test_nothing_rests_on_the_cache(harm: Callable[[Path], None], tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    content = blocks(*range(1, 100))
    first = write(repository, "a@1.1", {"x": (content, None)}, tmp_path)
    harm(tmp_path / "cache" / repository.id)
    changed = blocks(*range(1, 50), 500, *range(51, 100))
    second = write(repository, "a@1.2", {"x": (changed, None)}, tmp_path, previous=first)
    assert read(repository, second.id, tmp_path) == {"x": changed}
    harm(tmp_path / "cache" / repository.id)
    other = write(repository, "b@1.1", {"x": (changed + content, None)}, tmp_path)
    assert read(repository, other.id, tmp_path) == {"x": changed + content}
    modes = {path.name: path.stat().st_mode & 0o077 for path in (tmp_path / "cache" / repository.id).iterdir()}
    assert set(modes.values()) == {0}


def test_fingerprints_of_another_checkpoint_are_not_used(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    first = write(repository, "a@1.1", {"x": (blocks(*range(1, 100)), None)}, tmp_path)
    second = write(repository, "a@1.2", {"x": (blocks(*range(200, 300)), None)}, tmp_path, previous=first)
    third = write(repository, "a@1.3", {"x": (blocks(*range(200, 300)), None)}, tmp_path, previous=first)
    for saved, start in ((first, 1), (second, 200), (third, 200)):
        assert read(repository, saved.id, tmp_path) == {"x": blocks(*range(start, start + (99 if start == 1 else 100)))}


def test_old_packs_die_with_old_manifests(tmp_path: Path) -> None:
    """Pages that never change leave a pack when most of it is waste, so that the packs of deleted checkpoints can go."""
    repository = new_repository(tmp_path / "cache")
    steady = list(range(1, 101))
    saved = write(repository, "a@1.1", {"x": (blocks(*steady, *range(1000, 1900)), None)}, tmp_path)
    (old,) = repository.packs_of(saved.id)
    for sequence in range(2, 5):
        content = blocks(*steady, *range(10_000 * sequence, 10_000 * sequence + 900))
        saved = write(repository, f"a@1.{sequence}", {"x": (content, None)}, tmp_path, previous=saved)
        assert read(repository, saved.id, tmp_path) == {"x": content}
    assert old not in repository.packs_of(saved.id)


def test_a_workload_that_shares_a_little_does_not_store_it_again(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    write(repository, "a@1.1", {"x": (blocks(*range(1, 201)), None)}, tmp_path)
    own = blocks(*range(1, 11), *range(5000, 7500))
    saved = write(repository, "b@1.1", {"x": (own, None)}, tmp_path)
    held = objects(repository, layout.PACKS)
    again = write(repository, "b@1.2", {"x": (own, None)}, tmp_path, previous=saved)
    assert objects(repository, layout.PACKS) == held
    assert again.new_bytes < 10_000


def test_what_cannot_be_added_is_refused(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    (tmp_path / "f").write_bytes(b"x" * 5000)
    (tmp_path / "link").symlink_to(tmp_path / "f")
    os.mkfifo(tmp_path / "fifo")
    with repository.writer(previous=None, progress=lambda _: None) as writer:
        for name in ("../f", "/f", "a//b", ""):
            with pytest.raises(errors.UsageError):
                writer.add(name, tmp_path / "f", part=Part.FILES)
        for runs in ([Run("a", 0, 1)], [Run("a", 0, 3)], [Run("a", 7, 2)], [Run("a", -4096, 2)], [Run("a", 0, 3), Run("a", 0, -1)]):
            with pytest.raises(errors.UsageError):
                writer.add("f", tmp_path / "f", part=Part.FILES, runs=runs)
        for path in ("link", "fifo", "missing", "."):
            with pytest.raises(errors.CheckpointFailed):
                writer.add("f", tmp_path / path, part=Part.FILES)
        writer.add("f", tmp_path / "f", part=Part.FILES)
        with pytest.raises(errors.UsageError):
            writer.add("f", tmp_path / "f", part=Part.FILES)
        descriptor = os.open(tmp_path / "f", os.O_RDONLY)
        writer.add("g", descriptor, part=Part.FILES)
        os.close(descriptor)
        saved = writer.commit(lambda sizes, files: describe("a@1.1", sizes=sizes, files=files))
    assert read(repository, saved.id, tmp_path) == {"f": b"x" * 5000, "g": b"x" * 5000}


def test_names_and_arguments_that_are_no_utf_8_are_kept(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    (tmp_path / "f").write_bytes(b"x")
    with repository.writer(previous=None, progress=lambda _: None) as writer:
        writer.add("files/\udcff\u20ac", tmp_path / "f", part=Part.FILES)
        saved = writer.commit(lambda sizes, files: describe("a@1.1", sizes=sizes, files=files, command=("python", "\udcfe\ud83d")))
    assert repository.head(saved.id) == saved
    assert saved.command == ("python", "\udcfe\ud83d")
    assert read(repository, saved.id, tmp_path) == {"files/\udcff\u20ac": b"x"}


def test_a_writer_ends_with_its_first_failure(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "cache")
    (tmp_path / "f").write_bytes(random.Random(1).randbytes(3 * MIB))

    def progress(done_bytes: int) -> None:
        raise Enough

    with repository.writer(previous=None, progress=progress) as writer:
        with pytest.raises(Enough):
            writer.add("f", tmp_path / "f", part=Part.FILES)
        with pytest.raises(ValueError, match="first failure"):
            writer.add("g", tmp_path / "f", part=Part.FILES)
        with pytest.raises(ValueError, match="first failure"):
            writer.commit(lambda sizes, files: describe("a@1.1", sizes=sizes, files=files))
    assert repository.checkpoints("a") == ()


def test_nothing_readable_lies_in_an_encrypted_store(tmp_path: Path) -> None:
    backend = MemoryBackend()
    repository = new_repository(tmp_path / "cache", key=b"k" * 32, backend=backend)
    secret = b"attack at dawn, said the memory of the process"
    saved = write(repository, "a@1.1", {"images/secret-name.img": (secret * 300, None)}, tmp_path)
    repository.write_record(layout.lease_key("a", 1), b"node-name-of-mine", replace=False)
    everything = b"".join(backend.get(key) for key in objects(repository))
    for word in (b"attack", b"secret-name", b"train.py", b"node-name", b"/home/me", saved.host.hostname.encode()):
        assert word not in everything
    assert not [key for key in objects(repository) if "secret" in key]


@pytest.mark.parametrize("fault", [None, Fault.TIMEOUT, Fault.READ_ONLY])
def test_a_manifest_is_taken_back_where_the_lock_was_lost_while_it_was_written(tmp_path: Path, fault: Fault | None) -> None:
    faulty = FaultyBackend(MemoryBackend(), [] if fault is None else [Rule(fault=fault, calls=("delete",))])
    repository = new_repository(tmp_path / "cache", backend=faulty)

    def require() -> None:
        if objects(repository, layout.WORKLOADS):
            raise errors.StoreLocked("the lock was lost")

    with repository.writer(previous=None, progress=lambda _: None) as writer, pytest.raises(errors.StoreLocked, match="was lost"):
        (tmp_path / "a").write_bytes(blocks(1, 2))
        writer.add("a", tmp_path / "a", part=Part.MEMORY)
        writer.commit(lambda sizes, files: describe("a@1.1", sizes=sizes, files=files), require=require)
    assert faulty.count("delete") == 1
    assert bool(repository.checkpoints("a")) == (fault is not None)


def test_no_manifest_is_written_where_the_lock_was_lost_before(repository: Repository, tmp_path: Path) -> None:
    def require() -> None:
        raise errors.StoreLocked("the lock was lost")

    with repository.writer(previous=None, progress=lambda _: None) as writer, pytest.raises(errors.StoreLocked, match="was lost"):
        (tmp_path / "a").write_bytes(blocks(1, 2))
        writer.add("a", tmp_path / "a", part=Part.MEMORY)
        writer.commit(lambda sizes, files: describe("a@1.1", sizes=sizes, files=files), require=require)
    assert objects(repository, layout.WORKLOADS) == {}
