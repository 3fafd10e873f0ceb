"""How processes ended that are no children of ours, as far as the kernel tells. Called by `checkpoint.aftermath`.

From Linux 6.15 on a pidfd that was opened before the end tells the wait status afterwards (PIDFD_GET_INFO in include/uapi/linux/pidfd.h);
that of a zombie can be read by root on any kernel.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
from collections.abc import Collection, Iterable

from perdure import errors
from perdure.base.proc import process

_GET_INFO = 0xC040FF0B
"""_IOWR(0xFF, 11, struct pidfd_info), at the 64 bytes of its first version."""
_EXIT = 1 << 3
_EXIT_CODE_OFFSET = 60
_INFO = struct.Struct("<Q56x")
_MOST = 256
"""Descriptors are few, and others need some meanwhile: of a larger tree the first ones are watched."""


class Exits:
    """Watches the processes `pids` until it is closed; a context. Those that are gone already are passed over."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._descriptors: dict[int, int] = {}
        for pid in list(pids)[:_MOST]:
            try:
                self._descriptors[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            except OSError:  # no more descriptors
                break

    def __enter__(self) -> Exits:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def wait(self, pid: int, limit_s: float) -> None:
        """Wait, `limit_s` at most, until `pid` has ended, if it is watched."""
        if pid in self._descriptors:
            ready = select.poll()
            ready.register(self._descriptors[pid], select.POLLIN)
            ready.poll(limit_s * 1000.0)

    def killed_by(self, numbers: Collection[int]) -> tuple[int, ...]:
        """Return the PIDs of those that are known to have died of one of the signals `numbers`."""
        return tuple(pid for pid, descriptor in self._descriptors.items() if _signal_that_ended(pid, descriptor) in numbers)


def _signal_that_ended(pid: int, descriptor: int) -> int | None:
    """Return the signal that ended a process, 0 for one that exited; None: it lives, or nobody tells."""
    status = _status_of_reaped(descriptor)
    if status is None and _has_ended(descriptor):
        # Not reaped yet, so that the number is still its own; or nobody tells, and the number may be another's, who lives.
        with contextlib.suppress(errors.ProcessGone):
            stat = process.stat(pid)
            status = stat.exit_status if stat.is_dead else None
    return None if status is None else status & 0x7F


def _has_ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _status_of_reaped(descriptor: int) -> int | None:
    told = bytearray(_INFO.pack(_EXIT))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, told)
    except OSError:
        return None
    if not _INFO.unpack_from(told)[0] & _EXIT:
        return None
    return int.from_bytes(told[_EXIT_CODE_OFFSET : _EXIT_CODE_OFFSET + 4], "little")
