"""A small disk of a run's own that can be filled: a tmpfs on an empty folder while the run lasts. Called by `conduct` and `faults`."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path

from perdure import errors
from perdure.base.proc import mounts

SIZE_BYTES = 64 << 20
_SOURCE = "perdure-eval"
_FILLER = ".perdure-disk-full"
_BLOCK = b"\0" * (1 << 20)
_MS_NOSUID, _MS_NODEV = 0x2, 0x4
_MNT_DETACH, _UMOUNT_NOFOLLOW = 0x2, 0x8

_libc = ctypes.CDLL(None, use_errno=True)


class Disk:
    """A disk mounted on `place`, which is made where it is missing and must be empty. Needs root.

    Raises `errors.EnvironmentUnfit` when it cannot be mounted, and `errors.UsageError` for a folder that holds something.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        try:
            place.mkdir(0o700, exist_ok=True)
            if place.is_symlink() or any(place.iterdir()):
                raise errors.UsageError(
                    f"{place} is not an empty folder: a disk cannot be mounted on it", hint="faults.disk_path names an empty folder"
                )
        except OSError as error:
            raise errors.OutputError(f"cannot make {place}: {error.strerror}") from error
        options = f"size={SIZE_BYTES},mode=0700".encode()
        if _libc.mount(_SOURCE.encode(), os.fsencode(place), b"tmpfs", _MS_NOSUID | _MS_NODEV, options) != 0:
            raise errors.EnvironmentUnfit(
                f"cannot mount a disk on {place}: {os.strerror(ctypes.get_errno())}",
                hint="run as root, or take disk-full out of faults.kinds",
            )

    def fill(self) -> int:
        """Write until there is no room left and return the bytes that it took. Raises `OSError` for any other failure."""
        written = 0
        with open(self.place / _FILLER, "wb", buffering=0) as handle:
            try:
                while True:
                    written += handle.write(_BLOCK)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
        return written

    def free(self) -> None:
        """Make room again, as an operator would."""
        with contextlib.suppress(FileNotFoundError):
            (self.place / _FILLER).unlink()

    def close(self) -> None:
        """Unmount it."""
        unmount(self.place)


def unmount(place: Path) -> None:
    """Unmount what a run mounted on `place`; nothing happens where nothing of ours is mounted. Raises `errors.EnvironmentUnfit`."""
    where = os.path.realpath(place)
    for mount in mounts.of(os.getpid()):
        if mount.point == where and mount.kind == "tmpfs" and mount.source == _SOURCE:
            if _libc.umount2(os.fsencode(where), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
                raise errors.EnvironmentUnfit(f"cannot unmount {where}: {os.strerror(ctypes.get_errno())}", hint=f"umount {where}")
            return
