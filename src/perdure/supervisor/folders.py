"""Where a supervisor keeps things: the state folder, which stays, and the run folder, which a reboot empties. Called by all here."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import files
from perdure.checkpoint import staging

_SPARE_DISK = "/var/tmp"  # noqa: S108 - a disk on every machine; what is made there is private
_PRIVATE = 0o700
_LISTED = 0o755
_ENTERED = 0o711
"""The workload may run as another user and reads its epoch there; the socket beside it has a mode of its own."""


class Folders(msgspec.Struct, frozen=True):
    """The two roots, absolute."""

    state: Path
    run: Path
    user: int | None = None
    """The ordinary user whose workloads these are for, kept by root; None: whoever runs this."""

    def of_user(self, uid: int) -> Folders:
        """Return the folders for the workloads of the ordinary user `uid`, below these, which are root's."""
        return Folders(self.state / "users" / str(uid), self.run / "users" / str(uid), uid)

    @property
    def database(self) -> Path:
        """The one file of state."""
        return self.state / "state.db"

    @property
    def cache(self) -> Path:
        """What can be made anew: indexes and fingerprints of stores."""
        return self.state / "cache"

    def workload(self, name: str) -> Path:
        """What stays of the workload `name`: its lock, its console's log."""
        return self.state / "workloads" / name

    def log(self, name: str) -> Path:
        """Everything that the workload wrote to its standard streams."""
        return self.workload(name) / "log"

    def lock(self, name: str) -> Path:
        """Held by the one supervisor of the workload."""
        return self.workload(name) / "lock"

    def messages(self, name: str) -> Path:
        """What a supervisor in the background has to say."""
        return self.workload(name) / "supervisor.log"

    def live(self, name: str) -> Path:
        """What there is of the workload while it runs."""
        return self.run / name

    def socket(self, name: str) -> Path:
        """Where its supervisor listens."""
        return self.live(name) / "control.sock"

    def epoch_file(self, name: str) -> Path:
        """The epoch of its life on line 1, its name on line 2."""
        return self.live(name) / "epoch"

    def make(self, name: str) -> None:
        """Make the folders of the workload `name`. Raises `errors.OutputError`."""
        self.make_roots()
        for path, mode in ((self.workload(name), _PRIVATE), (self.cache, _PRIVATE), (self.live(name), _ENTERED)):
            _make(path, mode)

    def make_roots(self) -> None:
        """Make the folders that hold those of all workloads. Raises `errors.OutputError`."""
        for path, mode in (
            *self._above(),
            (self.state, _PRIVATE),
            (self.state / "workloads", _PRIVATE),
            (self.run, _LISTED if self.user is None else _ENTERED),
        ):
            _make(path, mode)

    def choose_staging(self, wanted_bytes: int, setting: str | None) -> Path:
        """Return the path of a new folder where `wanted_bytes` of images have room. Raises `errors.CheckpointRefused`.

        It is not made yet: whoever is killed right after making it must have noted it before.
        """
        place = staging.choose(wanted_bytes, setting=setting, disks=(self.state, Path(_SPARE_DISK)))
        return place.folder / f"{staging.PREFIX}{secrets.token_hex(8)}"

    def _above(self) -> tuple[tuple[Path, int], ...]:
        """Return root's own folders, which those of a user lie in, with their permissions."""
        if self.user is None:
            return ()
        state, run = self.state.parent, self.run.parent
        return (state.parent, _PRIVATE), (state, _PRIVATE), (run.parent, _LISTED), (run, _ENTERED)


def choose(*, state: str | None, run: str | None, environ: Mapping[str, str], uid: int) -> Folders:
    """Return the folders for the settings `state` and `run-dir` (None: not set) and the user `uid`.

    Raises `errors.UsageError` for a path that is not UTF-8.
    """
    home = environ.get("HOME", "/nonexistent")
    if state is None:
        state = "/var/lib/perdure" if uid == 0 else os.path.join(environ.get("XDG_STATE_HOME") or f"{home}/.local/state", "perdure")
    if run is None:
        private = environ.get("XDG_RUNTIME_DIR")
        run = "/run/perdure" if uid == 0 else os.path.join(private, "perdure") if private else os.path.join(state, "run")
    return Folders(Path(files.kept_path(state)), Path(files.kept_path(run)))


def make_staging(path: Path) -> None:
    """Make the private folder `path`. Raises `errors.OutputError`."""
    try:
        path.mkdir(mode=0o700)
    except OSError as error:
        raise errors.OutputError(f"cannot make {path}: {error.strerror}", hint="name another folder: PERDURE_STAGING=…") from error


def _make(path: Path, mode: int) -> None:
    """Make the folder `path` with permissions `mode`; one that is there must be ours, not a link, and not writable by others."""
    try:
        try:
            path.mkdir(mode=mode, parents=True)
            path.chmod(mode)  # mkdir takes the umask off
        except FileExistsError:
            pass
        found = os.lstat(path)
    except OSError as error:
        raise errors.OutputError(
            f"cannot make {path}: {error.strerror}", hint="choose other folders: settings state and run-dir"
        ) from error
    if stat.S_ISLNK(found.st_mode):
        raise errors.OutputError(
            f"{path} is a link, which could lead elsewhere tomorrow", hint=f"name the folder itself: {os.path.realpath(path)}"
        )
    if not stat.S_ISDIR(found.st_mode):
        raise errors.OutputError(f"{path} is not a folder", hint="choose other folders: settings state and run-dir")
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise errors.OutputError(
            f"{path} can be changed by others: what is kept there could be exchanged", hint=f"make it yours alone: chown and chmod {mode:o}"
        )
