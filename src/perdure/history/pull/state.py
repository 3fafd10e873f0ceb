"""What a pull has already got: one sacct text file a day and a manifest, in a private folder.

A day's file is moved into place whole and then written into the manifest, so that a pull that was stopped at any instant
goes on where it was. The manifest holds the options that give the files their meaning; others need another folder.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import files
from perdure.history.pull import windows

FORMAT = 1
SETTLED = datetime.timedelta(hours=1)
"""A day counts as complete when it was asked for this long after its end: slurmctld hands records to slurmdbd with a delay."""


class Day(msgspec.Struct, frozen=True):
    """A day that was asked for. Times are naive UTC."""

    start: datetime.datetime
    end: datetime.datetime
    asked: datetime.datetime
    lines: int
    """Lines after the header: records, and the line breaks inside them."""
    size_bytes: int
    questions: int
    """Windows that the day had to be split into; 1: none."""
    notes: tuple[str, ...] = ()


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``manifest.json``."""

    format: int
    fields: tuple[str, ...]
    delimiter: str
    cluster: str | None
    sacct: str
    """Its version, for people."""
    days: dict[str, Day]


class State:
    """An open folder of a pull; see `opened`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def file(self, window: windows.Window) -> Path:
        """Path of a day's text, there or not."""
        return self.folder / f"{window.name}.txt"

    def done(self, window: windows.Window) -> Day | None:
        """Return the record of `window`'s day if it need not be asked for again: whole, settled, and its file untouched."""
        day = self.manifest.days.get(window.name)
        if day is None or day.start > window.start or day.end < window.end or day.asked < day.end + SETTLED:
            return None
        try:
            return day if self.file(window).stat().st_size == day.size_bytes else None
        except OSError:
            return None

    def record(self, window: windows.Window, day: Day) -> None:
        """Remember that `window` was asked for. Its file is already in place. Raises `errors.OutputError`."""
        self.manifest = msgspec.structs.replace(self.manifest, days={**self.manifest.days, window.name: day})
        _write(self.folder, self.manifest)


@contextlib.contextmanager
def opened(folder: Path, wanted: Manifest, *, afresh: bool) -> Iterator[State]:
    """Open `folder` (made, mode 0700, if it is not there) for one pull alone, and yield its `State`.

    `wanted` has the options of this pull and no days; `afresh` forgets what an earlier one got.

    Raises `errors.OutputError` when the folder cannot be made or used, holds something else, or another pull is using it;
    `errors.UsageError` when it was filled with other options.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise errors.OutputError(f"cannot use {folder}: {error.strerror}", hint="choose another with --raw-dir") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise errors.OutputError(f"{folder} is in use by another pull", hint="wait for it, or choose another --raw-dir") from error
        yield State(folder, _resume(folder, wanted, afresh=afresh))
    finally:
        os.close(descriptor)


def _resume(folder: Path, wanted: Manifest, *, afresh: bool) -> Manifest:
    found = _read(folder)
    if found is None:
        strange = [path.name for path in folder.iterdir() if not path.name.endswith(".tmp")]
        if strange:
            raise errors.OutputError(
                f"{folder} holds other files ({strange[0]}) and no pull's manifest", hint="choose an empty folder with --raw-dir"
            )
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink()
    if found is None or afresh:
        for name in found.days if found else ():
            (folder / f"{name}.txt").unlink(missing_ok=True)
        _write(folder, wanted)
        return wanted
    changed = [key for key in ("format", "fields", "delimiter", "cluster") if getattr(found, key) != getattr(wanted, key)]
    if changed:
        raise errors.UsageError(
            f"{folder} was filled by a pull with other {' and '.join(changed)} ({found.sacct}; now {wanted.sacct})",
            hint="add --afresh to ask for everything again, or choose another --raw-dir",
        )
    return msgspec.structs.replace(found, sacct=wanted.sacct)


def _read(folder: Path) -> Manifest | None:
    path = folder / "manifest.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise errors.OutputError(f"cannot read {path}: {error.strerror}", hint="choose another folder with --raw-dir") from error
    except msgspec.DecodeError as error:
        raise errors.OutputError(f"{path} is not a pull's manifest: {error}", hint="choose another folder with --raw-dir") from error


def _write(folder: Path, manifest: Manifest) -> None:
    files.write_bytes(folder / "manifest.json", msgspec.json.format(msgspec.json.encode(manifest)))
