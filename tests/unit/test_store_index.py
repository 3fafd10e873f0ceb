"""The cache of where blocks lie: it answers, forgets, and never fails, whatever becomes of its file."""

import os
import sqlite3
from pathlib import Path

import pytest
from stores import describe, new_repository

from perdure.model.checkpoint import Part
from perdure.store.index import Index
from perdure.store.packs import PackRef

ONE, TWO = PackRef(b"1" * 32, 5_000_000, 700), PackRef(b"2" * 32, 6_000_000, 300)


def ids(count: int) -> list[bytes]:
    return [os.urandom(16) for _ in range(count)]


def test_blocks_are_found_where_they_were_added_last_and_forgotten_with_their_pack(tmp_path: Path) -> None:
    first, second = ids(700), ids(300)
    index = Index(tmp_path / "index.db")
    assert index.packs() == frozenset()
    index.add(ONE, b"".join(first))
    index.add(TWO, b"".join([*second[:299], first[5]]))
    index.close()
    index = Index(tmp_path / "index.db")
    assert index.packs() == {ONE.name, TWO.name}
    found = index.find([*first, *second[:299], *ids(10)])
    assert found == {
        **{block_id: (ONE, slot) for slot, block_id in enumerate(first)},
        **{block_id: (TWO, slot) for slot, block_id in enumerate(second[:299])},
        first[5]: (TWO, 299),
    }
    index.forget([TWO.name])
    assert index.packs() == {ONE.name}
    assert index.find([*second, first[5]]) == {}
    assert index.find([first[6]]) == {first[6]: (ONE, 6)}
    index.add(TWO, b"".join(second))
    assert index.find([second[7]]) == {second[7]: (TWO, 7)}
    index.close()
    assert index.find([first[6]]) == {}
    index.add(ONE, b"".join(first))
    assert (tmp_path / "index.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + bytes(500), b"not a database" * 500])
def test_a_file_that_is_no_index_becomes_one(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "index.db").write_bytes(content)
    index = Index(tmp_path / "index.db")
    index.add(ONE, b"".join(ids(700)))
    assert index.packs() == {ONE.name}
    index.close()


def test_an_index_of_another_format_starts_over(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "index.db") as connection:
        connection.execute("CREATE TABLE blocks (other TEXT)")
        connection.execute("PRAGMA user_version = 77")
    connection.close()
    index = Index(tmp_path / "index.db")
    index.add(ONE, b"".join(ids(700)))
    assert index.packs() == {ONE.name}
    index.close()


def test_without_a_place_for_it_nothing_is_known(tmp_path: Path) -> None:
    index = Index(tmp_path / "missing" / "index.db")
    index.add(ONE, b"".join(ids(700)))
    index.forget([ONE.name])
    assert index.packs() == frozenset()
    assert index.find(ids(3)) == {}


def test_blocks_that_only_begin_alike_are_kept_apart(tmp_path: Path) -> None:
    """The index tells blocks apart by half of their ids; here all answers for one block name another one's place."""
    repository = new_repository(tmp_path / "cache")
    for name, content in (("a@1.1", b"one" * 9000), ("b@1.1", b"two" * 9000)):
        if name == "b@1.1":
            with sqlite3.connect(tmp_path / "cache" / repository.id / "index.db") as connection:
                places = [place for (place,) in connection.execute("SELECT place FROM blocks")]
                keys = repository._keys
                from perdure.store import blocks

                asked = blocks.block_ids(memoryview((content + bytes(4096))[: 4096 * 7]), keys.block)
                rows = [(int.from_bytes(asked[at : at + 8], "little", signed=True), places[0]) for at in range(0, len(asked), 16)]
                connection.executemany("INSERT OR REPLACE INTO blocks VALUES (?, ?)", rows)
            connection.close()
        (tmp_path / "f").write_bytes(content)
        with repository.writer(previous=None, progress=lambda _: None) as writer:
            writer.add("f", tmp_path / "f", part=Part.FILES)
            saved = writer.commit(lambda sizes, files, name=name: describe(name, sizes=sizes, files=files))
        assert repository.read_file(saved.id, "f") == content
