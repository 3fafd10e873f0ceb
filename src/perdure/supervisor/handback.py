"""Our own stdout and stderr, where they are files: brought back to the checkpoint as the workload's own files are. Called by `start`.

``perdure run … > out`` again finds a file that the shell emptied: what was written until the checkpoint is put back. ``>> out`` finds one
that also holds what was written after the checkpoint: it is cut, and what goes is kept beside it. What is put back comes from, and is
still in, the console's log. The file of a job of a scheduler is treated the same, whether the scheduler emptied it or wrote on.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import acting, linkless, text, units
from perdure.checkpoint.outputs import aside
from perdure.model.checkpoint import Owner
from perdure.supervisor import log, splice
from perdure.supervisor.record import Target
from perdure.supervisor.splice import Match
from perdure.supervisor.wiring import Plan


def streams(plan: Plan) -> dict[int, frozenset[int]]:
    """Return which streams of the log each of our descriptors is given."""
    if not plan.passed_on or plan.terminal:
        return {}
    return {1: frozenset({1, 2})} if plan.one_output else {1: frozenset({1}), 2: frozenset({2})}


def targets(plan: Plan) -> tuple[Target, ...]:
    """Return what our descriptors lead to at the start of a workload, as far as those are regular files."""
    found = (_target(descriptor) for descriptor in streams(plan))
    return tuple(target for target in found if target is not None)


class _Held(msgspec.Struct, frozen=True):
    """A file, what was found in it, and the life that it is brought back for."""

    reading: int
    found: Match
    epoch: int


class Written(msgspec.Struct, frozen=True):
    """What a workload wrote until its checkpoint: the streams `streams` in the first `size_bytes` of the log at `log`."""

    log: Path
    size_bytes: int
    streams: frozenset[int]

    def chunks(self, skip_bytes: int = 0) -> Iterator[bytes]:
        """Yield it in pieces, but for the first `skip_bytes`."""
        return log.chunks_of_streams(self.log, self.size_bytes, self.streams, skip_bytes=skip_bytes)


def give_back(written: Written, descriptor: int, known: Target | None, *, epoch: int, owner: Owner | None) -> tuple[Target | None, str]:
    """Bring the file at `descriptor` to what is `written`.

    `known` is what it led to before, as far as this machine saw that. `owner` is whose file it is (None: this process's own). What is cut
    off is kept beside it as ``NAME.perdure-tail-EPOCH``: others may have written there too, of which the log knows nothing. Lines of
    Perdure and of Slurm stay.
    Returns what it leads to now, None for no file or one whose content is somebody else's, and what was done in words; empty: nothing. A
    file that holds something else is left alone.
    """
    here = _target(descriptor)
    if here is None:
        return None, ""
    try:
        reading = acting.reopen(f"/proc/self/fd/{descriptor}", owner)
    except OSError:
        return None, ""  # not to be read by the one who writes it
    try:
        for start in _starts(here, known):
            found = splice.match(reading, start, written.chunks())
            # With nothing expected, what is there may as well be from before.
            if (found.is_whole and (found.done_bytes or known is not None)) or found.at_end:
                return _from(here, start), _bring(written, descriptor, _Held(reading, found, epoch), owner)
    finally:
        os.close(reading)
    return None, ""


def _starts(here: Target, known: Target | None) -> tuple[int, ...]:
    """Return where the workload's output may begin in the file, the likeliest first. Slurm may have emptied it meanwhile."""
    is_known = known is not None and (known.device, known.inode) == (here.device, here.inode) and known.start_bytes <= here.start_bytes
    return (known.start_bytes, 0) if known is not None and is_known and known.start_bytes else (0,)


def _bring(written: Written, descriptor: int, held: _Held, owner: Owner | None) -> str:
    """Put back what is missing of the file, or cut off what is too much; return what was done in words."""
    end_bytes = os.fstat(descriptor).st_size
    done = ""
    if not held.found.is_whole:
        os.lseek(descriptor, end_bytes, os.SEEK_SET)
        put_bytes = log.write_pieces(written.chunks(held.found.done_bytes), descriptor)
        done = f"{units.format_size(put_bytes)} of earlier output put back"
    elif not held.found.at_end:
        done = _cut(descriptor, held, end_bytes, owner)
    os.lseek(descriptor, 0, os.SEEK_END)
    return done


def _cut(descriptor: int, held: _Held, end_bytes: int, owner: Owner | None) -> str:
    """Cut off what was written after the checkpoint, but for the lines of others."""
    end = held.found.end
    lines = splice.others(held.reading, end, end_bytes)
    if len(lines) >= end_bytes - end:
        return ""
    kept = _keep_aside(descriptor, held, owner)
    os.ftruncate(descriptor, end)
    os.lseek(descriptor, end, os.SEEK_SET)
    os.write(descriptor, lines)
    return f"{units.format_size(end_bytes - end - len(lines))} written after the checkpoint cut off" + kept


def _keep_aside(descriptor: int, held: _Held, owner: Owner | None) -> str:
    """Copy what is to be cut off into a file beside, as `owner`; say where it is."""
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    try:
        with acting.as_owner(owner), linkless.parent(path) as (folder, name):
            return f", and kept as {aside.keep_range(folder, name, held.reading, held.found.end, held.epoch)}"
    except (OSError, errors.PerdureError) as error:
        return f"; it could not be kept beside {text.printable(path)}: {error}"


def _target(descriptor: int) -> Target | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Target(descriptor=descriptor, device=found.st_dev, inode=found.st_ino, start_bytes=found.st_size)


def _from(target: Target, start_bytes: int) -> Target:
    return Target(descriptor=target.descriptor, device=target.device, inode=target.inode, start_bytes=start_bytes)


def lengths(descriptors: Iterable[int]) -> dict[int, int]:
    """Return how long the regular files at `descriptors` are, in bytes."""
    found = {}
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            there = os.fstat(descriptor)
            if stat.S_ISREG(there.st_mode):
                found[descriptor] = there.st_size
    return found


def shorten(before: Mapping[int, int]) -> None:
    """Cut off what was put back after `lengths` returned `before`: nothing goes on from it, and whoever starts anew writes it again."""
    for descriptor, size_bytes in before.items():
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_size > size_bytes:
                os.ftruncate(descriptor, size_bytes)
