"""The files of a directory store in the order of their keys. Called by `local`."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator

from perdure.store.backends import contract, places
from perdure.store.backends.contract import ObjectInfo

_NFS_REMOVED = re.compile(r"\.nfs[0-9a-f]{16,}")
"""What an NFS client calls a file that was removed while it was open."""


def walk(root: int, prefix: str) -> Iterator[ObjectInfo]:
    """Yield the objects below `prefix`, which is empty or ends in a slash, in the order of their keys.

    Names that no object can have (temporary files, a file system's ``lost+found``) are passed over. Raises `errors.StoreError` for a link
    or special file under a name that an object could have, `OSError`.
    """
    parts = prefix.split("/")[:-1]
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(places.directory(root, parts))
        except FileNotFoundError:
            return
        except NotADirectoryError:
            places.refuse_links(root, parts)
            return
        yield from _walk(directory, prefix)


def _walk(directory: int, prefix: str) -> Iterator[ObjectInfo]:
    for name, found in _entries(directory, prefix):
        if stat.S_ISDIR(found.st_mode):
            with places.directory(directory, [name]) as below:
                yield from _walk(below, f"{prefix}{name}/")
        else:
            yield ObjectInfo(prefix + name, found.st_size)


def _entries(directory: int, prefix: str) -> list[tuple[str, os.stat_result]]:
    """Return a folder's names and what they are. A folder is sorted as its keys are, with the slash: ``a-b`` comes before ``a/b``."""
    entries: list[tuple[str, os.stat_result]] = []
    with os.scandir(directory) as found:
        for entry in found:
            if contract.KEY.fullmatch(entry.name) is None or _NFS_REMOVED.fullmatch(entry.name):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed a moment ago
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise places.not_an_object(prefix + entry.name)
            entries.append((entry.name, status))
    return sorted(entries, key=lambda item: item[0] + "/" if stat.S_ISDIR(item[1].st_mode) else item[0])
