"""The backend that fails on purpose does what its schedule says, the same each time."""

from __future__ import annotations

import contextlib

import pytest

from perdure import errors
from perdure.store.backends.faulty import CALLS, Fault, FaultyBackend, Rule, at_random, at_write
from perdure.store.backends.memory import MemoryBackend


@pytest.fixture
def faulty():
    memory = MemoryBackend()
    memory.create()
    memory.put("old/1", b"0123456789")
    return FaultyBackend(memory)


def keys(backend):
    return [info.key for info in backend.list("")]


@pytest.mark.parametrize(
    ("fault", "kind", "happened"),
    [
        (Fault.FULL, errors.StoreFull, None),
        (Fault.READ_ONLY, errors.StoreError, None),
        (Fault.IO_ERROR, errors.StoreUnavailable, None),
        (Fault.TIMEOUT, errors.StoreUnavailable, None),
        (Fault.SERVER_ERROR, errors.StoreUnavailable, None),
        (Fault.PARTIAL, errors.StoreUnavailable, None),
        (Fault.LOST_ANSWER, errors.StoreUnavailable, b"content"),
        (Fault.TORN, errors.StoreUnavailable, b"con"),
    ],
)
@pytest.mark.parametrize("name", ["put", "put_if_absent"])
def test_writes(faulty, fault, kind, happened, name):
    faulty.schedule = at_write(1, fault)
    write = getattr(faulty, name)
    write("new/0", b"good")
    with pytest.raises(kind) as caught:
        write("new/1", b"content")
    assert caught.value.retryable is (fault is not Fault.READ_ONLY)
    write("new/2", b"good")
    inner = faulty.inner
    assert (inner.get("new/1") if "new/1" in keys(inner) else None) == happened
    assert [call.fault for call in faulty.history] == [None, fault, None]


def test_a_full_disk_can_be_deleted_from_and_read(faulty):
    faulty.schedule = (Rule(fault=Fault.FULL, times=None),)
    assert faulty.get("old/1") == b"0123456789"
    faulty.delete("old/1")
    assert keys(faulty) == []
    with pytest.raises(errors.StoreFull):
        faulty.put("a", b"")


def test_reads(faulty):
    for fault in (Fault.IO_ERROR, Fault.TIMEOUT, Fault.SERVER_ERROR, Fault.PARTIAL, Fault.LOST_ANSWER):
        faulty.schedule = (Rule(fault=fault, calls=("get",)),)
        with pytest.raises(errors.StoreUnavailable):
            faulty.get("old/1")
        assert faulty.get("old/1", start=2, length=3) == b"234"
    faulty.schedule = (Rule(fault=Fault.SHORT_READ),)
    assert faulty.get("old/1") == b"01234"


def test_listings(faulty):
    for number in range(3):
        faulty.put(f"new/{number}", b"")
    faulty.schedule = (Rule(fault=Fault.PARTIAL, calls=("list",)),)
    listing = faulty.list("")
    assert [next(listing).key, next(listing).key] == ["new/0", "new/1"]
    with pytest.raises(errors.StoreUnavailable):
        next(listing)
    faulty.schedule = (Rule(fault=Fault.STALE_LISTING, after=1, times=None),)
    now = keys(faulty)
    faulty.put("zz", b"")
    faulty.delete("old/1")
    assert keys(faulty) == now
    assert list(faulty.list("new/")) == []
    faulty.heal()
    assert keys(faulty) == ["new/0", "new/1", "new/2", "zz"]


def test_slowness_is_told_to_whoever_keeps_time():
    slept = []
    faulty = FaultyBackend(MemoryBackend(), (Rule(fault=Fault.SLOW, times=2),), sleep=slept.append, slow_s=7.5)
    faulty.create()
    assert faulty.exists()
    faulty.put("a", b"")
    assert slept == [7.5, 7.5]


def test_rules_choose_by_call_key_and_number(faulty):
    faulty.schedule = (
        Rule(fault=Fault.TIMEOUT, calls=("put",), prefix="a/", after=1, times=2),
        Rule(fault=Fault.FULL, prefix="a/", after=4),
    )
    outcomes = []
    for number in range(6):
        faulty.put("b/x", b"")
        try:
            faulty.put(f"a/{number}", b"")
            outcomes.append("good")
        except errors.StoreFull:
            outcomes.append("full")
        except errors.StoreUnavailable:
            outcomes.append("timeout")
    assert outcomes == ["good", "timeout", "timeout", "good", "full", "good"]
    assert faulty.count() == 12
    assert faulty.count("put") == 12
    assert faulty.count("get", "list") == 0


def test_chance_is_decided_by_the_seed():
    def run(seed):
        faulty = FaultyBackend(MemoryBackend(), at_random(0.3, [Fault.TIMEOUT, Fault.FULL]), seed=seed)
        faulty.inner.create()
        for number in range(400):
            with contextlib.suppress(errors.StoreUnavailable):
                faulty.put(f"k/{number}", b"")
        return [call.fault for call in faulty.history]

    first = run(1)
    assert run(1) == first
    assert run(2) != first
    # 0.3 and 0.7 × 0.3 of 400, within five standard deviations.
    assert abs(first.count(Fault.TIMEOUT) - 120) < 46
    assert abs(first.count(Fault.FULL) - 84) < 41


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_befalls_something(fault):
    assert any(Rule(fault=fault).touches(call, "key") for call in CALLS)
    assert not Rule(fault=fault, prefix="other").touches("put", "key")
