"""A checkpoint's files from front to back: the same bytes as extracted, wherever they lie, and nothing damaged among them."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import describe, new_repository
from supervised import wait_for

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES, CheckpointId, Manifest, Part
from perdure.store.backends.memory import MemoryBackend
from perdure.store.repository import Repository

KEY = b"k" * 32


def save(repository: Repository, folder: Path, contents: list[dict[str, bytes]]) -> Manifest:
    """Make one checkpoint after another; the last one is returned."""
    previous = None
    for sequence, content in enumerate(contents, 1):
        with repository.writer(previous=previous, progress=lambda _: None) as writer:
            for name, data in content.items():
                (folder / "staged").write_bytes(data)
                writer.add(name, folder / "staged", part=Part.MEMORY, mode=0o600)
            previous = writer.commit(lambda sizes, files, sequence=sequence: describe(f"a@1.{sequence}", sizes=sizes, files=files))
    assert previous is not None
    return previous


def stream(repository: Repository, checkpoint: CheckpointId, name: str) -> bytes:
    with repository.stream(checkpoint) as files:
        return b"".join(part for parts in files.read(name) for part in parts)


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "encrypted"])
def test_what_is_read_is_what_was_saved(key, tmp_path):
    rng = random.Random(1)
    first = {"pages": rng.randbytes(5_000_000) + bytes(3_000_000) + rng.randbytes(70_001), "small": b"x" * 10, "empty": b""}
    changed = bytearray(first["pages"])
    # Every third page is another one: the file lies in two packs by turns.
    for page in range(0, len(changed) - BLOCK_BYTES, 3 * BLOCK_BYTES):
        changed[page : page + 100] = rng.randbytes(100)
    second = first | {"pages": bytes(changed)}
    repository = new_repository(tmp_path / "cache", key=key)
    saved = save(repository, tmp_path, [first, second])
    for name, content in second.items():
        assert stream(repository, saved.id, name) == content


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), max_size=12), st.integers(0, 2**32), st.integers(0, BLOCK_BYTES - 1))
def test_whatever_changed_between_two_checkpoints(tmp_path_factory, changes, seed, more):
    rng = random.Random(seed)
    folder = tmp_path_factory.mktemp("streaming")
    content = bytearray(rng.randbytes(400 * BLOCK_BYTES + more))
    first = bytes(content)
    for page, count in changes:
        patch = bytes(count * BLOCK_BYTES) if count % 2 else rng.randbytes(count * BLOCK_BYTES)
        content[page * BLOCK_BYTES : (page + count) * BLOCK_BYTES] = patch
    repository = new_repository(folder / "cache", key=None)
    saved = save(repository, folder, [{"pages": first}, {"pages": bytes(content)}])
    assert stream(repository, saved.id, "pages") == bytes(content)


def test_several_files_at_once_and_one_that_is_left_in_the_middle(tmp_path):
    rng = random.Random(2)
    content = {f"pages-{number}": rng.randbytes(6_000_000) for number in range(3)}
    repository = new_repository(tmp_path / "cache", key=None)
    saved = save(repository, tmp_path, [content])
    with repository.stream(saved.id) as files:
        left = files.read("pages-0")
        next(left)
        both = [files.read("pages-1"), files.read("pages-2")]
        got = [b"", b""]
        for parts in zip(*both, strict=True):
            got = [one + b"".join(part) for one, part in zip(got, parts, strict=True)]
        left.close()
    assert got == [content["pages-1"], content["pages-2"]]


def test_damage_is_told_when_it_is_come_to_and_nothing_of_it_is_handed_out(tmp_path):
    rng = random.Random(3)
    content = rng.randbytes(20_000_000)
    repository = new_repository(tmp_path / "cache", key=None)
    saved = save(repository, tmp_path, [{"pages": content}])
    packs = sorted(repository.packs_of(saved.id))
    for key in packs:
        whole = repository.backend.get(key)
        at = len(whole) // 2
        for damaged in (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:at], None):
            if damaged is None:
                repository.backend.delete(key)
            else:
                repository.backend.put(key, damaged)
            got = b""
            with repository.stream(saved.id) as files, pytest.raises(errors.StoreCorrupt) as caught:
                for parts in files.read("pages"):
                    got += b"".join(parts)
            assert caught.value.object_key == key
            assert content.startswith(got)
            repository.backend.put(key, whole)
    assert stream(repository, saved.id, "pages") == content


def test_a_name_that_is_not_there_is_told(tmp_path):
    repository = new_repository(tmp_path / "cache", key=None)
    saved = save(repository, tmp_path, [{"pages": b"a"}])
    with repository.stream(saved.id) as files, pytest.raises(errors.WorkloadMissing, match="no file 'other'"):
        next(files.read("other"))


def test_parts_are_bounded(tmp_path):
    repository = new_repository(tmp_path / "cache", key=None)
    saved = save(repository, tmp_path, [{"pages": bytes(30_000_000)}])
    with repository.stream(saved.id) as files:
        sizes = [sum(map(len, parts)) for parts in files.read("pages")]
    assert sum(sizes) == 30_000_000
    assert max(sizes) <= 8 * 1024 * 1024
    assert all(one >= 8 * 1024 * 1024 for one, _ in pairwise(sizes))


class Counting(MemoryBackend):
    """Counts what is read of packs' frames."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        content = super().get(key, start=start, length=length)
        if len(content) > 100_000:
            self.read_bytes += len(content)
        return content


def test_so_much_is_read_before_anybody_asks_and_then_handed_out(tmp_path):
    rng = random.Random(4)
    content = {f"pages-{number}": rng.randbytes(size) for number, size in enumerate((9_000_000, 20_000_000, 16_000_000))}
    backend = Counting()
    repository = new_repository(tmp_path / "cache", key=None, backend=backend)
    saved = save(repository, tmp_path, [content])
    with repository.stream(saved.id) as files:
        files.begin(content)
        # Two windows of the first, the last one shorter, and one of the second.
        wait_for(lambda: backend.read_bytes > 17_000_000)
        assert backend.read_bytes < 18_000_000
        for name in reversed(content):
            assert b"".join(part for parts in files.read(name) for part in parts) == content[name]
    with repository.stream(saved.id) as files, pytest.raises(errors.WorkloadMissing, match="no file 'other'"):
        files.begin(["other"])


def test_damage_of_what_was_begun_is_told_to_who_reads_it(tmp_path):
    content = {"pages-0": random.Random(5).randbytes(3_000_000), "pages-1": random.Random(6).randbytes(3_000_000)}
    repository = new_repository(tmp_path / "cache", key=None)
    saved = save(repository, tmp_path, [content])
    for key in repository.packs_of(saved.id):
        repository.backend.delete(key)
    with repository.stream(saved.id) as files:
        files.begin(content)
        for name in content:
            with pytest.raises(errors.StoreCorrupt, match="is missing"):
                next(iter(files.read(name)))
