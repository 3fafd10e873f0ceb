"""A supervisor that goes on after the command that started it. Called by `run -d` and `restore -d`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from perdure import errors
from perdure.supervisor import wire

_MOST_BYTES = 1 << 20


class Started(msgspec.Struct, frozen=True):
    """What the supervisor tells the command that started it, once the workload runs, has ended, or could not be started."""

    name: str = ""
    epoch: int = 0
    restored_from: str | None = None
    ended: str = ""
    """How the workload ended, elsewhere and meanwhile; empty: it runs."""
    status: int = 0
    """What it ended with then."""
    error: wire.ErrorDocument | None = None


class Starter:
    """In the supervisor: the way to tell the waiting command how it went. Telling twice is telling once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def tell(self, started: Started) -> None:
        """Tell it, so that it ends."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.write(descriptor, wire.encode(started))
            except BrokenPipeError:
                pass  # it was interrupted: nobody waits any more
            finally:
                os.close(descriptor)


def split(messages: Path) -> Starter | Started:
    """Go on twice: in a process of a session of its own, whose stdout and stderr are the file `messages`, with a `Starter`; and in this
    one, once that has told how it went, with what it told.

    No thread may run. Raises what the supervisor tells of, and `errors.WorkloadMissing` when it ended without a word.
    """
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(messages, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        for descriptor, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, target)
        os.close(null)
        os.close(log)
        return Starter(theirs)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        content = pipe.read(_MOST_BYTES)
    if not content:
        raise errors.WorkloadMissing("the supervisor ended before the workload ran", hint=f"see {messages}")
    started: Started = wire.decode(content, Started)
    if started.error is not None:
        raise wire.error(started.error)
    return started
