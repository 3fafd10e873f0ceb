"""`perdure logs`: what a workload wrote."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.agent import asked, client
from perdure.cli import agent_side, console, keep
from perdure.model.checkpoint import check_name
from perdure.supervisor import lock

_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.2


def logs(
    name: keep.Name,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="", help="Go on until the workload ends.")] = False,
    tail: Annotated[int | None, Parameter(help="Only so many of the last lines.")] = None,
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """Print what a workload wrote to stdout and stderr, over all its lives, as if it had never been interrupted.

    With --json, one document: the log's path and its length in bytes.

    For example:

      perdure logs -f train-7b --tail 20
    """
    if tail is not None and tail < 0:
        raise errors.QuantityError(f"--tail: {tail} is negative")
    values = console.load_settings(common)
    agent = agent_side.find(values, user)
    if agent is not None:
        _from_agent(agent, name, common, tail=tail, follow=follow)
        return
    folders = keep.where(values)
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
        _print(descriptor, lambda: not lock.is_held(folders.lock(name)), time.sleep, tail=tail, follow=follow)
    finally:
        os.close(descriptor)


def _from_agent(agent: agent_side.Agent, name: str, common: console.Common, *, tail: int | None, follow: bool) -> None:
    """Print the log that the agent hands over."""
    with client.Answering(agent.path, asked.Logs(name=check_name(name)), user=agent.user) as answering:
        answer = answering.answer()
        descriptor = answering.descriptor()
        try:
            if common.json:
                console.print_json({"name": name, "path": answer["path"], "size_bytes": answer["size_bytes"]})
                return
            ends = _Ends(answering)
            _print(descriptor, ends.are_seen, ends.wait, tail=tail, follow=follow)
        finally:
            os.close(descriptor)


class _Ends:
    """The agent hangs up when the workload's supervisor ends."""

    def __init__(self, answering: client.Answering) -> None:
        self._answering = answering
        self._seen = False

    def are_seen(self) -> bool:
        """Tell whether it has."""
        self._seen = self._seen or self._answering.is_over(0.001)
        return self._seen

    def wait(self, pause_s: float) -> None:
        """Wait for it, at most `pause_s`."""
        self._seen = self._seen or self._answering.is_over(pause_s)


def _print(descriptor: int, is_over: Callable[[], bool], wait: Callable[[float], None], *, tail: int | None, follow: bool) -> None:
    at = 0 if tail is None else _start_of_last(descriptor, tail)
    while True:
        # Asked before reading: what is written until the supervisor ends is read after it.
        runs = follow and not is_over()
        while content := os.pread(descriptor, _CHUNK_BYTES, at):
            sys.stdout.buffer.write(content)
            at += len(content)
        sys.stdout.buffer.flush()
        if not runs:
            return
        # A restore cuts the log back to its checkpoint.
        at = min(at, os.fstat(descriptor).st_size)
        wait(_LOOK_S)


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
