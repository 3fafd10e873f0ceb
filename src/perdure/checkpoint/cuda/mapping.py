"""Which GPU takes the place of which: the map that a restore onto other devices needs. Pure; called by the supervisor and by preflight.

The driver wants every GPU named that it showed when the checkpoint was made, also those that the workload had nothing on, each with a
device of its own here, of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure import errors
from perdure.checkpoint.cuda.contract import Device, Driver
from perdure.model.checkpoint import GpuFact

Map = tuple[tuple[str, str], ...]


def plan(then: tuple[GpuFact, ...], now: tuple[Device, ...], driver: Driver, allowed: frozenset[str] | None = None) -> Map:
    """Return old and new UUID of every GPU of `then`; empty where all are the same ones and none has to be mapped.

    GPUs that the workload had memory on get the freest of those that it may use, `allowed` (None: all); one that is here already keeps
    its place if it may. Raises `errors.RestoreRefused`.
    """
    if _fit_in_place(then, now, allowed):
        return ()
    if not driver.has_remap:
        raise errors.RestoreRefused(
            f"this driver ({driver.version or driver.cuda}) restores only onto the same GPUs",
            hint="driver 580 or newer restores onto others",
        )
    left = list(now)
    found: dict[str, str] = {}
    for gpu in sorted(then, key=lambda one: (not one.used_bytes, -(one.used_bytes or 0), one.uuid)):
        chosen = _choose(gpu, left, allowed if gpu.used_bytes != 0 else None)
        left.remove(chosen)
        found[gpu.uuid] = chosen.uuid
    return tuple((gpu.uuid, found[gpu.uuid]) for gpu in then)


def check(mapping: Map, then: tuple[GpuFact, ...], now: tuple[Device, ...]) -> None:
    """See that `mapping` names every GPU of `then` once, each with another device of `now`. Raises `errors.RestoreRefused`."""
    old, new = [pair[0] for pair in mapping], [pair[1] for pair in mapping]
    if sorted(old) != sorted(gpu.uuid for gpu in then) or len(set(new)) != len(new) or not set(new) <= {device.uuid for device in now}:
        raise errors.RestoreRefused("the map of GPUs is not complete, or names one twice", hint="see perdure doctor --gpu")


def visible(variable: str | None, devices: tuple[Device, ...]) -> frozenset[str] | None:
    """Return the UUIDs that a value of CUDA_VISIBLE_DEVICES leaves; None where it leaves all. What names no device is passed over."""
    if variable is None:
        return None
    found: set[str] = set()
    for word in filter(None, (part.strip() for part in variable.split(","))):
        found |= {
            device.uuid
            for device in devices
            if (word.isdecimal() and device.index == int(word)) or (len(word) > 4 and device.uuid.startswith(word))
        }
    return frozenset(found) if found else None


def _fit_in_place(then: Iterable[GpuFact], now: Iterable[Device], allowed: frozenset[str] | None) -> bool:
    here = {device.uuid: device for device in now}
    return all(
        gpu.uuid in here
        and (gpu.used_bytes == 0 or allowed is None or gpu.uuid in allowed)
        and here[gpu.uuid].free_bytes >= (gpu.used_bytes or 0)
        for gpu in then
    )


def _choose(gpu: GpuFact, left: list[Device], allowed: frozenset[str] | None) -> Device:
    fit = [
        device
        for device in left
        if (device.model, device.capability) == (gpu.model, gpu.capability)
        and not device.mig
        and (allowed is None or device.uuid in allowed)
    ]
    enough = [device for device in fit if device.free_bytes >= (gpu.used_bytes or 0)]
    if not enough:
        raise _refusal(gpu, fit, left)
    # One that the workload has nothing on takes the least useful device: the freest are for those that follow.
    return max(enough, key=lambda one: (one.uuid == gpu.uuid, one.free_bytes if gpu.used_bytes != 0 else -one.free_bytes, -one.index))


def _refusal(gpu: GpuFact, fit: list[Device], left: list[Device]) -> errors.RestoreRefused:
    kind = f"{gpu.model} (compute capability {gpu.capability})"
    if fit:
        most = max(device.free_bytes for device in fit)
        return errors.RestoreRefused(
            f"no {kind} has {(gpu.used_bytes or 0) >> 20} MiB free: the freest has {most >> 20}", hint="see who uses it: nvidia-smi"
        )
    there = ", ".join(sorted({device.model for device in left})) or "no other one"
    return errors.RestoreRefused(
        f"there is no {kind} left for {gpu.uuid}: there is {there}", hint="restore on a machine with the same GPUs"
    )
