"""Stores of format 1, kept as bytes: they are read, whatever Perdure becomes, and the worked example of the format document is true."""

import re
import shutil
from pathlib import Path

import pytest
import store_vectors
from store_vectors import STORES

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import codec, compression, layout, packs, sealed
from perdure.store.backends.local import LocalBackend
from perdure.store.backends.memory import MemoryBackend
from perdure.store.keys import Keys
from perdure.store.packs import PackRef
from perdure.store.repository import Repository

VECTORS = Path(__file__).parent / "vectors"
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "store-format.md"
MADE_WITH_ZSTD = "1.5.7"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    shutil.copytree(VECTORS / request.param, tmp_path / "store")
    return Repository.open(LocalBackend(tmp_path / "store"), key=STORES[request.param], cache=tmp_path / "cache")


def test_a_stored_store_is_read(store: Repository, tmp_path: Path) -> None:
    assert store.workloads() == ("tiny",)
    assert [str(one) for one in store.checkpoints("tiny")] == ["tiny@1.1", "tiny@1.2"]
    for sequence in (1, 2):
        into = tmp_path / str(sequence)
        into.mkdir()
        head = store.extract(CheckpointId("tiny", 1, sequence), into, progress=lambda _: None)
        assert head.command == ("python", "train.py")
        for name, (content, _) in store_vectors.contents(sequence).items():
            assert (into / name).read_bytes() == content
    assert store.read_record(store_vectors.RECORD) == b'{"holder":"node7"}'
    for info in store.backend.list(""):
        store.check_object(info.key)


def test_a_stored_store_is_written_on(store: Repository, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(store_vectors.contents(2)["images/pages-1.img"][0])
    before = {info.key for info in store.backend.list(layout.PACKS)}
    with store.writer(previous=store.head(CheckpointId("tiny", 1, 2)), progress=lambda _: None) as writer:
        writer.add("f", tmp_path / "f", part=store_vectors.Part.MEMORY)
        saved = writer.commit(lambda sizes, files: store_vectors.describe("tiny@2.1", sizes=sizes, files=files))
    assert store.read_file(saved.id, "f") == (tmp_path / "f").read_bytes()
    assert {info.key for info in store.backend.list(layout.PACKS)} == before


@pytest.mark.skipif(compression.zstd.zstd_version != MADE_WITH_ZSTD, reason=f"compressed bytes are those of zstd {MADE_WITH_ZSTD}")
@pytest.mark.parametrize("name", STORES)
def test_the_same_inputs_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    backend = MemoryBackend()
    store_vectors.make(backend, STORES[name], tmp_path)
    kept = LocalBackend(VECTORS / name)
    assert {info.key: backend.get(info.key) for info in backend.list("")} == {info.key: kept.get(info.key) for info in kept.list("")}


def test_an_encrypted_store_stays_shut(tmp_path: Path) -> None:
    shutil.copytree(VECTORS / "store-1-encrypted", tmp_path / "store")
    for key in (None, b"x" * 40):
        with pytest.raises(errors.StoreKeyWrong):
            Repository.open(LocalBackend(tmp_path / "store"), key=key, cache=tmp_path)


def example(title: str) -> bytes:
    """Return the bytes of the hexadecimal block under `title` in the format document: offsets and words to the right are for readers."""
    found = re.search(rf"^### {re.escape(title)}\n.*?^```\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    assert found, title
    return b"".join(bytes.fromhex(line[6:54]) for line in found[1].splitlines())


def test_the_worked_example_is_true() -> None:
    keys = Keys(bytes(range(32)), None)
    record = example("A record")
    assert sealed.decode(keys, "locks/00000000000000000000000000000000", record) == b'{"a":1}'
    assert sealed.encode(keys, "locks/00000000000000000000000000000000", b'{"a":1}', bytes(range(32, 64))) == record
    pack = example("A pack")
    name = packs.name_of(keys, pack)
    table = packs.read_table(lambda _, start, length: pack[start : start + length], keys, PackRef(name, len(pack), 1), with_ids=True)
    block = table.open_frame(0, pack[: table.starts[1]])
    assert bytes(block) == b"hello" + bytes(4091)
    text = DOCUMENT.read_text()
    assert name.hex() in text
    assert table.ids.hex() in text
    for key in (keys.check, keys.preamble, keys.block, keys.pack):
        assert key.hex() in text
    assert codec.preamble(keys, packs.MAGIC).hex(" ") in text
