"""Run the user's own command that tells whether a workload does its work. Called by `alive` and, before a checkpoint, by the supervisor."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping

import msgspec

from perdure import errors
from perdure.base.text import printable
from perdure.checkpoint import dropping, tree
from perdure.checkpoint.tree import Tree
from perdure.model.checkpoint import Owner

_LONGEST_SAID = 400
_MOST_SAID_BYTES = 1 << 16
_READ_BYTES = 1 << 16


class Probe(msgspec.Struct, frozen=True):
    """The user's own command that succeeds when the workload does its work. Run here, not in the workload's namespaces."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    working_directory: str
    limit_s: float = 30.0
    owner: Owner | None = None
    """The ordinary user that it runs as; None: as this process."""
    folder: str | None = None
    """A folder that only root can write, for a user's."""
    limits: tuple[tuple[int, int, int], ...] = ()
    """Resource, soft and hard limit of a user's, for those that are not to be this process's."""


class Running:
    """A probe that was started. Exactly one `wait` ends it; `cancel` may be called from another thread."""

    def __init__(self, started: subprocess.Popen[bytes], limit_s: float) -> None:
        if started.stdout is None:
            raise AssertionError("what it says cannot be read")
        self._started, self._output = started, started.stdout.fileno()
        self._limit_s = limit_s
        self._end_s = time.monotonic() + limit_s
        self._cancelled = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._ended = False

    def cancel(self) -> None:
        """End it: nobody needs to know any more. `wait` returns then; without effect after it."""
        with self._lock:
            if not self._ended:
                os.eventfd_write(self._cancelled, 1)

    def wait(self) -> str | None:
        """Wait for its end, and return the first line of what it said; None: it was cancelled.

        Raises `errors.RestoreFailed`: the workload does not work.
        """
        content = None
        with self._started:
            try:
                content = self._listen()
            finally:
                if content is None:
                    self._kill()
                with self._lock:
                    self._ended = True
                    os.close(self._cancelled)
        if content is None:
            return None
        said = content.decode("utf-8", "replace").strip().splitlines()[:1]
        line = printable(said[0][:_LONGEST_SAID]) if said else ""
        if self._started.returncode != 0:
            raise errors.RestoreFailed(f"the probe failed with {self._started.returncode}: {line}", hint="see --probe")
        return line

    def _listen(self) -> bytes | None:
        """Return what it says until it has ended and nobody can say more; None: it was cancelled."""
        output, ended = self._output, os.pidfd_open(self._started.pid)
        said = bytearray()
        try:
            ready = select.poll()  # not select(): descriptors may have numbers above 1023
            waited_for = {output, ended}
            for descriptor in (*waited_for, self._cancelled):
                ready.register(descriptor, select.POLLIN)
            while waited_for:
                found = {descriptor for descriptor, _ in ready.poll(max(self._end_s - time.monotonic(), 0.0) * 1000.0)}
                if self._cancelled in found:
                    return None
                if not found:
                    raise errors.RestoreFailed(f"the probe did not end within {self._limit_s:g} s", hint="see --probe")
                piece = os.read(output, _READ_BYTES) if output in found else b""
                said += piece[: _MOST_SAID_BYTES - len(said)]
                for descriptor in found - ({output} if piece else set()):
                    ready.unregister(descriptor)
                    waited_for.discard(descriptor)
        finally:
            os.close(ended)
        return bytes(said)

    def _kill(self) -> None:
        """With all that it started: one of them would keep its output open."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._started.pid, signal.SIGKILL)


def start(probe: Probe) -> Running:
    """Start `probe` and return at once. Raises `errors.RestoreFailed` when it cannot be started."""
    try:
        return Running(_started(probe), probe.limit_s)
    except OSError as error:
        raise errors.RestoreFailed(f"the probe cannot be run: {os.fspath(probe.argv[0])}: {error.strerror}", hint="see --probe") from error
    except errors.PerdureError as error:
        raise errors.RestoreFailed(f"the probe cannot be run: {error}", hint="see --probe") from error


def _started(probe: Probe) -> subprocess.Popen[bytes]:
    if probe.owner is None or probe.folder is None:
        return _popen(probe.argv, probe.working_directory, dict(probe.environment))
    order = dropping.Order(
        argv=probe.argv,
        environment=tuple(probe.environment.items()),
        working_directory=probe.working_directory,
        umask=0o022,
        uid=probe.owner.uid,
        gid=probe.owner.gid,
        groups=probe.owner.groups,
        limits=probe.limits,
    )
    with dropping.listening(probe.folder) as listener:
        started = _popen(dropping.COMMAND, probe.folder, {})
        try:
            dropping.hand_over(listener, Tree(started.pid, tree.start_ticks_of(started.pid)), order)
        except BaseException:
            with started:
                started.kill()
            raise
    return started


def _popen(argv: tuple[str, ...], folder: str, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
