"""Files that came into an included folder after the checkpoint: named, and left where they are. Called by `trees`.

Nobody can tell whose they are: the workload's, made again by the next life and appended to twice, or those of somebody else who writes
there too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator

from perdure import errors
from perdure.base import acting, linkless
from perdure.checkpoint.outputs import aside, ledgers
from perdure.checkpoint.outputs.listing import Entry
from perdure.checkpoint.outputs.rules import finding
from perdure.model.checkpoint import Owner
from perdure.model.finding import Finding, Severity


def look(folders: Iterable[Entry], known: frozenset[str], owner: Owner | None) -> Iterator[Finding]:
    """Name the files that lie in `folders` and are not among the paths `known`, with the rights of `owner`: one warning for all."""
    found = [path for entry in folders for path in _in(entry.path, known, owner)]
    if found:
        more = f", as {len(found) - 1} more do" if len(found) > 1 else ""
        message = f"came after the checkpoint and stays{more}: what the workload appends to it may stand there twice"
        yield finding("restore-output-later", Severity.WARNING, found[0], message, remedy="move it away before the workload goes on")


def _in(path: str, known: frozenset[str], owner: Owner | None) -> Iterator[str]:
    try:
        with acting.as_owner(owner), linkless.parent(path) as (folder, name):
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                below = [each for each in sorted(os.listdir(descriptor)) if f"{path}/{each}" not in known]
                mine = [each for each in below if _can_be_appended_to(descriptor, each)]
            finally:
                os.close(descriptor)
    except (OSError, errors.InputError):
        return
    yield from (f"{path}/{each}" for each in mine)


def _can_be_appended_to(folder: int, name: str) -> bool:
    there = linkless.status(folder, name)
    if there is None or not stat.S_ISREG(there.st_mode) or aside.is_tail(name) or ledgers.is_journal(folder, name):
        return False
    with contextlib.suppress(errors.InputError):
        descriptor = linkless.open_regular(folder, name)
        try:
            return not ledgers.is_ledger(descriptor)
        finally:
            os.close(descriptor)
    return False
