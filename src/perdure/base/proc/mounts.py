"""The mounts that a process sees. Called by preflight and by output files: which file system a path lies on."""

from __future__ import annotations

import errno
import os

import msgspec

from perdure import errors
from perdure.base.proc import reading


class Mount(msgspec.Struct, frozen=True):
    """One line of /proc/PID/mountinfo."""

    id: int
    parent: int
    device: int
    """Device number, as `os.makedev` makes it."""
    root: str
    """What of the file system is mounted here."""
    point: str
    options: tuple[str, ...]
    propagation: tuple[str, ...]
    """Optional fields: ``shared:N``, ``master:N``…"""
    kind: str
    """Type of file system: ext4, tmpfs, overlay, nfs4, fuse.sshfs…"""
    source: str
    super_options: tuple[str, ...]


def parse(text: bytes) -> tuple[Mount, ...]:
    """Read the text of /proc/PID/mountinfo. Lines that are no mount are left out."""
    found: list[Mount] = []
    for line in text.split(b"\n"):
        words = os.fsdecode(line).split(" ")
        if len(words) < 10 or "-" not in words[6:]:
            continue
        dash = words.index("-", 6)
        kind, source, super_options = [*words[dash + 1 :], "", "", ""][:3]
        major, _, minor = words[2].partition(":")
        found.append(
            Mount(
                id=int(words[0]),
                parent=int(words[1]),
                device=os.makedev(int(major), int(minor)),
                root=reading.unescaped(words[3]),
                point=reading.unescaped(words[4]),
                options=tuple(words[5].split(",")),
                propagation=tuple(words[6:dash]),
                kind=reading.unescaped(kind),
                source=reading.unescaped(source),
                super_options=tuple(super_options.split(",")),
            )
        )
    return tuple(found)


def of(pid: int) -> tuple[Mount, ...]:
    """Return the mounts that process `pid` sees, in the order they were mounted. Raises `errors.ProcessGone` and `errors.InputDenied`."""
    try:
        return parse(reading.content(pid, "mountinfo"))
    except OSError as error:
        # One that has ended, and only waits to be reaped, sees no mounts any more; so the kernel words it.
        if error.errno == errno.EINVAL:
            raise errors.ProcessGone(f"process {pid} has ended") from error
        raise


def covering(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """Return the mount of `mounts` that the absolute `path` (without links) lies on: of the longest mount points the last; None if none."""
    best: Mount | None = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
