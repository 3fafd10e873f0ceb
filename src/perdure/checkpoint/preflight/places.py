"""Folders where images may wait, and how much room each has. Called by `room` and `restore`."""

from __future__ import annotations

import os

import msgspec

from perdure.base.proc import machine, mounts

_MEMORY_KINDS = frozenset({"tmpfs", "ramfs"})
MARGIN = 0.25
"""Part of the free memory that stays free: the workload goes on, and touches what it had not."""


class Place(msgspec.Struct, frozen=True):
    """A folder, and how many bytes may be written there."""

    path: str
    room_bytes: int
    is_memory: bool


def staging(chosen: str | None) -> tuple[Place, ...]:
    """Return the folders where images may wait: `chosen` alone, or memory and the local disks that are usual for it."""
    candidates = (chosen,) if chosen else ("/dev/shm", "/var/lib/perdure", "/var/tmp", "/tmp")  # noqa: S108
    return tuple(place for path in candidates if (place := _place(path)) is not None)


def _place(path: str) -> Place | None:
    existing = path
    while not os.path.isdir(existing) and existing not in ("/", ""):
        existing = os.path.dirname(existing)
    try:
        there = os.statvfs(existing)
    except OSError:
        return None
    room_bytes = there.f_bavail * there.f_frsize
    mount = mounts.covering(os.path.realpath(existing), mounts.of(os.getpid()))
    is_memory = mount is not None and mount.kind in _MEMORY_KINDS
    if is_memory:
        room_bytes = min(room_bytes, int(machine.memory().available_bytes * (1 - MARGIN)))
    return Place(path, room_bytes, is_memory)
