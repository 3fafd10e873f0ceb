"""Processes that run from an installation: seats of running jobs, their helpers, users' commands. Called by install and uninstall.

A process counts that has files of the installation's libraries mapped, or names them on its command line. Slurm's own processes that have
the shim mapped do not count: what is mapped stays in memory when its file is gone, and they need nothing else.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

import msgspec


class Occupant(msgspec.Struct, frozen=True):
    """One process."""

    pid: int
    command: tuple[str, ...]

    @property
    def is_agent(self) -> bool:
        """Tell whether it is the node's service."""
        return any(
            word.endswith("/bin/perdure") and following == "agent" for word, following in zip(self.command, self.command[1:], strict=False)
        )


def find(folder: str) -> tuple[Occupant, ...]:
    """Return the processes, other than this one, that run from `folder`, a folder of versions."""
    inside = f"{folder}/".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        command = _read(f"/proc/{name}/cmdline")
        if inside in command or inside in _read(f"/proc/{name}/maps"):
            found.append(Occupant(int(name), tuple(os.fsdecode(word) for word in command.split(b"\0")[:-1])))
    return tuple(found)


def _read(path: str) -> bytes:
    # A process that ends, or a kernel thread, has nothing to say.
    with contextlib.suppress(OSError):
        return Path(path).read_bytes()
    return b""


def end_agents(found: tuple[Occupant, ...], *, limit_s: float) -> None:
    """Ask the service to end and wait for it, `limit_s` at most."""
    held = []
    for occupant in found:
        if not occupant.is_agent:
            continue
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(occupant.pid)
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            held.append(descriptor)
    _wait(held, limit_s)


def wait_for(found: tuple[Occupant, ...]) -> None:
    """Wait until all of `found` have ended, however long that takes."""
    held = []
    for occupant in found:
        with contextlib.suppress(ProcessLookupError):
            held.append(os.pidfd_open(occupant.pid))
    _wait(held, None)


def _wait(held: list[int], limit_s: float | None) -> None:
    """Wait for each of the processes `held`, `limit_s` each, and let go of their descriptors."""
    for descriptor in held:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(None if limit_s is None else limit_s * 1000)
        os.close(descriptor)
