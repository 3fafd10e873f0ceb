"""Who else writes to the files that a restore brings back. Called by the supervisor before it changes any of them.

Whoever has a file open for writing goes on where it was, whatever is done to the file: cut or put back under its feet, the file gets holes,
or content of two times. One that only appends loses nothing by a cut, since what is cut off is kept, with its lines. Nobody is a stranger
of whom we are a descendant, such as the shell around us, nor at the files that our own output goes to, where slurmstepd writes too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from perdure import errors
from perdure.base import acting, linkless, text
from perdure.base.proc import holders, process
from perdure.base.proc.holders import File, Writer
from perdure.checkpoint.outputs import bring_back, listing, trees
from perdure.checkpoint.outputs.bring_back import Change
from perdure.checkpoint.preflight.codes import finding
from perdure.model.checkpoint import OutputFile, Owner
from perdure.model.finding import Finding

_Foresee = Callable[[], Change]


class _Candidate(NamedTuple):
    """A file that may be changed."""

    file: File
    stored_as: str | None
    """Name of its copy in the checkpoint; None: it has none, or that is not looked at."""
    foresee: _Foresee


def check(
    outputs: Iterable[OutputFile], contents: Path, owner: Owner | None, *, fetch: Callable[[Collection[str]], None] = lambda _names: None
) -> tuple[Finding, ...]:
    """Return a finding for each file that would be changed while others write to it; readers do not count.

    `outputs` are those of the checkpoint whose files lie in `contents`; they are looked for with the rights of `owner`. Where but the
    list of what was included lies there yet, `fetch` is called with the names of those files that are needed.
    """
    found: dict[str, _Candidate] = {}
    for path, stored_as, foresee in (*_included(contents, owner), *_recorded(outputs, contents, owner)):
        there = None if path in found else _at(path, owner)
        if there is not None:
            found[path] = _Candidate(there, stored_as, foresee)
    own = frozenset(_own_files())
    written = holders.writers(frozenset(one.file for one in found.values()) - own, besides=_own_pids())
    looked_at = {path: one for path, one in found.items() if one.file in written}
    fetch([one.stored_as for one in looked_at.values() if one.stored_as is not None])
    return tuple(told for path, one in looked_at.items() if (told := _judge(path, _foreseen(one.foresee), written[one.file])) is not None)


def _judge(path: str, change: Change, writers: tuple[Writer, ...]) -> Finding | None:
    if change is Change.NONE:
        return None
    at_will = [writer for writer in writers if not writer.is_append]
    first = (at_will or writers)[0]
    more = f", and {len(writers) - 1} more have" if len(writers) > 1 else ""
    if change is Change.CUT and not at_will:
        message = (
            f"process {first.pid} ({first.command}) appends to it, too: what all wrote since the checkpoint is cut off and kept beside"
        )
        return finding("restore-output-shared", path, message, pid=first.pid, path=path)
    message = f"process {first.pid} ({first.command}) has it open for writing{more}, and it would have to be changed"
    return finding("restore-output-in-use", path, message, pid=first.pid, path=path)


def _included(contents: Path, owner: Owner | None) -> Iterator[tuple[str, str | None, _Foresee]]:
    for entry in listing.read(contents):

        def foresee(entry: listing.Entry = entry) -> Change:
            is_left = entry.kind == "file" and trees.is_as_included(entry, contents, owner)
            return Change.NONE if is_left else Change.REWRITE

        yield entry.path, entry.stored_as, foresee


def _recorded(outputs: Iterable[OutputFile], contents: Path, owner: Owner | None) -> Iterator[tuple[str, str | None, _Foresee]]:
    for output in outputs:

        def foresee(output: OutputFile = output) -> Change:
            return bring_back.change(output, contents=contents, owner=owner)

        yield text.original(output.path), output.stored_as, foresee
        for path in output.without:
            yield text.original(path), None, lambda: Change.REWRITE  # what came after the checkpoint is moved away


def _foreseen(foresee: _Foresee) -> Change:
    try:
        return foresee()
    except (OSError, errors.PerdureError):
        return Change.NONE  # bringing it back fails in the same way, and says why


def _at(path: str, owner: Owner | None) -> File | None:
    """Return the regular file that lies at `path`."""
    with contextlib.suppress(OSError, errors.InputError), acting.as_owner(owner), linkless.parent(path) as (folder, name):
        there = linkless.status(folder, name)
        if there is not None and stat.S_ISREG(there.st_mode):
            return there.st_dev, there.st_ino
    return None


def _own_files() -> Iterator[File]:
    """Yield what our own output goes to: `handback` brings that back, and Slurm and the shell write there by right."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            there = os.fstat(descriptor)
            yield there.st_dev, there.st_ino


def _own_pids() -> frozenset[int]:
    """Return our own PID and those of the processes that we descend from."""
    found = {os.getpid()}
    pid = os.getpid()
    with contextlib.suppress(errors.ProcessGone):
        while (pid := process.stat(pid).parent) and pid not in found:
            found.add(pid)
    return frozenset(found)
