"""Bounded reading below /proc/PID. The one place that tells a process that is gone from one that may not be looked at."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from perdure import errors

MAX_BYTES = 64 << 20
"""Longest file that is read: the maps of a process at the usual limit of 65,530 mappings are 10 MiB."""

_STEP_BYTES = 64 << 10
_OCTAL = re.compile(r"\\([0-3][0-7]{2})")


@contextlib.contextmanager
def of_process(pid: int) -> Iterator[None]:
    """Turn what the system says of a missing process into `errors.ProcessGone`, and of one out of reach into `errors.InputDenied`."""
    try:
        yield
    except (FileNotFoundError, ProcessLookupError) as error:
        raise errors.ProcessGone(f"process {pid} is not there, or not any more") from error
    except PermissionError as error:
        raise errors.InputDenied(
            f"may not look into process {pid}", hint="run this as root, or as the user that owns the process"
        ) from error


def content(pid: int, name: str, *, limit_bytes: int = MAX_BYTES) -> bytes:
    """Return /proc/`pid`/`name`, cut at `limit_bytes`. Raises `errors.ProcessGone` and `errors.InputDenied`."""
    with of_process(pid):
        return _content(f"/proc/{pid}/{name}", limit_bytes)


def _content(path: str, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        left = limit_bytes
        # For a sysctl the kernel allocates as much as is asked for, and refuses much.
        while left and (part := os.read(descriptor, min(left, _STEP_BYTES))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def link(pid: int, name: str) -> str:
    """Return where the link /proc/`pid`/`name` points, as the kernel words it. Raises `errors.ProcessGone` and `errors.InputDenied`."""
    with of_process(pid):
        return os.readlink(f"/proc/{pid}/{name}")


def system(path: str) -> bytes:
    """Return the file `path` below /proc that belongs to no process, cut at `MAX_BYTES`. Raises `errors.EnvironmentUnfit`."""
    try:
        return _content(f"/proc/{path}", MAX_BYTES)
    except OSError as error:
        raise errors.EnvironmentUnfit(
            f"cannot read /proc/{path}: {error.strerror}", hint="mount /proc: mount -t proc proc /proc"
        ) from error


def unescaped(text: str) -> str:
    """Undo the kernel's octal escapes (``\\040`` for a space), as mountinfo writes them: there a backslash itself is always escaped."""
    return _OCTAL.sub(lambda found: os.fsdecode(bytes([int(found[1], 8)])), text)


def fields(text: bytes) -> dict[str, str]:
    """Return the lines ``Name:<blank>value`` of `text` by name, values stripped; of a repeated name the first."""
    found: dict[str, str] = {}
    for line in text.split(b"\n"):
        name, colon, value = line.partition(b":")
        if colon:
            found.setdefault(os.fsdecode(name.strip()), os.fsdecode(value.strip()))
    return found


def root_for(pid: int) -> str:
    """Return the prefix under which the paths that /proc shows for process `pid` are found from here.

    It is empty when the process shares our mount namespace, and ``/proc/PID/root`` when it has its own.
    """
    return "" if link(pid, "ns/mnt") == os.readlink("/proc/self/ns/mnt") else f"/proc/{pid}/root"


DELETED = " (deleted)"


def told_apart(shown: str, root: str, device: int, inode: int) -> tuple[str, bool]:
    """Return the path and whether it is deleted, for a file that the kernel shows as `shown`.

    The kernel adds `` (deleted)`` to an unlinked name, and a file may really be called so. It is, when that name leads to the very file:
    `device` and `inode` are its numbers as stat(2) gives them, `root` is what `root_for` returned.
    """
    if not shown.endswith(DELETED):
        return shown, False
    try:
        there = os.stat(root + shown, follow_symlinks=False)
    except (OSError, ValueError):
        return shown.removesuffix(DELETED), True
    if (there.st_dev, there.st_ino) == (device, inode):
        return shown, False
    return shown.removesuffix(DELETED), True
