"""Protocol buffers and CRIU's container: what goes in comes out, and rubbish is refused without harm."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.checkpoint.images import container, openfiles, wire

numbers = st.integers(0, 2**64 - 1)


def encoded(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return wire.encode_varint(number << 3) + wire.encode_varint(value)
    return wire.encode_varint(number << 3 | 2) + wire.encode_varint(len(value)) + value


fields = st.lists(st.tuples(st.integers(1, 2**20), st.one_of(numbers, st.binary(max_size=50))), max_size=12)


def test_the_published_examples_are_read():
    # The encoding chapter of the protocol buffers documentation: 150 as field 1, "testing" as field 2.
    first, second = wire.parse(bytes.fromhex("089601") + bytes.fromhex("120774657374696e67"))
    assert (first.number, first.kind, first.value) == (1, wire.VARINT, 150)
    assert (second.number, second.kind, second.value) == (2, wire.BYTES, b"testing")
    assert [wire.zigzag(value) for value in (0, 1, 2, 3, 0xFFFFFFFE, 0xFFFFFFFF)] == [0, -1, 1, -2, 0x7FFFFFFF, -0x80000000]
    assert wire.signed(0xFFFFFFFFFFFFFFFE) == -2


@given(numbers)
def test_numbers_come_back(value):
    text = wire.encode_varint(value)
    assert wire.varint(text, 0) == (value, len(text))


@given(fields)
def test_a_message_comes_back_byte_for_byte(content):
    message = b"".join(encoded(number, value) for number, value in content)
    found = wire.parse(message)
    assert [(field.number, field.value) for field in found] == content
    assert wire.assemble(found) == message


@given(fields, st.integers(1, 2**20), st.one_of(numbers, st.binary(max_size=50)))
def test_only_the_field_that_is_replaced_changes(content, wanted, value):
    before = wire.parse(b"".join(encoded(number, each) for number, each in content))
    after = wire.parse(wire.assemble(wire.replaced(before, wanted, value)))
    places = [place for place, field in enumerate(before) if field.number == wanted]
    at = places[-1] if places else len(before)
    assert (after[at].number, after[at].value) == (wanted, value)
    assert [field.raw for place, field in enumerate(after) if place != at] == [
        field.raw for place, field in enumerate(before) if place != at
    ]


def test_fixed_numbers_and_fields_of_the_future_keep_their_bytes():
    message = b"\x09" + struct.pack("<Q", 7) + b"\x15" + struct.pack("<I", 9) + encoded(99, b"new")
    found = wire.parse(message)
    assert [field.value for field in found] == [7, 9, b"new"]
    assert wire.assemble(wire.replaced(found, 3, 1)) == message + b"\x18\x01"


@pytest.mark.parametrize(
    "message",
    [b"\x80", b"\xff" * 11, b"\x00\x01", b"\x0a\x05abc", b"\x0a\xff\xff\xff\xff\x0f", b"\x09\x00", b"\x0d\x00", b"\x0b", b"\x0f"],
)
def test_what_is_no_message_is_refused(message):
    with pytest.raises(errors.InputFormat):
        wire.parse(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_are_refused(message):
    try:
        found = wire.parse(message)
    except errors.InputFormat:
        return
    assert wire.assemble(found) == message


def test_repeated_numbers_are_read_packed_and_one_by_one():
    packed = wire.parse(encoded(11, wire.encode_varint(5) + wire.encode_varint(300)))
    single = wire.parse(encoded(11, 5) + encoded(12, 1) + encoded(11, 300))
    assert wire.numbers(packed, 11) == wire.numbers(single, 11) == (5, 300)
    assert wire.number(single, 11) == 300
    assert wire.number(single, 13, 4) == 4
    assert wire.content(packed, 12) is None


HEAD = struct.pack("<II", container.COMMON, container.FILES)


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_an_image_comes_back(entries):
    text = container.assemble(HEAD, entries)
    found = container.parse(text, container.FILES)
    assert found.entries == tuple(entries)
    assert container.assemble(found.head, found.entries) == text


@pytest.mark.parametrize(
    "text",
    [b"", HEAD[:7], struct.pack("<II", 1, container.FILES), struct.pack("<II", container.COMMON, container.PAGEMAP), HEAD + b"\x01",
     HEAD + b"\xff\xff\xff\xff", HEAD + struct.pack("<I", 3) + b"ab"],
)  # fmt: skip
def test_what_is_no_whole_image_is_refused(text):
    with pytest.raises(errors.InputFormat):
        container.parse(text, container.FILES)


def test_only_a_regular_file_is_read_as_an_image(tmp_path):
    import os

    (tmp_path / "link.img").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo.img")
    with pytest.raises(errors.InputMissing):
        container.content(tmp_path / "link.img")
    with pytest.raises(errors.InputMissing):
        container.content(tmp_path / "absent.img")
    with pytest.raises(errors.InputFormat):
        container.content(tmp_path / "fifo.img")
    with open(tmp_path / "huge.img", "wb") as handle:
        handle.truncate(container.MAX_BYTES + 1)
    with pytest.raises(errors.InputFormat):
        container.content(tmp_path / "huge.img")


def test_an_image_is_replaced_with_its_permissions(tmp_path):
    path = tmp_path / "files.img"
    path.write_bytes(b"old")
    path.chmod(0o640)
    container.write(path, container.Image(HEAD, (b"new",)))
    assert container.read(path, container.FILES).entries == (b"new",)
    assert path.stat().st_mode & 0o777 == 0o640


def a_file(kind: int, file_id: int, field: int, inner: bytes) -> bytes:
    return encoded(1, kind) + encoded(2, file_id) + encoded(field, inner)


def test_open_files_are_told_by_their_kind():
    regular = encoded(1, 3) + encoded(2, 0o102001) + encoded(3, 512) + encoded(5, b"") + encoded(6, b"tmp/\xffx\n") + encoded(8, 4096)
    four = b"".join(encoded(number, value) for number, value in zip(range(1, 11), (4, 77, 2, 1, 6, 10, 8080, 0, 2, 128), strict=True))
    four += encoded(11, 0x0100007F) + encoded(12, 0)
    six = b"".join(encoded(number, value) for number, value in zip(range(1, 11), (5, 78, 10, 1, 6, 1, 22, 4000, 2, 0), strict=True))
    six += b"".join(encoded(11, word) for word in (0, 0, 0, 0x01000000)) + b"".join(encoded(12, word) for word in (0, 0, 0, 0x01000000))
    timer = b"".join(
        encoded(number, value) for number, value in [(1, 6), (2, 2), (4, 1), (5, 2), (6, 1), (7, 1), (8, 5), (9, 0), (10, 20_000_000)]
    )
    text = container.assemble(
        HEAD,
        [
            a_file(1, 3, 3, regular),
            a_file(4, 4, 4, four),
            a_file(4, 5, 4, six),
            a_file(17, 6, 12, timer),
            a_file(2, 7, 18, encoded(2, 555) + encoded(3, 1)),
            a_file(11, 8, 19, encoded(2, 9) + encoded(3, 2)),
            a_file(7, 9, 9, b""),
            a_file(40, 10, 33, b"?"),
            encoded(1, 17) + encoded(2, 11),
        ],
    )
    assert openfiles.parse(text) == (
        openfiles.RegularFile(3, "/tmp/\udcffx\n", 0o102001, 512, 4096, None),
        openfiles.Inet(4, 77, 2, 1, 6, "listen", ("127.0.0.1", 8080), ("0.0.0.0", 0)),
        openfiles.Inet(5, 78, 10, 1, 6, "established", ("::1", 22), ("::1", 4000)),
        openfiles.Timer(6, 1, 2, 1, 1_000_000_005, 20_000_000),
        openfiles.Pipe(7, 555, 1),
        openfiles.Terminal(8, 9, 2),
        openfiles.Other(9, "epoll"),
        openfiles.Other(10, "40"),
        openfiles.Other(11, "timerfd"),
    )


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_entries_of_any_bytes_are_read_or_refused(entries):
    try:
        openfiles.parse(container.assemble(HEAD, entries))
    except errors.InputFormat:
        return
