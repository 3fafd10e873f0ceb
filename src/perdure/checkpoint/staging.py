"""Where images wait to be stored: memory when they fit there with room to spare, else the disk with the most room.

Called by the supervisor before a dump and before a restore. Writing to memory is what keeps the time stopped short; filling it would
make the kernel end the very workload that is to be saved.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from perdure import errors
from perdure.base import units
from perdure.base.proc import descriptors, machine, mappings, mounts, process
from perdure.checkpoint import tree
from perdure.checkpoint.tree import Tree

MEMORY = Path("/dev/shm")  # noqa: S108 - the one file system in memory that every Linux has; what is made there is private
_MARGIN = 0.10
"""Part of the machine's memory, and of a disk, that is left free beside the images."""

_SPARE_BYTES = 64 << 20
"""Room for what images hold beside pages."""

_NETWORKED = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "glusterfs", "beegfs", "gpfs", "9p", "fuse.")
PREFIX = "perdure-"
"""How the name of every folder for images begins."""


class Place(msgspec.Struct, frozen=True):
    """A folder that images could be written to, and what there is room for."""

    folder: Path
    kind: Literal["memory", "disk"]
    room_bytes: int
    """What may be written there, the margin taken off."""
    limit: str
    """What sets the limit, in words."""


def expected_bytes(root: Tree) -> int:
    """Return about how many bytes the images of `root` will hold: what it has in memory or swapped out, and not in files.

    Anonymous memory counts once for each process, as CRIU writes it, also where parent and child still share it; shared memory and open
    files without a name count once for all. Reading it does not stop the tree. Raises `errors.ProcessGone`.
    """
    total = 0
    nameless: dict[tuple[int, int], int] = {}
    for pid in tree.pids(root):
        with contextlib.suppress(errors.ProcessGone):
            usage = mappings.usage(pid)
            total += usage.anonymous_bytes + usage.shared_memory_bytes + usage.swapped_bytes
            for descriptor in descriptors.of(pid):
                if descriptor.is_regular and descriptor.links == 0:
                    nameless[descriptor.device, descriptor.inode] = descriptor.size_bytes
    return total + sum(nameless.values())


def choose(wanted_bytes: int, *, setting: str | None, disks: Iterable[Path]) -> Place:
    """Return where `wanted_bytes` of images are written: `setting` (a folder) when given, else memory, else the roomiest of `disks`.

    Raises `errors.CheckpointRefused` with what there is and what is wanted.
    """
    wanted = wanted_bytes + _SPARE_BYTES
    places = [_disk(Path(setting))] if setting else [_memory(), *sorted(map(_disk, disks), key=_preference)]
    for place in places:
        if place.room_bytes >= wanted:
            return place
    told = "; ".join(f"{place.folder} has room for {units.format_size(max(0, place.room_bytes))} ({place.limit})" for place in places)
    raise errors.CheckpointRefused(
        f"there is no room for {units.format_size(wanted)} of images: {told}",
        hint="free memory or disk, or name a folder with room: PERDURE_STAGING=/scratch",
    )


def make(place: Place) -> Path:
    """Make a new private folder at `place` and return it. Raises `errors.OutputError`."""
    try:
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=place.folder))
    except OSError as error:
        raise errors.OutputError(
            f"cannot make a folder in {place.folder}: {error.strerror}", hint="name another: PERDURE_STAGING=…"
        ) from error


def remove(folder: Path) -> None:
    """Remove a folder that `make` made, with all in it; never what a link in it leads to. One that is gone is no error."""
    if not folder.name.startswith(PREFIX):
        raise AssertionError(f"{folder} was not made for images")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _memory() -> Place:
    memory = machine.memory()
    keep = int(memory.total_bytes * _MARGIN)
    limits = [(memory.available_bytes - keep, "free memory less a tenth of all")]
    with contextlib.suppress(OSError):
        there = os.statvfs(MEMORY)
        limits.append((there.f_bavail * there.f_frsize, f"size of {MEMORY}"))
    if not _is_in_memory(MEMORY):
        limits.append((0, f"{MEMORY} is not in memory"))
    limits.extend(_cgroup_limits())
    room, limit = min(limits)
    return Place(MEMORY, "memory", room, limit)


def _is_in_memory(folder: Path) -> bool:
    mount = mounts.covering(str(folder.resolve()), mounts.of(os.getpid()))
    return mount is not None and mount.kind == "tmpfs"


def _disk(folder: Path) -> Place:
    try:
        there = os.statvfs(folder)
    except OSError as error:
        return Place(folder, "disk", 0, f"{error.strerror}")
    room = there.f_bavail * there.f_frsize - int(there.f_blocks * there.f_frsize * _MARGIN)
    if not os.access(folder, os.W_OK):
        return Place(folder, "disk", 0, "it may not be written to")
    return Place(folder, "disk", room, "free space less a tenth of all")


def _preference(place: Place) -> tuple[bool, int]:
    """Local before networked, then by room."""
    mount = mounts.covering(str(place.folder.resolve()), mounts.of(os.getpid()))
    return mount is not None and mount.kind.startswith(_NETWORKED), -place.room_bytes


def _cgroup_limits() -> list[tuple[int, str]]:
    """Return what the memory controllers above this process leave: tmpfs pages are charged to whoever writes them."""
    found = []
    for controllers, path in process.cgroups(os.getpid()).items():
        if controllers == "":
            folder, most, now = Path("/sys/fs/cgroup"), "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            folder, most, now = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # A limit of any group above binds as well.
        for level in (path, *map(str, Path(path).parents)):
            here = folder / level.lstrip("/")
            with contextlib.suppress(OSError, ValueError):
                limit = int((here / most).read_text("ascii"))
                used = int((here / now).read_text("ascii"))
                room = int(limit * (1 - _MARGIN)) - used + droppable_bytes((here / "memory.stat").read_bytes())
                found.append((room, f"memory limit of cgroup {level}"))
    return found


def droppable_bytes(text: bytes) -> int:
    """Return what the kernel can take back at once of a group's memory, from the text of its memory.stat: files cached and not lately used.

    Of the old controller the total counts, which holds the groups below as well; the new one has no other number.
    """
    found: dict[bytes, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(b" ")
        found[name] = int(value)
    return found.get(b"total_inactive_file", found.get(b"inactive_file", 0))
