"""What an installation on one node consists of: each path with what was there before. Called by install, uninstall and `--dry-run`.

The manifest is written before anything that it lists is made, so that an installation that was cut off at any instant can be taken out.
It stands in a folder that is made first of all; without a manifest in it, there is nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from perdure import errors
from perdure.base import files

FOLDER = "/var/lib/perdure"
PATH = f"{FOLDER}/install.json"
FORMAT = 1
LARGEST_BYTES = 64 << 20

NEW = ".perdure-new"
"""Behind the name of a file while it is written."""
OLD = ".perdure-old"
"""Behind the name of another's file that `--replace` put aside; it comes back at the end."""
KEPT = ".perdure-kept"
"""Behind the name of a configuration file that was changed since; it stays for its author."""

Kind = Literal["folder", "file", "link", "line", "cache", "grown", "store"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One path that belongs to the installation.

    `kind`: ``folder``, ``file`` and ``link`` are what they say; ``line`` is text at the end of another's file; ``cache`` a folder for what
    Python compiles; ``grown`` a folder or file that comes while jobs run; ``store`` the folder of all checkpoints.
    """

    path: str
    kind: Kind
    mode: int = 0
    size_bytes: int = 0
    sha256: str = ""
    """Of the content, as it is installed. For a line: of the line."""
    target: str = ""
    """Where a link leads."""
    text: str = ""
    """What is added to another's file, for a line."""
    before: str = ""
    """What was there: empty for nothing, ``folder``, or the SHA-256 of a file."""
    config: bool = False
    """The admin may change it: it is never written over, and kept when it was changed."""
    entrance: bool = False
    """It leads new jobs to us: made last, removed first."""
    derived: bool = False
    """Its content follows from other files and changes in operation."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All of an installation, in the order in which it is made.

    `state`: ``making`` until everything is there, ``whole``, ``leaving`` while jobs still use what is to be removed.
    """

    format: int
    version: str
    """Of Perdure."""
    id: str
    """Names the payload and what it was adapted to; the folder of its files is called after it."""
    prefix: str
    store: str
    state: Literal["making", "whole", "leaving"]
    entries: tuple[Entry, ...]
    stale: tuple[Entry, ...] = ()
    """Of an earlier installation, still to be removed: jobs used them."""

    def find(self, path: str) -> Entry | None:
        """Return what is listed for `path`, or None."""
        return next((entry for entry in (*self.entries, *self.stale) if entry.path == path), None)


def read() -> Manifest | None:
    """Return this node's manifest, or None when nothing is installed.

    Raises `errors.InputFormat` for one that is damaged or newer, `errors.InputDenied` for one that cannot be read or could be forged.
    """
    try:
        descriptor = os.open(PATH, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise errors.InputDenied(f"{PATH}: {error.strerror}", hint="run it as root") from error
    with open(descriptor, "rb") as handle:
        found = os.fstat(descriptor)
        content = handle.read(LARGEST_BYTES + 1)
    if found.st_uid != 0 or found.st_mode & 0o022:
        raise errors.InputDenied(f"{PATH} can be changed by others than root: it is not believed", hint="look at who changed it")
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise errors.InputFormat(f"{PATH} is damaged or of another format: {error}", hint="use the Perdure that installed it") from error
    if manifest.format != FORMAT:
        raise errors.InputFormat(f"{PATH} is of format {manifest.format}", hint="use the Perdure that installed it")
    return manifest


def write(manifest: Manifest) -> None:
    """Put `manifest` where `read` finds it, durably. Raises `errors.OutputError`."""
    files.write_bytes(PATH, msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def is_bare() -> bool:
    """Tell whether the folder is not there, or holds nothing but what a manifest that was cut off has left."""
    return not os.path.lexists(FOLDER) or all(_is_cut_off(name) for name in os.listdir(FOLDER))


def _is_cut_off(name: str) -> bool:
    return name.startswith(".install.json.") and name.endswith(".tmp")


def forget() -> None:
    """Remove the manifest, and what writing it may have left."""
    for name in os.listdir(FOLDER):
        if name == "install.json" or _is_cut_off(name):
            os.unlink(os.path.join(FOLDER, name))


@contextlib.contextmanager
def locked(*, patient: bool = False) -> Iterator[bool]:
    """Keep others from installing and uninstalling on this node while the block runs; yields whether the folder is there for this alone.

    With `patient`, whoever is at it is waited for. Raises `errors.StoreLocked` when somebody else is at it, `errors.OutputError`.
    """
    with contextlib.ExitStack() as held:
        while True:
            descriptor = _open_folder()
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if patient else fcntl.LOCK_NB))
            except BlockingIOError as error:
                raise errors.StoreLocked(
                    "somebody is installing or uninstalling on this node at this moment", hint="try again when they are done"
                ) from error
            if _is_still_there(descriptor):
                break
            held.close()  # whoever had it has removed the folder
        yield is_bare()


def _open_folder() -> int:
    """Return a descriptor of the folder, which is made if need be. Raises `errors.OutputError`."""
    while True:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(FOLDER, 0o700)
            return os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(FOLDER)):
                raise errors.OutputError(f"cannot make {FOLDER}: {os.path.dirname(FOLDER)} is not there", hint="make it") from None
        except OSError as error:
            raise errors.OutputError(f"cannot make {FOLDER}: {error.strerror}", hint="run it as root") from error


def _is_still_there(descriptor: int) -> bool:
    """Tell whether the folder open as `descriptor` is the one that lies at its path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(FOLDER, follow_symlinks=False))
    except FileNotFoundError:
        return False


def folder_of_prefix(prefix: str, identity: str) -> str:
    """Return the folder that holds the files of the installation `identity` below `prefix`."""
    return str(Path(prefix) / "versions" / identity)
