"""How much GPU memory processes have: what NVML tells, or else at most what is in use on the GPUs that they have open. Pure.

In a container NVML tells of no process, or of PIDs that are the host's. What it does not tell is not nothing. Called by the supervisor,
by `direct` and by preflight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from perdure.checkpoint.cuda.contract import Device, HeldDevice, Use

Sizes = dict[int, dict[str, int | None]]
"""Bytes by PID and UUID; None: it has some, and nobody tells how much."""
_NODE = re.compile(r"/dev/nvidia(\d+)")


def of(pids: Iterable[int], uses: Iterable[Use], held: Iterable[HeldDevice], devices: Iterable[Device]) -> Sizes:
    """Return what the processes `pids` have, as `uses` tell, or where they tell of none, on which GPUs they can have some: those `held`."""
    wanted, told, there = frozenset(pids), Sizes(), tuple(devices)
    for use in uses:
        if use.pid in wanted:
            told.setdefault(use.pid, {})[use.uuid] = use.memory_bytes
    if told:
        return told
    opened: dict[int, set[int]] = {}
    for one in held:
        if one.pid in wanted:
            found = _NODE.search(one.path)
            opened.setdefault(one.pid, set()).update({int(found[1])} if found else ())
    return {pid: {device.uuid: None for device in there if _may_be(device, minors)} for pid, minors in opened.items()}


def _may_be(device: Device, minors: set[int]) -> bool:
    return not minors or device.minor is None or device.minor in minors


def at_most(device: Device, sizes: Mapping[int, Mapping[str, int | None]]) -> int:
    """Return the bytes that all processes together have on `device`, or where that is not told, all that is in use on it."""
    found = [by_uuid[device.uuid] for by_uuid in sizes.values() if device.uuid in by_uuid]
    return device.memory_bytes - device.free_bytes if None in found else sum(size or 0 for size in found)


def is_told(sizes: Mapping[int, Mapping[str, int | None]]) -> bool:
    """Tell whether `sizes` are exact."""
    return all(None not in by_uuid.values() for by_uuid in sizes.values())
