"""`perdure logs`: what a workload wrote."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.cli import console, keep
from perdure.supervisor import lock
from perdure.supervisor.folders import Folders

_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.2


def logs(
    name: keep.Name,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="", help="Go on until the workload ends.")] = False,
    tail: Annotated[int | None, Parameter(help="Only so many of the last lines.")] = None,
    common: console.Common = console.Common(),
) -> None:
    """Print what a workload wrote to stdout and stderr, over all its lives, as if it had never been interrupted.

    With --json, one document: the log's path and its length in bytes.
    """
    if tail is not None and tail < 0:
        raise errors.QuantityError(f"--tail: {tail} is negative")
    folders = keep.where(console.load_settings(common))
    keep.require(folders, name)
    path = folders.log(name)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise errors.WorkloadMissing(f"{name} has written nothing yet", hint="see perdure ps") from None
    try:
        if common.json:
            console.print_json({"name": name, "path": str(path), "size_bytes": os.fstat(descriptor).st_size})
            return
        _print(descriptor, folders, name, tail=tail, follow=follow)
    finally:
        os.close(descriptor)


def _print(descriptor: int, folders: Folders, name: str, *, tail: int | None, follow: bool) -> None:
    at = 0 if tail is None else _start_of_last(descriptor, tail)
    while True:
        # Asked before reading: what is written until the supervisor ends is read after it.
        runs = follow and lock.is_held(folders.lock(name))
        while content := os.pread(descriptor, _CHUNK_BYTES, at):
            sys.stdout.buffer.write(content)
            at += len(content)
        sys.stdout.buffer.flush()
        if not runs:
            return
        # A restore cuts the log back to its checkpoint.
        at = min(at, os.fstat(descriptor).st_size)
        time.sleep(_LOOK_S)


def _start_of_last(descriptor: int, lines: int) -> int:
    """Return where the last `lines` lines begin."""
    at = size = os.fstat(descriptor).st_size
    if not lines:
        return size
    wanted = lines
    while at > 0:
        start = max(at - _CHUNK_BYTES, 0)
        content = os.pread(descriptor, at - start, start)
        end = len(content)
        if at == size and content.endswith(b"\n"):
            end -= 1
        while (found := content.rfind(b"\n", 0, end)) >= 0:
            wanted -= 1
            if not wanted:
                return start + found + 1
            end = found
        at = start
    return 0
