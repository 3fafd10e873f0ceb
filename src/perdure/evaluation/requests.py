"""A fault by hand: asked for beside a running run, done by the harness that conducts it, so that it is recorded like any other.

Called by `conduct` and by `perdure eval inject`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import linkless
from perdure.evaluation import lines
from perdure.model.evaluation import FaultKind

_NAME = "inject.json"
_LONGEST_BYTES = 4096


class Request(msgspec.Struct, frozen=True):
    """What is asked for."""

    kind: FaultKind


def ask(place: Path, kind: FaultKind, *, limit_s: float) -> None:
    """Ask for a fault in the run whose folder is `place`, and wait until the harness has taken it.

    Raises `errors.WorkloadBusy` while another request waits, and `errors.WorkloadMissing` when nobody conducts the run.
    """
    with lines.entered(place) as folder:
        temporary = f".{_NAME}.{os.getpid()}.tmp"
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with open(descriptor, "wb") as handle:
                handle.write(msgspec.json.encode(Request(kind)))
            os.link(temporary, _NAME, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError as error:
            raise errors.WorkloadBusy("another fault was asked for and not taken yet", hint="wait a moment and try again") from error
        finally:
            os.unlink(temporary, dir_fd=folder)
        end_s = time.monotonic() + limit_s
        while linkless.status(folder, _NAME) is not None:
            if time.monotonic() >= end_s:
                os.unlink(_NAME, dir_fd=folder)
                raise errors.WorkloadMissing(
                    f"nobody conducts the run in {place}", hint="perdure eval run conducts runs; perdure eval status says which there are"
                )
            time.sleep(0.02)


def take(place: Path) -> FaultKind | None:
    """Return the fault that was asked for in the run whose folder is `place`, once; None when none was."""
    if not os.path.lexists(place / _NAME):
        return None
    with lines.entered(place) as folder:
        try:
            with open(linkless.open_regular(folder, _NAME), "rb") as handle:
                asked = msgspec.json.decode(handle.read(_LONGEST_BYTES), type=Request)
        except (errors.InputError, msgspec.DecodeError, UnicodeDecodeError):
            asked = None  # whoever wrote that is not ours; it goes, so that the asker is not kept waiting
        if linkless.status(folder, _NAME) is not None:
            os.unlink(_NAME, dir_fd=folder)
    return None if asked is None else asked.kind
