"""`perdure logs`: what a workload wrote."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.agent import asked, client
from perdure.cli import agent_side, console, keep
from perdure.model.checkpoint import check_name
from perdure.supervisor import following

_CHUNK_BYTES = 1 << 16


def logs(
    name: keep.Name,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="", help="Go on until it ends, through resumes.")] = False,
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
    with contextlib.closing(following.Tail(descriptor, path)) as log:
        if common.json:
            console.print_json({"name": name, "path": str(path), "size_bytes": os.fstat(descriptor).st_size})
            return
        log.at = _start(descriptor, tail)
        if not follow:
            log.copy(_write)
            return
        following.follow(log, lambda: following.stage(folders, name), _write, wait=time.sleep, lost=lambda: _tell_lost(common, name))


def _from_agent(agent: agent_side.Agent, name: str, common: console.Common, *, tail: int | None, follow: bool) -> None:
    """Print the log that the agent hands over."""
    with client.Answering(agent.path, asked.Logs(name=check_name(name)), user=agent.user) as answering:
        answer = answering.answer()
        descriptor = answering.descriptor()
        with contextlib.closing(following.Tail(descriptor)) as log:
            if common.json:
                console.print_json({"name": name, "path": answer["path"], "size_bytes": answer["size_bytes"]})
                return
            log.at = _start(descriptor, tail)
            if not follow:
                log.copy(_write)
                return
            ends = _Ends(answering)
            following.follow(log, ends.look, _write, wait=ends.wait, lost=lambda: None)


class _Ends:
    """The agent hangs up when the workload's supervisor ends."""

    def __init__(self, answering: client.Answering) -> None:
        self._answering = answering
        self._seen = False

    def look(self) -> following.Stage:
        """Return whether anything more is to come."""
        self._seen = self._seen or self._answering.is_over(0.001)
        return following.Stage.ENDED if self._seen else following.Stage.RUNS

    def wait(self, pause_s: float) -> None:
        """Wait for it, at most `pause_s`."""
        self._seen = self._seen or self._answering.is_over(pause_s)


def _write(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _tell_lost(common: console.Common, name: str) -> None:
    console.note(common, f"perdure: {name} was cut off; waiting until it is gone on with (Ctrl-C ends this)")


def _start(descriptor: int, lines: int | None) -> int:
    """Return where to begin for the last `lines` lines; None: all of them."""
    return 0 if lines is None else _start_of_last(descriptor, lines)


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
