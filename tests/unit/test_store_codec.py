"""The pieces of the format: compression, seals, sealed records, extents and the bodies of manifests."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import describe

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES, Part, StoredFile
from perdure.store import codec, compression, manifests, sealed
from perdure.store.crypto import TAG_BYTES, Damaged
from perdure.store.extents import HOLE, Extents
from perdure.store.keys import Keys
from perdure.store.packs import PackRef

SECRET = bytes(range(32))
SALT = bytes(reversed(range(32)))
KEYS = {"open": Keys(SECRET, None), "secret": Keys(SECRET, b"k" * 32)}


@given(st.binary(max_size=20_000), st.integers(1, 40))
def test_compression_gives_back_what_it_took(content: bytes, times: int) -> None:
    content *= times
    compressed = compression.compress(content)
    if compressed is not None:
        assert len(compressed) <= compression.PAYS * len(content)
        assert compression.decompress(compressed, len(content)) == content


def test_decompression_never_gives_more_than_was_said() -> None:
    bomb = compression.compress(bytes(64 << 20))
    assert bomb is not None
    for size_bytes in (0, 1, (64 << 20) - 1, (64 << 20) + 1):
        with pytest.raises(Damaged):
            compression.decompress(bomb, size_bytes)
    for damaged in (bomb[:-1], bomb + b"x", b"", b"x" + bomb[1:]):
        with pytest.raises(Damaged):
            compression.decompress(damaged, 64 << 20)


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_a_seal_holds_content_number_and_what_it_is_bound_to(keys: Keys) -> None:
    seal = keys.seal_for(SALT)
    closed = seal.seal(7, b"content", b"bound")
    assert len(closed) == len(b"content") + TAG_BYTES
    assert bytes(seal.open(7, closed, b"bound")) == b"content"
    wrong = [(8, closed, b"bound"), (7, closed, b"bounc"), (7, closed, b""), (7, closed[:-1], b"bound"), (7, b"", b"bound")]
    wrong += [(7, closed[:at] + bytes([closed[at] ^ 1]) + closed[at + 1 :], b"bound") for at in range(len(closed))]
    for number, content, bound in wrong:
        with pytest.raises(Damaged):
            seal.open(number, content, bound)
    with pytest.raises(Damaged):
        keys.seal_for(bytes(32)).open(7, closed, b"bound")
    assert (b"content" in closed) is not keys.encrypted


def test_bound_bytes_and_content_are_kept_apart() -> None:
    seal = KEYS["open"].seal_for(SALT)
    assert seal.seal(0, b"bc", b"a")[-TAG_BYTES:] != seal.seal(0, b"c", b"ab")[-TAG_BYTES:]


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@given(content=st.binary(max_size=5000), at=st.integers(0), value=st.integers(1, 255))
def test_a_record_with_any_byte_changed_is_refused(keys: Keys, content: bytes, at: int, value: int) -> None:
    stored = sealed.encode(keys, "locks/a", content, SALT)
    assert sealed.decode(keys, "locks/a", stored) == content
    at %= len(stored)
    for damaged in (stored[:at] + bytes([stored[at] ^ value]) + stored[at + 1 :], stored[:at], stored + b"x"):
        with pytest.raises(errors.StoreCorrupt) as caught:
            sealed.decode(keys, "locks/a", damaged)
        assert caught.value.object_key == "locks/a"
    with pytest.raises(errors.StoreCorrupt):
        sealed.decode(keys, "locks/b", stored)


def test_a_newer_format_is_told_from_damage() -> None:
    keys = KEYS["open"]
    stored = sealed.encode(keys, "locks/a", b"content", SALT)
    head = sealed.MAGIC + (codec.VERSION + 1).to_bytes(2, "little") + b"\0\0"
    from blake3 import blake3

    newer = head + blake3(head, key=keys.preamble).digest(4) + stored[codec.PREAMBLE_BYTES :]
    with pytest.raises(errors.StoreFormat, match=r"2\.0"):
        sealed.decode(keys, "locks/a", newer)


EXTENT = st.tuples(st.integers(0, 3), st.integers(0, 200), st.integers(1, 50))


def extents_of(parts: list[tuple[int, int, int]]) -> Extents:
    extents = Extents()
    for part in parts:
        extents.append(*part)
    return extents


def blocks_of(parts) -> list[tuple[int, int]]:
    """The definition: pack and slot of every block."""
    return [(pack, 0 if pack == HOLE else first + at) for pack, first, count in parts for at in range(count)]


@given(st.lists(EXTENT, max_size=30), st.data())
def test_extents_say_where_each_block_lies(parts, data) -> None:
    extents = extents_of(parts)
    plain = blocks_of(parts)
    assert extents.blocks == len(plain)
    assert blocks_of(extents) == plain
    start = data.draw(st.integers(0, len(plain)))
    count = data.draw(st.integers(0, len(plain) - start))
    assert blocks_of(extents.part(start, count)) == plain[start : start + count]


def test_extents_that_follow_each_other_are_one() -> None:
    extents = extents_of([(1, 0, 5), (1, 5, 5), (HOLE, 0, 3), (HOLE, 0, 4), (1, 10, 1), (2, 11, 1)])
    assert list(extents) == [(1, 0, 10), (HOLE, 0, 7), (1, 10, 1), (2, 11, 1)]


REFS = tuple(PackRef(bytes([number]) * 32, 2_000_000, 250) for number in range(3))


@given(st.lists(st.lists(EXTENT, max_size=20), max_size=5))
def test_a_manifest_gives_back_head_and_body(parts) -> None:
    keys = KEYS["secret"]
    files = tuple(extents_of(own) for own in parts)
    stored = tuple(StoredFile(f"f{at}", file.blocks * BLOCK_BYTES, Part.MEMORY) for at, file in enumerate(files))
    head = describe("a@1.2", files=stored)
    content, _ = manifests.encode(keys, SALT, head, manifests.wrap_body(REFS, files))
    key = "workloads/a/manifests/00000001.00000002"
    opened = manifests.Opened(keys, key, content)
    assert opened.size_bytes == len(content)
    start, end = manifests.FRONT_BYTES, manifests.FRONT_BYTES + opened.head_bytes
    assert opened.head(content[start:end]) == head
    body = opened.body(content[end:], head)
    assert body.packs == REFS
    assert [list(file) for file in body.files] == [list(file) for file in files]
    with pytest.raises(errors.StoreCorrupt):
        manifests.Opened(keys, "workloads/b/manifests/00000001.00000002", content).head(content[start:end])
    with pytest.raises(errors.StoreCorrupt):
        opened.head(content[end:])


@pytest.mark.parametrize(
    ("refs", "parts", "size_bytes"),
    [
        (REFS, [(1, 249, 2)], 2 * BLOCK_BYTES),  # slots that are not there
        (REFS, [(1, 0, 1)], BLOCK_BYTES + 1),  # too few blocks
        (REFS, [(1, 0, 2)], BLOCK_BYTES),  # too many
        ((REFS[0], REFS[0]), [(1, 0, 1)], BLOCK_BYTES),  # a pack twice
        ((PackRef(b"x" * 32, 100, 250),), [(1, 0, 1)], BLOCK_BYTES),  # a pack of impossible size
        ((PackRef(b"x" * 32, 2_000_000, 0),), [], 0),
    ],
)
def test_a_body_that_makes_no_sense_is_refused_although_authentic(refs, parts, size_bytes) -> None:
    keys = KEYS["open"]
    head = describe("a@1.2", files=(StoredFile("f", size_bytes, Part.MEMORY),))
    content, _ = manifests.encode(keys, SALT, head, manifests.wrap_body(refs, [extents_of(parts)]))
    opened = manifests.Opened(keys, "workloads/a/manifests/00000001.00000002", content)
    with pytest.raises(errors.StoreCorrupt, match="makes no sense"):
        opened.body(content[manifests.FRONT_BYTES + opened.head_bytes :], head)


def read_or_refuse(plain: bytes, head) -> None:
    content, _ = manifests.encode(KEYS["open"], SALT, head, codec.wrap(plain))
    opened = manifests.Opened(KEYS["open"], "workloads/a/manifests/00000001.00000002", content)
    try:
        body = opened.body(content[manifests.FRONT_BYTES + opened.head_bytes :], head)
    except errors.StoreCorrupt:
        return
    assert len(body.files) == len(head.files)
    for file in body.files:
        for pack, first, count in file:
            assert 0 <= pack <= len(body.packs)
            assert pack == HOLE or first + count <= body.packs[pack - 1].slots


@given(st.binary(max_size=400))
def test_an_authentic_body_of_any_bytes_is_read_or_refused(plain: bytes) -> None:
    read_or_refuse(plain, describe("a@1.2"))


@settings(max_examples=300)
@given(st.lists(EXTENT, min_size=1, max_size=8), st.integers(0), st.integers(1, 255))
def test_an_authentic_body_with_a_byte_changed_is_read_or_refused(parts, at: int, value: int) -> None:
    files = [extents_of(parts)]
    plain = bytearray(codec.unwrap(manifests.wrap_body(REFS, files), max_bytes=1 << 20))
    plain[at % len(plain)] ^= value
    read_or_refuse(bytes(plain), describe("a@1.2", files=(StoredFile("f", files[0].blocks * BLOCK_BYTES, Part.MEMORY),)))


def test_an_authentic_head_that_says_unknown_things_is_of_another_format() -> None:
    keys = KEYS["open"]
    head = msgspec.structs.replace(describe("a@1.2"), trigger="by-moonlight")  # type: ignore[arg-type]
    content, _ = manifests.encode(keys, SALT, head, manifests.wrap_body((), ()))
    opened = manifests.Opened(keys, "workloads/a/manifests/00000001.00000002", content)
    with pytest.raises(errors.StoreFormat):
        opened.head(content[manifests.FRONT_BYTES : manifests.FRONT_BYTES + opened.head_bytes])
