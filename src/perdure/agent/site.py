"""What the machine's owner decides about ordinary users' workloads: folders, the store, CRIU. Called by `seat` and the agent.

Settings come from root alone: ``/etc/perdure/config.toml`` and the variables that root gave the agent. Each user has a state folder, a
run folder and a repository of their own below root's, so that names, locks, keys and reads never meet those of another.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure import errors
from perdure.base import settings
from perdure.model.checkpoint import Owner
from perdure.supervisor import folders, quantities
from perdure.supervisor.folders import Folders
from perdure.supervisor.place import Place
from perdure.supervisor.scheduler import Scheduler

if TYPE_CHECKING:
    from perdure.checkpoint.criu import locate
    from perdure.checkpoint.preflight import cpu
    from perdure.supervisor.wanted import Setup

_SAVER_THREADS = 2
_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Site(msgspec.Struct, frozen=True):
    """The settings, and root's folders."""

    values: dict[str, settings.Value]
    folders: Folders

    def folders_of(self, owner: Owner) -> Folders:
        """Return the folders of the workloads of `owner`; root's own for root."""
        return self.folders.of_user(owner.uid) if owner.uid else self.folders

    def place_of(self, owner: Owner) -> Place:
        """Return the repository of `owner`: below the site's store, else in the user's state folder.

        Raises `errors.EnvironmentUnfit` when others than root could change what lies there.
        """
        found = self.folders_of(owner)
        url = self.values["store"].value
        if url is None:
            url = str(found.state / "store")
        elif "://" in url:
            url = f"{url.rstrip('/')}/users/{owner.uid}" if owner.uid else url
        else:
            url = os.path.join(url, "users", str(owner.uid)) if owner.uid else url
        if "://" not in url:
            require_safe(url)
        key_file = self.values["key-file"].value
        return Place(
            url=url,
            key_file=os.path.abspath(key_file) if key_file else None,
            cache=str(found.cache),
            threads=settings.threads(self.values) or min(_SAVER_THREADS, os.cpu_count() or 1),
            lease_ttl_s=quantities.lease_ttl_s(self.values["lease-ttl"].value),
            allowance=quantities.user_quota(self.values["user-quota"].value) if owner.uid else None,
        )

    def setup_of(self, owner: Owner, *, cpu_check: cpu.Check | None = None, scheduler: Scheduler | None = None) -> Setup:
        """Return what a supervisor of a workload of `owner` needs to know of this machine."""
        from perdure.checkpoint.preflight import cpu
        from perdure.supervisor.wanted import Setup

        return Setup(
            folders=self.folders_of(owner),
            place=lambda _known: self.place_of(owner),
            criu=self.criu,
            staging=self.values["staging"].value,
            cpu_check=cpu_check or cpu.chosen(str(self.values["cpu-check"].value), self.values["cpu-check"].origin),
            gpu_lock_s=quantities.gpu_lock_s(self.values["gpu-lock-limit"]),
            rates=self.values["rates"].value,
            scheduler=scheduler,
        )

    def criu(self) -> locate.Places:
        """Return where to look for CRIU."""
        from perdure.checkpoint.criu import locate

        return locate.places(self.values, os.environ)


def read(environ: Mapping[str, str]) -> Site:
    """Read the site's settings; `environ` is root's. Raises `errors.SettingError`."""
    told = {key: value for key, value in environ.items() if key not in {"HOME", "XDG_CONFIG_HOME"}}
    values = settings.load(told, working_directory=Path("/"))
    return Site(values, folders.choose(state=values["state"].value, run=values["run-dir"].value, environ=told, uid=0))


def require_safe(path: str) -> None:
    """Raise `errors.EnvironmentUnfit` unless every folder on the way to `path`, as far as it is there, is root's and no link.

    None may be writable by others: what lies below could be exchanged. One with the sticky bit, such as /tmp, may, as long as the next one
    is there and root's.
    """
    descriptor = os.open("/", _OPEN)
    at, open_to_all = "/", False
    try:
        for part in [each for each in path.split("/") if each]:
            try:
                below = os.open(part, _OPEN, dir_fd=descriptor)
            except FileNotFoundError:
                if open_to_all:
                    raise _unsafe(at, "anybody may make folders in it") from None
                return
            except OSError as error:
                is_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
                why = "it is a link or no folder, so name the folder itself" if is_link else error.strerror or "it cannot be opened"
                raise _unsafe(os.path.join(at, part), why) from error
            os.close(descriptor)
            descriptor, at = below, os.path.join(at, part)
            found = os.fstat(descriptor)
            open_to_all = bool(found.st_mode & 0o022)
            if found.st_uid != os.geteuid():
                raise _unsafe(at, f"it belongs to user {found.st_uid}")
            if open_to_all and not found.st_mode & stat.S_ISVTX:
                raise _unsafe(at, f"its mode is {stat.S_IMODE(found.st_mode):04o}")
        if open_to_all:
            raise _unsafe(at, "anybody may write to it")
    finally:
        os.close(descriptor)


def _unsafe(path: str, why: str) -> errors.EnvironmentUnfit:
    return errors.EnvironmentUnfit(
        f"{path} can be changed by others than root: {why}",
        hint="keep checkpoints of users where only root writes: setting store in /etc/perdure/config.toml",
    )
