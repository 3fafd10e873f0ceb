"""Rules about bringing GPU state back on this machine. Pure. Called by `restore`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perdure.base import units
from perdure.checkpoint.cuda.contract import Device
from perdure.checkpoint.host import gpu_drivers as drivers
from perdure.checkpoint.host.gpu import Gpus
from perdure.checkpoint.preflight import gpu_machine
from perdure.checkpoint.preflight.codes import finding
from perdure.model.checkpoint import GpuFact, Manifest
from perdure.model.finding import Finding


class Pair(msgspec.Struct, frozen=True):
    """A GPU of the checkpoint, and the one here that would stand in for it; None: none is left of its kind."""

    before: GpuFact
    here: Device | None


def check(manifest: Manifest, gpus: Gpus) -> Iterator[Finding]:
    """Yield what would prevent bringing back the GPU state of `manifest`, or make it other than it was."""
    if not manifest.cuda_processes:
        return
    pairs = pair(manifest.gpus, gpus.devices)
    taken = [one.here.uuid for one in pairs if one.here is not None and one.before.used_bytes != 0]
    yield from gpu_machine.unfit(gpus, taken)
    if not gpus.driver:
        return
    if manifest.gpu_driver is not None and manifest.gpu_driver != gpus.version:
        message = f"driver {manifest.gpu_driver} made the checkpoint, {gpus.version} is here"
        yield finding(
            "restore-gpu-driver",
            f"driver {gpus.version}",
            message,
            flag=manifest.gpu_driver,
            remedy=f"install driver {manifest.gpu_driver}",
        )
    if gpus.devices:
        yield from _missing(pairs, gpus)
    yield from _moved(pairs, gpus)
    for one in pairs:
        yield from _room(one)


def pair(before: tuple[GpuFact, ...], here: tuple[Device, ...]) -> tuple[Pair, ...]:
    """Return for each GPU of `before` one of `here`: the very same where it is, else one of the same model and size.

    The most used are served first, with what is freest; no device is given twice. The result has the order of `before`.
    """
    left = {device.uuid: device for device in here}
    found: dict[str, Device] = {}
    for fact in before:
        same = left.get(fact.uuid)
        if same is not None and _is_alike(fact, same):
            found[fact.uuid] = left.pop(fact.uuid)
    for fact in sorted(before, key=lambda fact: fact.used_bytes if fact.used_bytes is not None else fact.memory_bytes, reverse=True):
        alike = [device for device in left.values() if _is_alike(fact, device)]
        if fact.uuid not in found and alike:
            best = max(alike, key=lambda device: (device.free_bytes, -device.index))
            found[fact.uuid] = left.pop(best.uuid)
    return tuple(Pair(fact, found.get(fact.uuid)) for fact in before)


def _is_alike(fact: GpuFact, device: Device) -> bool:
    return (fact.model, fact.memory_bytes) == (device.model, device.memory_bytes)


def _missing(pairs: tuple[Pair, ...], gpus: Gpus) -> Iterator[Finding]:
    lacking: dict[tuple[str, int], int] = {}
    for one in pairs:
        if one.here is None:
            kind = (one.before.model, one.before.memory_bytes)
            lacking[kind] = lacking.get(kind, 0) + 1
    there = ", ".join(sorted({f"{device.model} with {units.format_size(device.memory_bytes)}" for device in gpus.devices}))
    for (model, memory_bytes), count in lacking.items():
        wanted = sum((one.before.model, one.before.memory_bytes) == (model, memory_bytes) for one in pairs)
        message = f"{wanted} with {units.format_size(memory_bytes)} were there, {wanted - count} are here; here are {there}"
        yield finding("restore-gpu-missing", model, message, flag=model)


def _moved(pairs: tuple[Pair, ...], gpus: Gpus) -> Iterator[Finding]:
    moved = [one for one in pairs if one.here is not None and one.here.uuid != one.before.uuid]
    if not moved:
        return
    first = moved[0]
    words = f"{first.before.uuid} becomes {first.here.uuid if first.here else ''}" + (f", and {len(moved) - 1} more" if moved[1:] else "")
    able = drivers.can(drivers.Ability.REMAP, drivers.version(gpus.version), gpus.cuda)
    yield finding("restore-gpu-other" if able else "restore-gpu-remap", first.before.model, words, flag=first.before.uuid)


def _room(one: Pair) -> Iterator[Finding]:
    if one.here is not None and one.before.used_bytes is not None and one.here.free_bytes < one.before.used_bytes:
        wanted, free = units.format_size(one.before.used_bytes), units.format_size(one.here.free_bytes)
        yield finding(
            "restore-gpu-memory", gpu_machine.name(one.here), f"the workload had {wanted} on it, {free} is free", flag=one.here.uuid
        )
