"""Whether a machine and a store have what a checkpoint needs."""

from __future__ import annotations

import pytest

from perdure.checkpoint.criu.run import Criu
from perdure.checkpoint.preflight import room, stores
from perdure.checkpoint.preflight.plan import Plan


@pytest.mark.parametrize(
    ("version", "tested"),
    [("4.2.1", True), ("4.2.2", True), ("4.2", False), ("4.1.1", False), ("4.3", False), ("5.0.1", False), ("", True)],
)
def test_versions_outside_the_tested_range_are_named(version, tested):
    assert [finding.code for finding in room.version(version)] == ([] if tested else ["host-criu-untested"])


def test_images_that_fit_nowhere_are_named_with_what_there_is(tmp_path):
    assert list(room.images("memory-images", 1 << 20, str(tmp_path), ())) == []
    (finding,) = room.images("memory-images", 1 << 60, str(tmp_path), ())
    assert finding.code == "memory-images"
    assert str(tmp_path) in finding.message
    assert finding.remedy


def test_no_criu_is_named_with_the_reason():
    found = {finding.code: finding for finding in room.check(Plan(criu_refusal="none here", criu_remedy="bring one"), 0)}
    assert found["host-criu"].message == "none here"
    assert found["host-criu"].remedy == "bring one"
    working = Plan(criu=Criu(argv=("criu",), version="4.2.1", origin="named"))
    assert "host-criu" not in {finding.code for finding in room.check(working, 0)}


def test_a_store_with_too_little_room_is_named(tmp_path):
    url = str(tmp_path / "not" / "yet")
    assert list(stores.check(url, 1 << 20)) == []
    (finding,) = stores.check(url, 1 << 60)
    assert (finding.code, finding.path) == ("store-room", url)
    assert not (tmp_path / "not").exists()


def test_a_store_that_cannot_be_opened_is_named():
    (finding,) = stores.check("ftp://somewhere/else", 0)
    assert finding.code == "store-away"
    assert finding.remedy
