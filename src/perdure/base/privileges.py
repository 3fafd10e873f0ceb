"""What this process may do: root, and the kernel's capabilities. Called by whatever needs more than an ordinary user has."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

CAPABILITIES: dict[str, int] = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_CHROOT": 18,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_CHECKPOINT_RESTORE": 40,
}
"""Number of each capability that somebody here asks for, as in linux/capability.h."""


def effective(status: str) -> frozenset[str]:
    """Return the effective capabilities (of those in `CAPABILITIES`) that `status`, the text of a /proc/PID/status, shows."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            mask = int(value, 16)
            return frozenset(name for name, number in CAPABILITIES.items() if mask >> number & 1)
    return frozenset()


def own() -> frozenset[str]:
    """Return the effective capabilities of this process."""
    return effective(Path("/proc/self/status").read_text("ascii", "replace"))


def missing(wanted: Iterable[str]) -> tuple[str, ...]:
    """Return those of `wanted` that this process does not have, in their order."""
    have = own()
    return tuple(name for name in wanted if name not in have)


def is_root() -> bool:
    """Tell whether the effective user is root."""
    return os.geteuid() == 0
