"""Who else could read or replace a store is said, with the path, the reason and what to type."""

from __future__ import annotations

import os

import pytest

from perdure.store.backends import concerns
from perdure.store.backends.local import LocalBackend


@pytest.fixture
def place(tmp_path):
    """A folder below which only what a test does is of concern; what lies above it is the machine's."""
    folder = tmp_path / "private"
    folder.mkdir()
    folder.chmod(0o700)
    return folder


def _codes(store, below):
    return [found.code for found in concerns.find(store) if found.path.startswith(str(below))]


def test_a_store_that_we_made_is_of_no_concern(place):
    LocalBackend(place / "store").create()
    assert _codes(place / "store", place) == []


def test_a_store_that_is_not_there_yet(place):
    assert _codes(place / "store", place) == []
    place.chmod(0o755)
    assert _codes(place / "store", place) == ["store-parent-readable"]


def test_a_parent_that_everybody_may_read(place):
    LocalBackend(place / "store").create()
    place.chmod(0o755)
    (found,) = (found for found in concerns.find(place / "store") if found.path == str(place))
    assert found.code == "store-parent-readable"
    assert "mkdir -m 700" in found.remedy


@pytest.mark.parametrize(
    ("mode", "codes"),
    [
        (0o702, ["store-parent-writable"]),
        (0o1702, []),
        (0o707, ["store-parent-readable", "store-parent-writable"]),
        (0o1777, ["store-parent-readable"]),
    ],
)
def test_a_parent_that_others_may_write_to(place, mode, codes):
    LocalBackend(place / "store").create()
    place.chmod(mode)
    assert _codes(place / "store", place) == codes


def test_a_far_parent_that_others_may_write_to(place):
    LocalBackend(place / "a" / "b" / "store").create()
    place.chmod(0o702)
    assert _codes(place / "a" / "b" / "store", place) == ["store-parent-writable"]


def test_a_store_that_others_may_enter(place):
    store = place / "store"
    LocalBackend(store).create()
    store.chmod(0o750)
    assert _codes(store, place) == ["store-open"]
    store.chmod(0o703)
    assert "write to" in next(found.message for found in concerns.find(store) if found.code == "store-open")


def test_somebody_elses_store(place):
    if os.geteuid() != 0:
        pytest.skip("giving a folder away needs root")
    store = place / "store"
    LocalBackend(store).create()
    os.chown(store, 65534, 65534)
    assert _codes(store, place) == ["store-owner"]
    os.chown(place, 65534, 65534)
    assert _codes(store, place) == ["store-owner", "store-parent-owner"]


def test_a_key_file_that_others_may_read_is_of_concern(tmp_path):
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    for mode, wanted in ((0o600, []), (0o400, []), (0o640, ["store-key-open"]), (0o644, ["store-key-open"]), (0o620, ["store-key-open"])):
        key.chmod(mode)
        assert [found.code for found in concerns.about_key(key)] == wanted
    (found,) = concerns.about_key(key)
    assert found.remedy == f"chmod 600 {key}"
    assert concerns.about_key(tmp_path / "absent") == ()
