"""How much GPU memory processes have, where NVML tells it and where it does not."""

from __future__ import annotations

import gpu_specimens as gs
from gpu_specimens import GIB
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.cuda import amounts

DEVICES = tuple(gs.device(number, minor=number, free_bytes=(80 - number) * GIB) for number in range(4))


def test_what_nvml_tells_is_believed():
    sizes = amounts.of([7, 8], (gs.use(7, 1), gs.use(8, 1), gs.use(99, 0)), (gs.held(7),), DEVICES)
    assert sizes == {7: {gs.uuid(1): 4 * GIB}, 8: {gs.uuid(1): 4 * GIB}}
    assert amounts.is_told(sizes)
    assert [amounts.at_most(device, sizes) for device in DEVICES] == [0, 8 * GIB, 0, 0]


def test_where_it_tells_of_others_alone_it_is_what_is_in_use_on_the_gpus_that_are_open():
    held = (gs.held(7, "/dev/nvidiactl"), gs.held(7, "/dev/nvidia3"), gs.held(8, "/dev/nvidia2"), gs.held(99, "/dev/nvidia1"))
    sizes = amounts.of([7, 8], (gs.use(99, 0),), held, DEVICES)
    assert sizes == {7: {gs.uuid(3): None}, 8: {gs.uuid(2): None}}
    assert not amounts.is_told(sizes)
    assert [amounts.at_most(device, sizes) for device in DEVICES] == [0, 0, 2 * GIB, 3 * GIB]


def test_a_size_that_is_not_told_is_not_nothing():
    sizes = amounts.of([7], (gs.use(7, 2, memory_bytes=None),), (), DEVICES)
    assert amounts.at_most(DEVICES[2], sizes) == 2 * GIB
    assert not amounts.is_told(sizes)


def test_who_holds_no_gpu_by_number_may_have_memory_on_all():
    assert amounts.of([7], (), (gs.held(7, "/dev/nvidiactl"),), DEVICES) == {7: {device.uuid: None for device in DEVICES}}
    unnumbered = (gs.device(0), gs.device(1))
    assert amounts.of([7], (), (gs.held(7, "/dev/nvidia5"),), unnumbered) == {7: {device.uuid: None for device in unnumbered}}


def test_who_holds_nothing_has_nothing():
    assert amounts.of([7], (), (), DEVICES) == {}


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=6))
def test_at_most_is_never_more_than_is_in_use_when_nothing_is_told(pairs):
    held = tuple(gs.held(pid, f"/dev/nvidia{minor}") for pid, minor in pairs)
    sizes = amounts.of([1, 2, 3], (), held, DEVICES)
    whole = sum(amounts.at_most(device, sizes) for device in DEVICES)
    assert whole == sum(device.memory_bytes - device.free_bytes for device in DEVICES if device.minor in {minor for _, minor in pairs})
