"""Which GPU takes the place of which."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure import errors
from perdure.checkpoint.cuda import mapping
from perdure.checkpoint.cuda.contract import Device, Driver
from perdure.model.checkpoint import GpuFact

NEW = Driver(version="580.1", cuda="13.0", has_checkpoint=True, has_remap=True, has_custom_storage=False)
OLD = Driver(version="570.1", cuda="12.8", has_checkpoint=True, has_remap=False, has_custom_storage=False)


def then(uuid: str, used: int | None = 0, model: str = "H100") -> GpuFact:
    return GpuFact(uuid=uuid, model=model, memory_bytes=80, used_bytes=used, capability="9.0")


def now(uuid: str, free: int = 80, model: str = "H100", index: int = 0, mig: bool = False) -> Device:
    return Device(uuid=uuid, index=index, model=model, memory_bytes=80, free_bytes=free, capability="9.0", mig=mig)


def test_the_same_gpus_need_no_map():
    assert mapping.plan((then("a", 50), then("b")), (now("a"), now("b"), now("c")), OLD) == ()


def test_a_gpu_that_is_taken_by_somebody_else_is_left_for_a_free_one():
    assert mapping.plan((then("a", 50),), (now("a", free=10), now("b")), NEW) == (("a", "b"),)


def test_an_old_driver_keeps_to_the_same_gpus():
    with pytest.raises(errors.RestoreRefused, match="only onto the same GPUs"):
        mapping.plan((then("a", 50),), (now("b"),), OLD)


def test_what_the_workload_used_gets_what_it_may_use_and_the_rest_whatever_is_left():
    found = mapping.plan((then("a"), then("b", 50)), (now("c", free=80), now("d", free=60)), NEW, frozenset({"d"}))
    assert found == (("a", "c"), ("b", "d"))


def test_the_unused_do_not_take_what_the_used_need():
    found = mapping.plan((then("a"), then("b", 50), then("c", 70)), (now("x", 75), now("y", 0), now("z", 60)), NEW)
    assert dict(found) == {"a": "y", "b": "z", "c": "x"}


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ((now("x", model="A100"), now("y", model="A100")), "2 H100 .* too few are here: there is A100"),
        ((now("x", free=80 << 20),), "1 H100 .* too few are here$"),
        ((now("x", free=10), now("y", free=20)), "MiB free"),
        ((now("x", mig=True), now("y", mig=True)), "2 H100 .* too few"),
    ],
)
def test_what_is_lacking_is_said(devices, said):
    with pytest.raises(errors.RestoreRefused, match=said):
        mapping.plan((then("a", 50 << 20), then("b")), devices, NEW)


@given(
    used=st.lists(st.one_of(st.none(), st.integers(0, 80)), min_size=1, max_size=6),
    free=st.lists(st.integers(0, 80), min_size=0, max_size=8),
    shared=st.integers(0, 6),
)
def test_a_map_is_complete_and_gives_no_device_twice(used, free, shared):
    facts = tuple(then(f"g{index}", size) for index, size in enumerate(used))
    devices = tuple(now(f"g{index}" if index < shared else f"h{index}", size, index=index) for index, size in enumerate(free))
    try:
        planned = mapping.plan(facts, devices, NEW)
    except errors.RestoreRefused:
        return
    if planned:
        mapping.check(planned, facts, devices)
    room = {device.uuid: device.free_bytes for device in devices}
    onto = dict(planned)
    assert all(room[onto.get(fact.uuid, fact.uuid)] >= (fact.used_bytes or 0) for fact in facts)


sizes = st.one_of(st.none(), st.just(0), st.integers(0, 4))


@example(used=[0, None], free=[4, 4], allowed=[True, False])
@given(
    used=st.lists(sizes, min_size=1, max_size=4), free=st.lists(st.integers(0, 4), max_size=5), allowed=st.lists(st.booleans(), max_size=5)
)
def test_whenever_there_is_a_map_it_is_found(used, free, allowed):
    """Held against all maps there are."""
    facts = tuple(then(f"g{index}", size) for index, size in enumerate(used))
    devices = tuple(now(f"h{index}", size, index=index) for index, size in enumerate(free))
    may = frozenset(device.uuid for device, is_ours in zip(devices, allowed, strict=False) if is_ours) if allowed else None

    def fits(fact: GpuFact, device: Device) -> bool:
        return fact.used_bytes == 0 or ((may is None or device.uuid in may) and device.free_bytes >= (fact.used_bytes or 0))

    exists = any(all(map(fits, facts, chosen)) for chosen in permutations(devices, len(facts)))
    found = mapping.pair(facts, devices, NEW, may)
    assert exists is not isinstance(found, mapping.Shortage)
    assert exists or found.lack is (mapping.Lack.MEMORY if _are_enough(facts, devices, may) else mapping.Lack.MISSING)


def _are_enough(facts, devices, may) -> bool:
    ours = [device for device in devices if may is None or device.uuid in may]
    return len(devices) >= len(facts) and len(ours) >= sum(fact.used_bytes != 0 for fact in facts)


@given(used=st.lists(sizes, min_size=1, max_size=3), free=st.lists(st.integers(0, 4), max_size=4), shared=st.integers(0, 3))
def test_a_driver_that_cannot_map_gives_no_map(used, free, shared):
    facts = tuple(then(f"g{index}", size) for index, size in enumerate(used))
    devices = tuple(now(f"g{index}" if index < shared else f"h{index}", size, index=index) for index, size in enumerate(free))
    found = mapping.pair(facts, devices, OLD)
    assert found == () or isinstance(found, mapping.Shortage)
    if found == ():
        assert mapping.pair(facts, devices, NEW) == ()


def test_too_little_memory_on_the_very_gpu_is_called_so_by_an_old_driver_too():
    found = mapping.pair((then("a", 50 << 20),), (now("a", free=1 << 20), now("b", free=80 << 20)), OLD)
    assert (found.lack, found.message.endswith("the freest has 1")) == (mapping.Lack.MEMORY, True)


@pytest.mark.parametrize("wrong", [(("a", "x"),), (("a", "x"), ("b", "x")), (("a", "x"), ("b", "nowhere")), (("a", "x"), ("a", "y"))])
def test_a_map_that_is_not_whole_is_refused(wrong):
    with pytest.raises(errors.RestoreRefused):
        mapping.check(wrong, (then("a"), then("b")), (now("x"), now("y")))


def test_visible_devices_are_named_by_number_or_by_uuid():
    devices = (now("GPU-aaaa-1", index=0), now("GPU-bbbb-2", index=1))
    assert mapping.visible(None, devices) is None
    assert mapping.visible("1", devices) == {"GPU-bbbb-2"}
    assert mapping.visible("GPU-aaaa", devices) == {"GPU-aaaa-1"}
    assert mapping.visible("0, 1", devices) == {"GPU-aaaa-1", "GPU-bbbb-2"}


@pytest.mark.parametrize("value", ["", " ", "-1", "NoDevFiles", "2", "GPU-cccc", "-1,0", "MIG-GPU-aaaa-1/0/0"])
def test_what_names_no_device_leaves_none(value):
    assert mapping.visible(value, (now("GPU-aaaa-1", index=0), now("GPU-bbbb-2", index=1))) == frozenset()


def test_visible_devices_count_up_to_the_first_that_is_none():
    devices = (now("GPU-aaaa-1", index=0), now("GPU-bbbb-2", index=1))
    assert mapping.visible("1,7,0", devices) == {"GPU-bbbb-2"}


def test_numbers_count_the_devices_that_are_to_be_seen():
    """In a job that has the machine's fourth GPU alone, it is number 0."""
    assert mapping.visible("0", (now("GPU-dddd-4", index=3),)) == {"GPU-dddd-4"}
