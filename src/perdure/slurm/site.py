"""What the admin asks of an installation, the same for every node. Called by everything that installs."""

from __future__ import annotations

import os
import re

import msgspec

from perdure import errors
from perdure.base import units

PREFIX = "/opt/perdure"
LEASE_TTL = "120s"

ETC = "/etc/perdure"
CONFIG = f"{ETC}/config.toml"
RUN = "/run/perdure"
CACHE = "/var/cache/perdure"
USUAL_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where the shim has seats look for commands."""
CRIU_CACHE = "/run/criu.kdat"
"""What CRIU notes about the kernel, wherever it runs."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What is wished for."""

    store: str = ""
    """Where checkpoints go: a folder that all nodes reach, or ``s3://BUCKET/PREFIX``. Empty for `shim_only`."""
    shim_only: bool = False
    """These nodes do not take part: they get the shim alone, so that a job that opted in and lands there says that it runs unmanaged."""
    prefix: str = PREFIX
    lease_ttl: str = LEASE_TTL
    slurm: str | None = None
    """The folder that Slurm is installed in; None: the usual places."""
    replace: bool = False
    """Put other people's files aside that stand where ours go."""
    store_id: str | None = None
    """The mark that the store has on a node where it is known to be right."""
    clock_apart_s: float | None = None
    """How far this node's clock is ahead of the one of the machine that installs; None: that is this one."""

    def check(self) -> None:
        """Raise `errors.UsageError` for what cannot be meant."""
        if bool(self.store) == self.shim_only:
            raise errors.UsageError(
                "say where checkpoints go (--store), or that these nodes do not take part (--shim-only)", hint="--store /shared/perdure"
            )
        store = self.store if self.is_folder else None
        for name, path in (("--prefix", self.prefix), ("--slurm", self.slurm), ("--store", store)):
            # The prefix goes into the first line of a script, which has no way of quoting.
            if path is not None and (not re.fullmatch(r"(?:/[A-Za-z0-9._+@-]+)+", path) or path != os.path.normpath(path)):
                raise errors.UsageError(f"{name}: {path!r} will not do", hint="an absolute path of letters, digits and . _ + @ - /")
        if len(self.prefix) > 80:
            raise errors.UsageError(f"--prefix: {self.prefix!r} is too long", hint="at most 80 characters")
        if re.search(r"[\s\"\\]", self.store):
            raise errors.UsageError(f"--store: {self.store!r} is not an address", hint="a folder, or s3://BUCKET/PREFIX")
        if not 0 < units.parse_duration(self.lease_ttl, name="--lease-ttl") <= 300:
            raise errors.QuantityError(f"--lease-ttl: {self.lease_ttl!r} is not between 1s and 300s")

    @property
    def is_folder(self) -> bool:
        """Tell whether the store is a folder."""
        return bool(self.store) and "://" not in self.store

    def config(self, commands: str | None = None) -> bytes:
        """Return the configuration of a node; `commands`: the folder of Slurm's commands there."""
        found = (
            f'# Where scontrol and squeue are.\nslurm-bin = "{commands}"\n' if commands and commands not in USUAL_PATH.split(":") else ""
        )
        return (
            "# Written by perdure slurm install. Change it as you like: it is kept then.\n"
            f'store = "{self.store}"\n'
            "# How long a restore on another node waits for one that fell silent. Set: other nodes reach the store.\n"
            f'lease-ttl = "{self.lease_ttl}"\n{found}'
        ).encode()


POLICY = b"""# Which jobs Perdure keeps without being asked by them. perdure slurm policy apply puts a change into force.
#
# [opt-in]
# partitions = ["preempt"]
# qos = ["scavenger"]
# accounts = ["climate"]
# users = ["alice"]
#
# [never]                # beats everything, a job's own wish too
# users = ["bob"]
#
# [options]              # for jobs that give none of their own
# every = "auto"
# keep = 3
# before-end = "auto"
"""
"""The policy of a new installation: nobody."""
