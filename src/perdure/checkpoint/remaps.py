"""Hard links that CRIU makes beside files whose name is gone, and leaves behind when it is killed. Called by `dump`.

A stale one makes every later dump of that file fail, since CRIU numbers them from 1 again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from perdure import errors
from perdure.base import acting
from perdure.base.proc import descriptors, mappings
from perdure.model.checkpoint import Owner

_PREFIX = "link_remap."


def sweep(pids: Iterable[int], owner: Owner | None = None) -> tuple[str, ...]:
    """Remove CRIU's links to files that the processes `pids` hold without a name, with the rights of `owner`; returns their paths.

    No dump of these processes may be going on. Only a link to such a very file is touched, whatever else is called so.
    """
    removed = []
    for folder, inodes in _nameless(pids).items():
        with contextlib.suppress(OSError), acting.as_owner(owner):
            removed.extend(_sweep_folder(folder, inodes))
    return tuple(removed)


def _nameless(pids: Iterable[int]) -> dict[str, set[tuple[int, int]]]:
    """Return device and inode of the open and mapped files without a name, by the folder where the name was."""
    found: dict[str, set[tuple[int, int]]] = {}
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            for descriptor in descriptors.of(pid):
                if descriptor.deleted and descriptor.is_path:
                    found.setdefault(os.path.dirname(descriptor.target), set()).add((descriptor.device, descriptor.inode))
            for mapping in mappings.of(pid):
                if mapping.deleted and mapping.is_file and (there := mappings.file_of(pid, mapping)) is not None:
                    found.setdefault(os.path.dirname(mapping.path), set()).add((there.st_dev, there.st_ino))
    return found


def _sweep_folder(folder: str, inodes: set[tuple[int, int]]) -> list[str]:
    removed = []
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in os.listdir(root):
            if not (name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdecimal()):
                continue
            with contextlib.suppress(FileNotFoundError):
                there = os.stat(name, dir_fd=root, follow_symlinks=False)
                if (there.st_dev, there.st_ino) in inodes:
                    os.unlink(name, dir_fd=root)
                    removed.append(os.path.join(folder, name))
    finally:
        os.close(root)
    return removed
