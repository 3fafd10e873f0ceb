"""Records with bytes that are no text survive JSON."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base import documents


class Record(msgspec.Struct, frozen=True):
    words: tuple[str, ...]
    number: int = 3


ANY_TEXT = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@given(st.lists(ANY_TEXT, max_size=4))
def test_whatever_the_bytes_they_come_back(words):
    record = Record(tuple(words))
    content = documents.encode(record)
    assert b"\n" not in content
    assert documents.decode(content, Record) == record


def test_plain_text_is_plain_json():
    assert documents.encode(Record(("é",))) == '{"words":["é"],"number":3}'.encode()


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"words":"\\udcff"}', b'{"words":["\\udcff"', b'{"words":1}', b"[" * 10_000 + b'"\\udc80"']
)
def test_what_is_no_such_document_is_said_to_be_none(content):
    with pytest.raises(msgspec.DecodeError):
        documents.decode(content, Record)
