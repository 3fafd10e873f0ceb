"""Which GPU takes the place of which: the map that a restore onto other devices needs. Pure; called by the supervisor and by preflight.

The driver wants every GPU named that it showed when the checkpoint was made, also those that the workload had nothing on, each with a
device of its own here, of the same kind. Whether there is such a map, and what is lacking where there is none, is found here alone.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable

import msgspec

from perdure import errors
from perdure.checkpoint.cuda.contract import Device, Driver
from perdure.model.checkpoint import GpuFact

Map = tuple[tuple[str, str], ...]


class Lack(enum.StrEnum):
    """What keeps GPUs from taking the place of others."""

    MISSING = "missing"
    """There are too few of the kind, or too few that may be used."""
    REMAP = "remap"
    """They are others, and this driver brings GPU state back only to the same ones."""
    MEMORY = "memory"
    """There is one of the kind for each, and too little memory is free on them."""


class Shortage(msgspec.Struct, frozen=True):
    """Why there is no map."""

    lack: Lack
    message: str
    hint: str


def pair(then: tuple[GpuFact, ...], now: tuple[Device, ...], driver: Driver, allowed: frozenset[str] | None = None) -> Map | Shortage:
    """Return old and new UUID of every GPU of `then`; empty where all are the same ones and none has to be mapped.

    GPUs that the workload had memory on get the freest of those that it may use, `allowed` (None: all); one that is here already keeps
    its place if it may. Whenever there is a map at all, one is found: whoever needs most chooses first, and what has room for it has
    room for all that follow.
    """
    if _fit_in_place(then, now, allowed):
        return ()
    missing = _missing(then, now, allowed)
    if missing is not None:
        return missing
    if not driver.has_remap:
        return _kept_in_place(then, now, driver, allowed)
    left = list(now)
    found: dict[str, str] = {}
    for gpu in sorted(then, key=lambda one: (one.used_bytes == 0, -(one.used_bytes or 0), one.uuid)):
        chosen = _choose(gpu, left, allowed)
        if isinstance(chosen, Shortage):
            return chosen
        left.remove(chosen)
        found[gpu.uuid] = chosen.uuid
    return tuple((gpu.uuid, found[gpu.uuid]) for gpu in then)


def plan(then: tuple[GpuFact, ...], now: tuple[Device, ...], driver: Driver, allowed: frozenset[str] | None = None) -> Map:
    """Return what `pair` does, and see that it is complete. Raises `errors.RestoreRefused` where there is none."""
    found = pair(then, now, driver, allowed)
    if isinstance(found, Shortage):
        raise errors.RestoreRefused(found.message, hint=found.hint)
    if found:
        check(found, then, now)
    return found


def check(mapping: Map, then: tuple[GpuFact, ...], now: tuple[Device, ...]) -> None:
    """See that `mapping` names every GPU of `then` once, each with another device of `now`. Raises `errors.RestoreRefused`."""
    old, new = [pair[0] for pair in mapping], [pair[1] for pair in mapping]
    if sorted(old) != sorted(gpu.uuid for gpu in then) or len(set(new)) != len(new) or not set(new) <= {device.uuid for device in now}:
        raise errors.RestoreRefused("the map of GPUs is not complete, or names one twice", hint="see perdure doctor --gpu")


def visible(variable: str | None, devices: tuple[Device, ...]) -> frozenset[str] | None:
    """Return the UUIDs that a value of CUDA_VISIBLE_DEVICES leaves of `devices`, those of whoever reads it; None where it is not set.

    As CUDA reads it: a number counts the devices that are to be seen, and whatever follows one that names none does not count. An empty
    value leaves none.
    """
    if variable is None:
        return None
    seen = sorted(devices, key=lambda one: one.index)
    found: set[str] = set()
    for word in (part.strip() for part in variable.split(",")):
        named = {
            device.uuid
            for number, device in enumerate(seen)
            if (word.isdecimal() and number == int(word)) or (len(word) > 4 and device.uuid.startswith(word))
        }
        if not named:
            break
        found |= named
    return frozenset(found)


def _fit_in_place(then: Iterable[GpuFact], now: Iterable[Device], allowed: frozenset[str] | None) -> bool:
    here = {device.uuid: device for device in now}
    return all(
        gpu.uuid in here
        and not here[gpu.uuid].mig
        and (gpu.used_bytes == 0 or allowed is None or gpu.uuid in allowed)
        and here[gpu.uuid].free_bytes >= (gpu.used_bytes or 0)
        for gpu in then
    )


def _missing(then: tuple[GpuFact, ...], now: tuple[Device, ...], allowed: frozenset[str] | None) -> Shortage | None:
    """Return what is lacking where there are fewer GPUs of a kind than are needed: of all, or of those that may be used."""
    whole = [device for device in now if not device.mig]
    used = [fact for fact in then if fact.used_bytes != 0]
    ours = [device for device in whole if allowed is None or device.uuid in allowed]
    for wanted, there, besides in ((then, whole, ""), (used, ours, " that the workload may use")):
        short = Counter((fact.model, fact.capability) for fact in wanted) - Counter((one.model, one.capability) for one in there)
        for (model, capability), count in short.items():
            others = ", ".join(sorted({device.model for device in whole if device.model != model}))
            return Shortage(
                Lack.MISSING,
                f"{count} {_kind(model, capability)} too few are here{besides}" + (f": there is {others}" if others else ""),
                "see what CUDA_VISIBLE_DEVICES and the job leave of them" if besides else "restore on a machine with the same GPUs",
            )
    return None


def _kept_in_place(then: tuple[GpuFact, ...], now: tuple[Device, ...], driver: Driver, allowed: frozenset[str] | None) -> Shortage:
    """Return what is lacking where each GPU has to keep its place."""
    here = {device.uuid: device for device in now if not device.mig}
    for gpu in then:
        if gpu.uuid in here and (allowed is None or gpu.uuid in allowed) and here[gpu.uuid].free_bytes < (gpu.used_bytes or 0):
            return _too_full(gpu, [here[gpu.uuid]])
    return Shortage(
        Lack.REMAP,
        f"this driver ({driver.version or driver.cuda}) restores only onto the same GPUs",
        "driver 580 or newer restores onto others",
    )


def _choose(gpu: GpuFact, left: list[Device], allowed: frozenset[str] | None) -> Device | Shortage:
    fit = [
        device
        for device in left
        if (device.model, device.capability) == (gpu.model, gpu.capability)
        and not device.mig
        and (gpu.used_bytes == 0 or allowed is None or device.uuid in allowed)
    ]
    enough = [device for device in fit if device.free_bytes >= (gpu.used_bytes or 0)]
    if not enough:
        return _too_full(gpu, fit)
    # One that the workload has nothing on takes the least useful device: the freest are for those that follow.
    return max(enough, key=lambda one: (one.uuid == gpu.uuid, one.free_bytes if gpu.used_bytes != 0 else -one.free_bytes, -one.index))


def _too_full(gpu: GpuFact, fit: list[Device]) -> Shortage:
    most_bytes = max((device.free_bytes for device in fit), default=0)
    return Shortage(
        Lack.MEMORY,
        f"no {_kind(gpu.model, gpu.capability)} has {(gpu.used_bytes or 0) >> 20} MiB free: the freest has {most_bytes >> 20}",
        "see who uses it: nvidia-smi",
    )


def _kind(model: str, capability: str) -> str:
    return f"{model} (compute capability {capability})"
