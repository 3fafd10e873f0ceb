"""Leave what keeps a job's processes from GPUs that are not the job's. Called by `helper` and `driver`, and by `host.gpu` to see all.

A restore has to name every GPU of the machine, and a job's supervisor sees those of the job only. What is restricted is the opening of
device files, by which a root process is refused nothing else: that tells.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Mapping

from perdure.base.proc import mounts

_NODES = "/dev/nvidia[0-9]*"
_HIDING = ("CUDA_", "NVIDIA_", "GPU_DEVICE_ORDINAL", "__CUDA")
"""Beginnings of the variables by which CUDA is kept from GPUs, or told to do something else than what is documented."""


def without(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` but those by which CUDA is kept from GPUs."""
    return {name: value for name, value in variables.items() if not name.startswith(_HIDING)}


def nodes() -> tuple[str, ...]:
    """Return the device files of GPUs that are to be seen here."""
    return tuple(sorted(glob.glob(_NODES)))


def is_restricted(paths: Iterable[str]) -> bool:
    """Tell whether a control group forbids this process to open one of the device files `paths`."""
    for path in paths:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            if error.errno == errno.EPERM:
                return True
    return False


def leave() -> None:
    """Go to the root of every hierarchy that can restrict devices, as far as this process may. It ends with its parent all the same."""
    for mount in mounts.of(os.getpid()):
        is_meant = mount.kind == "cgroup2" or (mount.kind == "cgroup" and "devices" in mount.super_options)
        if is_meant:
            try:
                with open(f"{mount.point}/cgroup.procs", "w", encoding="ascii") as handle:
                    handle.write("0")
            except OSError:
                continue
