"""The workload's standard streams, as the images name them, so that each life can give it new ones. Called by `dump` and `restore`."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from perdure import errors
from perdure.base.proc import reading
from perdure.checkpoint.criu import run
from perdure.checkpoint.tree import Tree
from perdure.model.checkpoint import Stream

_NULL = os.makedev(1, 3)


def of(tree: Tree) -> tuple[Stream, ...]:
    """Return descriptors 0, 1 and 2 of the tree's root; a closed one is left out. Raises `errors.ProcessGone` and `errors.InputDenied`."""
    found = []
    for number in range(3):
        try:
            shown = reading.link(tree.pid, f"fd/{number}")
            with reading.of_process(tree.pid):
                there = os.stat(f"/proc/{tree.pid}/fd/{number}")
        except errors.ProcessGone:
            reading.link(tree.pid, "exe")  # gone itself, and not just the descriptor
            continue
        found.append(describe(number, shown, there))
    return tuple(found)


def describe(number: int, shown: str, there: os.stat_result) -> Stream:
    """Return the record of descriptor `number`, which the kernel shows as `shown` and which has the status `there`."""
    if stat.S_ISFIFO(there.st_mode) and shown.startswith("pipe:["):
        return Stream(number, "pipe", external=shown)
    if stat.S_ISCHR(there.st_mode):
        if there.st_rdev == _NULL:
            return Stream(number, "null", path=shown)
        if shown.startswith("/dev/pts/"):
            return Stream(number, "tty", external=f"tty[{there.st_rdev:x}:{there.st_dev:x}]", path=shown)
    return Stream(number, "file", path=shown)


def dump_options(streams: tuple[Stream, ...]) -> tuple[str, ...]:
    """Return what tells a dump that the terminals' other side is ours. Pipes need no word."""
    return tuple(run.external(name) for name in _names(streams, "tty"))


def inherited(streams: tuple[Stream, ...], descriptors: Mapping[int, int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the options and the descriptors to pass that give a restored tree new streams.

    `descriptors` maps 0, 1 and 2 to ours; each stream of `streams` that had an other side needs one. What was one pipe stays one.
    """
    options: dict[str, int] = {}
    for stream in streams:
        if stream.external is not None:
            options.setdefault(stream.external, descriptors[stream.fd])
    given = tuple(run.inherit_fd(descriptor, name) for name, descriptor in options.items())
    return given, tuple(sorted(set(options.values())))


def _names(streams: tuple[Stream, ...], kind: str) -> tuple[str, ...]:
    return tuple(sorted({stream.external for stream in streams if stream.kind == kind and stream.external is not None}))
