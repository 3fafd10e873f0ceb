"""What can be asked of the agent: read strictly, whatever is sent."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.agent import asked

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.sampled_from(["what", "type", "name", "user", "pid"]), each, max_size=4),
    max_leaves=12,
)
_KINDS = asked.What.__args__


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
def test_each_kind_goes_there_and_is_read_as_it_was(kind):
    fields = {"name": "train", "checkpoint": "train@1.2", "pid": 4, "start_ticks": 5}
    what = kind(**{name: value for name, value in fields.items() if name in kind.__struct_fields__})
    message = asked.encode(asked.Asked(what=what, user=7))
    assert message[:4] == b"ASK1"
    assert asked.decode(message[8:]) == asked.Asked(what=what, user=7)


@given(st.binary(max_size=300) | _JSON.map(msgspec.json.encode))
def test_whatever_is_sent_is_read_or_refused(payload):
    try:
        found = asked.decode(payload)
    except errors.UsageError:
        return
    assert isinstance(found.what, _KINDS)


@pytest.mark.parametrize(
    "document",
    [
        b'{"what":{"type":"ps"},"uid":0}',
        b'{"what":{"type":"ps","uid":0}}',
        b'{"what":{"type":"status","path":"/etc"}}',
        b'{"what":{"type":"shell"}}',
        b'{"what":{}}',
        b'{"what":{"type":"check","pid":"1"}}',
        b'{"what":{"type":"check","pid":1e3}}',
        b"null",
        b"[" * 100000,
    ],
)
def test_unknown_fields_kinds_and_types_are_refused(document):
    with pytest.raises(errors.UsageError):
        asked.decode(document)


def test_one_that_is_too_long_is_refused_before_it_is_sent():
    with pytest.raises(errors.UsageError, match="bytes"):
        asked.encode(asked.Asked(what=asked.Ps(names=("a" * 64,) * 2000)))
