"""What this machine is, for the manifest and for comparing with one. Called by the supervisor at a checkpoint and by `restore`."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from collections.abc import Iterable

from perdure import errors
from perdure._version import __version__
from perdure.base import text
from perdure.base.proc import descriptors, machine, mappings, mounts, process
from perdure.model.checkpoint import HostFact


def facts(criu_version: str, pids: Iterable[int] = ()) -> HostFact:
    """Return the facts of this machine that restoring elsewhere depends on, with the mounts that files of processes `pids` lie on.

    `criu_version` is empty where there is none. Raises `errors.EnvironmentUnfit` without /proc, `errors.InputDenied`.
    """
    processor = machine.processor()
    return HostFact(
        hostname=socket.gethostname(),
        machine=platform.machine(),
        kernel=platform.release(),
        boot_id=machine.boot_id(),
        cpu_model=processor.model,
        cpu_flags=processor.flags,
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        criu_version=criu_version,
        perdure_version=__version__,
        pid_max=machine.pid_max(),
        mounts=used_mounts(pids),
    )


def used_mounts(pids: Iterable[int]) -> tuple[tuple[str, str], ...]:
    """Return mount point and type of every mount that a file lies on which one of `pids` has open, mapped, or works in."""
    found: set[tuple[str, str]] = set()
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            seen = mounts.of(pid)
            by_id = {mount.id: mount for mount in seen}
            on = [by_id.get(opened.info.mount) for opened in descriptors.of(pid)]
            paths = {mapping.path for mapping in mappings.of(pid) if mapping.is_file and not mapping.deleted}
            paths.add(process.working_directory(pid)[0])
            on += [mounts.covering(path, seen) for path in paths if path.startswith("/")]
            found.update((text.storable(mount.point), mount.kind) for mount in on if mount is not None)
    return tuple(sorted(found))
