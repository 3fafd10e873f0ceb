"""The folder of an evaluation: where plan, lock, amendments, runs and report lie, and how they are read and written.

Called by every command of an evaluation. The folder itself may be reached through links; nothing in it may be one. Files are made with mode
0600, folders with 0700.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import linkless
from perdure.evaluation import lines
from perdure.model.evaluation import Run

PLAN = "evaluation.toml"
LOCK = "evaluation.lock"
AMENDMENTS = "amendments.jsonl"
RUNS = "runs.jsonl"
RAW = "runs"
REPORT = "report"
_BUSY = ".busy"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)

_decoder = msgspec.json.Decoder(Run)


class Folder(msgspec.Struct, frozen=True):
    """An evaluation's folder."""

    path: Path

    @property
    def plan(self) -> Path:
        """The plan, written by a person."""
        return self.path / PLAN

    @property
    def lock(self) -> Path:
        """The lock, written once."""
        return self.path / LOCK

    @property
    def amendments(self) -> Path:
        """Changes of the plan after the lock, one a line."""
        return self.path / AMENDMENTS

    @property
    def runs(self) -> Path:
        """Every run, one a line."""
        return self.path / RUNS

    @property
    def raw(self) -> Path:
        """The folder of raw logs, one folder a run."""
        return self.path / RAW

    @property
    def report(self) -> Path:
        """The folder that reports are written to."""
        return self.path / REPORT


class RunLog(msgspec.Struct, frozen=True):
    """What `runs.jsonl` holds: the runs in order, each one's line as it is, and how many torn lines were met and set aside."""

    runs: tuple[Run, ...] = ()
    raw_lines: tuple[bytes, ...] = ()
    torn: int = 0


def read_runs(folder: Folder) -> RunLog:
    """Return every run. Nothing is written.

    Raises `errors.InputFormat` for a line that is no run, and what `lines.read` raises.
    """
    found = lines.read(folder.path, RUNS)
    runs = []
    for number, line in enumerate(found.lines, 1):
        try:
            runs.append(_decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.InputFormat(
                f"{folder.runs}, line {number} is not a run: {error}", hint="the file is written by perdure alone: put a copy of it back"
            ) from error
    return RunLog(tuple(runs), found.lines, found.torn)


def append_run(folder: Folder, run: Run) -> None:
    """Add a run and wait until the disk has it; a line that a crash tore is set aside first. Raises what `lines.append` raises."""
    lines.append(folder.path, RUNS, msgspec.json.encode(run))


def make_raw(folder: Folder, run_id: str) -> Path:
    """Make the folder of a run's raw logs, which must not exist, and return its path.

    Raises `errors.OutputError`, also for an id with anything but letters, digits, dots, dashes and underscores.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise errors.OutputError(f"{run_id!r} cannot be the id of a run", hint="use letters, digits, dots, dashes and underscores")
    try:
        with contextlib.suppress(FileExistsError):
            folder.raw.mkdir(0o700)
        with lines.entered(folder.path) as place:
            below = os.open(RAW, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            try:
                os.mkdir(run_id, 0o700, dir_fd=below)
            finally:
                os.close(below)
    except OSError as error:
        raise errors.OutputError(f"cannot make {folder.raw / run_id}: {error.strerror}") from error
    return folder.raw / run_id


def raw_ids(folder: Folder) -> frozenset[str]:
    """Return the ids of the runs that have a folder of raw logs, recorded in `runs.jsonl` or not."""
    try:
        return frozenset(entry.name for entry in os.scandir(folder.raw) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return frozenset()


def create(folder: Folder, name: str, content: bytes) -> None:
    """Write a file that must not exist: it appears whole or not at all. The caller is the only one `at_work`.

    Raises `errors.OutputError`, also when there is one.
    """
    temporary = f".{name}.{secrets.token_hex(8)}.tmp"
    with lines.entered(folder.path) as place:
        try:
            _remove_leftovers(place, name)
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
            try:
                with open(descriptor, "wb") as handle:
                    handle.write(content)
                    handle.flush()
                    os.fsync(handle.fileno())
                os.link(temporary, name, src_dir_fd=place, dst_dir_fd=place, follow_symlinks=False)
                os.fsync(place)
            finally:
                os.unlink(temporary, dir_fd=place)
        except FileExistsError as error:
            raise errors.OutputError(f"{folder.path / name} is there already", hint="it is written once and never replaced") from error
        except OSError as error:
            hint = "free some space or choose another disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            raise errors.OutputError(f"cannot write {folder.path / name}: {error.strerror}", hint=hint) from error


def _remove_leftovers(place: int, name: str) -> None:
    """Remove what a crash left of an earlier attempt to write `name`."""
    for found in os.listdir(place):
        if found.startswith(f".{name}.") and found.endswith(".tmp"):
            os.unlink(found, dir_fd=place)


@contextlib.contextmanager
def at_work(folder: Folder) -> Iterator[None]:
    """Be the only one who runs, locks or amends this evaluation until the block ends. Raises `errors.WorkloadBusy` at once if it is not."""
    with lines.entered(folder.path) as place:
        try:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(_BUSY, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=place))
        except OSError as error:
            raise errors.OutputError(f"cannot write in {folder.path}: {error.strerror}") from error
        with open(linkless.open_regular(place, _BUSY, os.O_RDWR), "rb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise errors.WorkloadBusy(
                    f"another command is at work in {folder.path}", hint="wait for it; perdure eval status says how far it is"
                ) from error
            yield
