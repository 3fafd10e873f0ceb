"""Untrusted text: what is stored comes back, and what is shown cannot move a cursor."""

from __future__ import annotations

import json
import os

from hypothesis import given
from hypothesis import strategies as st

from perdure.base import text


@given(st.binary().filter(lambda name: b"\0" not in name))
def test_any_name_can_be_stored_as_json_and_comes_back(name):
    stored = text.storable(os.fsdecode(name))
    stored.encode("utf-8")
    assert os.fsencode(text.original(json.loads(json.dumps(stored)))) == name


@given(st.text())
def test_what_is_shown_is_printable(shown):
    assert text.printable(shown).isprintable()
