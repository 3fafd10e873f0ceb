"""The log of privileged actions: who, what, of which workload or job, and how it ended. Called by the agent, its workers and seats.

One JSON document a line, plain ASCII, so that nothing a user named can forge a line or move a cursor. A line is one write to a file that
is opened for appending: those of several processes do not mix. The file is root's, and readable by its group.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import stat
import time
from pathlib import Path

from perdure import errors
from perdure.base import linkless

DEFAULT = "/var/log/perdure/agent.log"
STDERR = "-"

_MODE = 0o640
_MOST_WORD = 512
_MOST_BYTES = 64 << 20
"""A file of this size becomes FILE.1, and the one before is gone: users cannot fill a disk with what is noted of them."""


class Audit:
    """Notes what is done. Noting never fails: what cannot be written goes to `stderr`, a descriptor of this process's own."""

    def __init__(self, path: str, *, stderr: int = 2) -> None:
        self._path = path
        self._stderr = stderr

    def note(self, what: str, *, uid: int, pid: int | None = None, result: str, **about: str | int | None) -> None:
        """Note that `what` was done for the user `uid`, whose process is `pid`, with `result`; `about` holds more, None left out."""
        now = datetime.datetime.fromtimestamp(time.time(), datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        facts = {"time": now, "what": what, "uid": uid, "pid": pid, "by": os.getpid(), "result": result, **about}
        line = json.dumps({key: _clipped(value) for key, value in facts.items() if value is not None}).encode("ascii") + b"\n"
        descriptor = None if self._path == STDERR else self._open()
        with contextlib.suppress(OSError):
            os.write(self._stderr if descriptor is None else descriptor, line)
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> int | None:
        with contextlib.suppress(OSError, errors.InputError), linkless.parent(self._path) as (folder, name):
            descriptor = _append(folder, name)
            if os.fstat(descriptor).st_size < _MOST_BYTES:
                return descriptor
            os.close(descriptor)
            # Two processes may come here at once: then the second one moves a short file, and nothing else is lost.
            os.replace(name, f"{name}.1", src_dir_fd=folder, dst_dir_fd=folder)
            return _append(folder, name)
        return None


def _append(folder: int, name: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(name, flags, _MODE, dir_fd=folder)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise OSError("not a file of ours")
    os.fchmod(descriptor, _MODE)
    return descriptor


def prepare(path: str) -> None:
    """Make the folder of the log at `path`. Raises `errors.OutputError`."""
    if path == STDERR:
        return
    try:
        Path(path).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise errors.OutputError(
            f"cannot make the folder of {path}: {error.strerror}", hint="name another file: setting audit-log"
        ) from error


def _clipped(value: str | int | None) -> str | int | None:
    return value[:_MOST_WORD] if isinstance(value, str) else value
