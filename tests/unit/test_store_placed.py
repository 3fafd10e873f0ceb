"""Content that is stored before its checkpoint: by one writer, for another one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stores import describe, new_repository

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES, CheckpointId, Manifest, Part
from perdure.store.placed import Placed
from perdure.store.repository import Repository

NAME, OTHER = "gpu/2-GPU-1", "gpu/3-GPU-2"


class Held:
    """Content that lies in memory, and says whether every byte of it was read once."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.read_bytes = 0

    def read(self, offset: int, into: memoryview) -> None:
        part = self.content[offset : offset + len(into)]
        self.read_bytes += len(part)
        into[: len(part)] = part
        into[len(part) :] = bytes(len(into) - len(part))


class Broken(Held):
    """Content that cannot be read to its end."""

    def read(self, offset: int, into: memoryview) -> None:
        if offset:
            raise errors.CheckpointFailed("GPU memory cannot be read")
        super().read(offset, into)


def noise(blocks: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(blocks * BLOCK_BYTES)


@pytest.fixture(params=[None, b"k" * 32], ids=["open", "encrypted"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    return new_repository(tmp_path / "cache", key=request.param)


def place(repository: Repository, *contents: tuple[str, bytes], previous: Manifest | None = None) -> dict[str, bytes]:
    """Store `contents` and return the records of where they lie."""
    held = {name: Held(content) for name, content in contents}
    with repository.writer(previous=previous, progress=lambda _: None) as writer:
        found = writer.place({name: (one, len(one.content)) for name, one in held.items()})
    assert all(one.read_bytes == len(one.content) for one in held.values())
    return {name: repository.placements.encode(placed) for name, placed in found.items()}


def commit(
    repository: Repository, checkpoint: str, records: dict[str, bytes], folder: Path, *, previous: Manifest | None = None
) -> Manifest:
    (folder / "staged").write_bytes(noise(3, 99))
    with repository.writer(previous=previous, progress=lambda _: None) as writer:
        writer.add("images/pages-1.img", folder / "staged", part=Part.MEMORY)
        for name, record in records.items():
            writer.add_placed(name, repository.placements.decode(record), part=Part.GPU)
        return writer.commit(lambda sizes, files: describe(checkpoint, sizes=sizes, files=files))


def content(repository: Repository, checkpoint: CheckpointId, name: str) -> bytes:
    return repository.read_file(checkpoint, name)


def opened(repository: Repository, record: bytes) -> Placed:
    return repository.placements.decode(record)


def test_what_was_stored_before_becomes_part_of_a_checkpoint(repository: Repository, tmp_path: Path) -> None:
    first, second = noise(700, 1) + b"end", bytes(5 * BLOCK_BYTES) + noise(2, 2)
    records = place(repository, (NAME, first), (OTHER, second))
    made = commit(repository, "a@1.1", records, tmp_path)
    assert content(repository, made.id, NAME) == first
    assert content(repository, made.id, OTHER) == second
    sizes = {size.part: size for size in made.sizes}
    assert sizes[Part.GPU].logical_bytes == len(first) + len(second)
    assert sum(size.new_bytes for size in made.sizes) == sum(info.size_bytes for info in repository.backend.list("packs/")) + sum(
        info.size_bytes for info in repository.backend.list("workloads/") if "manifest" in info.key
    )


def test_it_can_be_read_before_there_is_a_checkpoint(repository: Repository) -> None:
    first, second = noise(40, 3), noise(17, 4) + b"x"
    records = place(repository, (NAME, first), (OTHER, second))
    with repository.placements.stream({name: opened(repository, record) for name, record in records.items()}) as streams:
        for name, wanted in ((OTHER, second), (NAME, first)):
            assert b"".join(bytes(part) for parts in streams.read(name) for part in parts) == wanted
    assert repository.workloads() == ()


def test_the_same_weights_are_stored_once_across_files_checkpoints_and_workloads(repository: Repository, tmp_path: Path) -> None:
    weights = noise(600, 5)
    records = place(repository, (NAME, weights), (OTHER, weights))
    assert [opened(repository, record).new_blocks for record in records.values()] == [600, 0]
    made = commit(repository, "a@1.1", records, tmp_path)
    again = place(repository, (NAME, weights + noise(3, 6)), previous=made)
    assert opened(repository, again[NAME]).new_blocks == 3
    of_another = place(repository, ("gpu/9-GPU-7", weights))
    assert opened(repository, of_another["gpu/9-GPU-7"]).new_blocks == 0
    later = commit(repository, "a@1.2", again, tmp_path, previous=made)
    assert content(repository, later.id, NAME) == weights + noise(3, 6)
    # Its fingerprints came along: what did not change is told by them.
    last = place(repository, (NAME, weights + noise(3, 6)), previous=later)
    assert opened(repository, last[NAME]).new_blocks == 0


@example(numbers=[[1, 2, 1], [2], [0, 0]], cut=1)
@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=80), min_size=1, max_size=4), st.integers(0, BLOCK_BYTES - 1))
@settings(max_examples=30)
def test_whatever_it_holds_comes_back(tmp_path_factory: pytest.TempPathFactory, numbers: list[list[int]], cut: int) -> None:
    folder = tmp_path_factory.mktemp("placed")
    repository = new_repository(folder / "cache")
    previous, wanted = None, {}
    for sequence, row in enumerate(numbers, 1):
        whole = b"".join(noise(1, number) if number else bytes(BLOCK_BYTES) for number in row)
        wanted = {NAME: whole[: len(whole) - cut], OTHER: whole[::-1]}
        records = place(repository, *wanted.items(), previous=previous)
        previous = commit(repository, f"a@1.{sequence}", records, folder, previous=previous)
    for name, one in wanted.items():
        assert content(repository, previous.id, name) == one


def test_a_record_that_was_touched_is_refused(repository: Repository) -> None:
    record = place(repository, (NAME, noise(2, 7)))[NAME]
    for at in (0, 20, 60, len(record) - 1):
        with pytest.raises((errors.StoreCorrupt, errors.StoreFormat)):
            opened(repository, record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :])
    with pytest.raises(errors.StoreCorrupt):
        opened(repository, record[:30])


def test_a_pack_that_is_gone_fails_the_checkpoint(repository: Repository, tmp_path: Path) -> None:
    records = place(repository, (NAME, noise(2, 8)))
    for info in list(repository.backend.list("packs/")):
        repository.backend.delete(info.key)
    with pytest.raises(errors.StoreCorrupt, match="stored for this checkpoint"):
        commit(repository, "a@1.1", records, tmp_path)


def test_content_that_cannot_be_read_leaves_nothing_to_be_seen(repository: Repository) -> None:
    broken = Broken(noise(600, 9))
    with repository.writer(previous=None, progress=lambda _: None) as writer:
        with pytest.raises(errors.CheckpointFailed, match="GPU memory"):
            writer.place({NAME: (broken, len(broken.content))})
        with pytest.raises(ValueError, match="first failure"):
            writer.place({OTHER: (Held(b"x"), 1)})
    assert repository.workloads() == ()
