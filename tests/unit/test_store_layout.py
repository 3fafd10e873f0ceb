"""Keys of objects: each says what it names, and nothing else looks like one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model.checkpoint import NAME, CheckpointId
from perdure.store import layout, names
from perdure.store.backends.contract import KEY

NAMES = st.from_regex(NAME, fullmatch=True)
NUMBERS = st.integers(1, 999_999_999)
HEX = "0123456789abcdef" * 4


@given(NAMES, NUMBERS, NUMBERS)
def test_keys_say_what_they_name(name: str, epoch: int, sequence: int) -> None:
    one = CheckpointId(name, epoch, sequence)
    assert layout.checkpoint_of(layout.manifest_key(one)) == one
    assert layout.checkpoint_of(layout.pin_key(one)) == one
    assert layout.kind_of(layout.manifest_key(one)) is layout.Kind.MANIFEST
    assert layout.kind_of(layout.pin_key(one)) is layout.Kind.PIN
    of_life = {
        layout.Kind.LIFE: layout.life_key(name, epoch),
        layout.Kind.LEASE: layout.lease_key(name, epoch),
        layout.Kind.END: layout.end_key(name, epoch),
    }
    for kind, key in of_life.items():
        assert (layout.kind_of(key), layout.epoch_of(key), layout.workload_of(key)) == (kind, epoch, name)
    for key in (*of_life.values(), layout.manifest_key(one), layout.pin_key(one)):
        assert KEY.fullmatch(key)
        assert key.startswith(layout.WORKLOADS)


def test_packs_are_found_by_their_names() -> None:
    key = layout.pack_key(bytes.fromhex(HEX))
    assert key == f"packs/01/{HEX}"
    assert layout.pack_name(key) == bytes.fromhex(HEX)
    assert layout.kind_of(key) is layout.Kind.PACK
    assert layout.kind_of("perdure.json") is layout.Kind.CONFIG
    assert layout.kind_of(layout.lock_key("0" * 32)) is layout.Kind.LOCK


@pytest.mark.parametrize(
    "key",
    [
        "",
        "perdure.json2",
        f"packs/02/{HEX}",
        f"packs/01/{HEX}0",
        "workloads/a/manifests/00000001",
        "workloads/a/manifests/1.1",
        "workloads/../manifests/00000001.00000001",
        "workloads/a/lives/00000001.tmp",
        "locks/x",
    ],
)
def test_what_is_no_key_is_none_of_ours(key: str) -> None:
    assert layout.kind_of(key) is None
    assert layout.pack_name(key) is None
    assert layout.checkpoint_of(key) is None


@pytest.mark.parametrize("name", ["a", "images/core-2.img", "files/3", "a/..b/c.", "ä\udcff"])
def test_names_that_stay_below_a_folder(name: str) -> None:
    assert names.is_safe(name)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b", "x" * 256, "a/" * 3000 + "b", "\ud800"])
def test_names_that_would_not(name: str) -> None:
    assert not names.is_safe(name)
