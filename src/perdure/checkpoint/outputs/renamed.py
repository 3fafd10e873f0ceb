"""Find an output file that has another name by now: the program has finished what it was writing at the checkpoint, and renamed it.

Called before a restore, of a file that is recorded without its content. The program will go on writing to the name of then. What it had
written by then is known to be the beginning of the renamed file only where it went forward: from the front to the end, never back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from perdure import errors
from perdure.base import linkless
from perdure.checkpoint.outputs import rules
from perdure.model.checkpoint import OutputFile


def find(folder: int, name: str, output: OutputFile) -> tuple[int, str] | None:
    """Return a descriptor for reading of the file that was `output`, and which name it has in the folder of descriptor `folder`.

    It is not looked for at `name`. None: it is not there, or what it held at the checkpoint is not known to be its beginning.
    Raises OSError.
    """
    if not rules.goes_forward(output):
        return None
    for other in _names(folder, output.inode):
        if other == name:
            continue
        try:
            found = linkless.open_regular(folder, other)
        except errors.InputError:
            continue
        if _is_continued(found, output):
            return found, other
        os.close(found)
    return None


def is_there(path: str, output: OutputFile) -> bool:
    """Tell whether `find` finds the file that was at the absolute `path`. Raises OSError."""
    try:
        with linkless.parent(path) as (folder, name):
            found = find(folder, name, output)
    except errors.InputError:
        return False
    if found is not None:
        os.close(found[0])
    return found is not None


def _names(folder: int, inode: int) -> Iterator[str]:
    try:
        # A descriptor that only stands for a place cannot be listed.
        listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:
        return
    try:
        with os.scandir(listed) as entries:
            yield from sorted(entry.name for entry in entries if entry.inode() == inode)
    finally:
        os.close(listed)


def _is_continued(found: int, output: OutputFile) -> bool:
    """Tell whether it can only be the recorded file: the numbers of inodes are used again. (Those of devices are other ones elsewhere.)"""
    there = os.fstat(found)
    is_later = there.st_size >= output.size_bytes and there.st_mtime_ns >= output.mtime_ns
    return there.st_ino == output.inode and there.st_uid == output.uid and is_later and rules.ends_alike(found, output)
