"""How much of a place one user may take: what counts, what is refused, and what never is."""

from __future__ import annotations

import os
import threading

import pytest

from perdure import errors
from perdure.store import layout
from perdure.store.backends import bounded
from perdure.store.backends.bounded import Allowance, BoundedBackend
from perdure.store.backends.local import LocalBackend
from perdure.store.backends.memory import MemoryBackend
from perdure.supervisor import quantities


def pack(number: int) -> str:
    return layout.pack_key(bytes([number]) * 32)


@pytest.fixture
def inner():
    place = MemoryBackend()
    place.create()
    return place


def keys(place) -> list[str]:
    return [info.key for info in place.list("")]


def test_a_pack_beyond_the_allowance_is_refused_before_it_is_written(inner):
    place = BoundedBackend(inner, Allowance(most_bytes=100))
    place.put(pack(1), bytes(60))
    place.put_if_absent(pack(2), bytes(40))
    for write in (place.put, place.put_if_absent):
        with pytest.raises(errors.StoreFull, match=r"take 100 B of the 100 B that one user may") as refused:
            write(pack(3), b"x")
        assert "perdure store prune" in refused.value.hint
    assert keys(inner) == [pack(1), pack(2)]
    with pytest.raises(errors.StoreFull):
        place.require_room()


def test_what_is_there_already_counts_whoever_wrote_it(inner):
    inner.put(pack(1), bytes(60))
    inner.put("workloads/job/manifests/00000001.00000001", bytes(30))
    place = BoundedBackend(inner, Allowance(most_bytes=100))
    place.require_room()
    with pytest.raises(errors.StoreFull):
        place.put(pack(2), bytes(11))
    place.put(pack(2), bytes(10))


def test_what_a_workload_that_runs_needs_is_never_refused(inner):
    inner.put(pack(1), bytes(500))
    place = BoundedBackend(inner, Allowance(most_bytes=100))
    records = ("workloads/job/leases/00000001", "workloads/job/ends/00000001", "locks/" + "0" * 32, "perdure.json")
    for key in records:
        place.put(key, bytes(300))
    assert set(records) < set(keys(inner))


def test_others_writing_to_it_are_counted_now_and_then(inner, monkeypatch):
    monkeypatch.setattr(bounded, "RECOUNT_BYTES", 50)
    place = BoundedBackend(inner, Allowance(most_bytes=200))
    place.put(pack(1), bytes(30))
    inner.put(pack(9), bytes(120))
    place.put(pack(2), bytes(30))  # not known yet
    with pytest.raises(errors.StoreFull):
        place.put(pack(3), bytes(30))


def test_room_that_was_made_is_there_again(inner):
    place = BoundedBackend(inner, Allowance(most_bytes=100))
    place.put(pack(1), bytes(100))
    place.delete(pack(1))
    place.require_room()
    place.put(pack(2), bytes(100))


def test_nothing_is_refused_for_what_somebody_removed_meanwhile(inner):
    place = BoundedBackend(inner, Allowance(most_bytes=100))
    place.put(pack(1), bytes(100))
    inner.delete(pack(1))
    place.put(pack(2), bytes(100))
    with pytest.raises(errors.StoreFull):
        place.put(pack(3), b"x")


class Slow(MemoryBackend):
    """One that takes as long as the test wants to write."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def put(self, key, content) -> None:
        self.begun.set()
        assert self.may_go_on.wait(60)
        super().put(key, content)


def test_what_is_being_written_counts_however_late_it_can_be_seen():
    inner = Slow()
    inner.create()
    place = BoundedBackend(inner, Allowance(most_bytes=100))
    first = threading.Thread(target=place.put, args=(pack(1), bytes(60)))
    first.start()
    try:
        assert inner.begun.wait(60)
        with pytest.raises(errors.StoreFull):
            place.put_if_absent(pack(2), bytes(60))
        place.put_if_absent(pack(3), bytes(40))
    finally:
        inner.may_go_on.set()
        first.join()
    with pytest.raises(errors.StoreFull, match=r"take 100 B of the 100 B"):
        place.put_if_absent(pack(4), b"x")
    assert keys(inner) == [pack(1), pack(3)]


def test_a_share_is_of_the_room_that_there_would_be_without_it(tmp_path, monkeypatch):
    """One user of half the room: half of all for the first, a quarter for the second, and there is always something left."""
    room = {"free": 1000}

    class Free:
        f_frsize = 1

        @property
        def f_bavail(self):
            return room["free"]

    monkeypatch.setattr(os, "statvfs", lambda _path: Free())
    for user, may_have in (("1", 500), ("2", 250)):
        place = BoundedBackend(LocalBackend(tmp_path / user), Allowance(share=0.5))
        place.create()
        taken = 0
        while taken < 1000:
            try:
                place.put(pack(taken // 10), bytes(10))
            except errors.StoreFull:
                break
            taken += 10
            room["free"] -= 10
        assert taken == may_have
    assert room["free"] == 250


def test_a_share_of_a_place_that_is_no_folder_bounds_nothing(inner):
    place = BoundedBackend(inner, Allowance(share=0.000001))
    place.put(pack(1), bytes(1000))
    place.require_room()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (None, None),
        ("none", None),
        (" None ", None),
        ("50%", Allowance(share=0.5)),
        ("0.5 %", Allowance(share=0.005)),
        ("100%", Allowance(share=1.0)),
        ("200GiB", Allowance(most_bytes=200 << 30)),
        ("0", Allowance(most_bytes=0)),
    ],
)
def test_the_setting_is_read(text, meant):
    assert quantities.user_quota(text) == meant


@pytest.mark.parametrize("text", ["", "%", "0%", "101%", "-5%", "half", "5%%", "nan%", "1e2%"])
def test_what_is_no_quota_is_refused(text):
    with pytest.raises(errors.QuantityError, match="user-quota"):
        quantities.user_quota(text)
