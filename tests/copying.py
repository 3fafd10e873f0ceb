"""A driver that does nothing but copy, in this process's own memory: for what copies GPU memory through buffers."""

from __future__ import annotations

import ctypes
import threading

from perdure.checkpoint.cuda.contract import Trouble
from perdure.checkpoint.cuda.stretches import Refused


class Driver:
    """Copies, and counts page-locked memory. `fails_at` is the number of the copy that fails, from 1."""

    api = None

    def __init__(self, *, locks: bool = True, fails_at: int = 0) -> None:
        self.locks, self.fails_at = locks, fails_at
        self.locked: dict[int, ctypes.Array] = {}
        self.most_locked = self.copies = 0
        self.guard = threading.Lock()

    def call(self, function: str, *arguments):
        with self.guard:
            return getattr(self, function)(*arguments)

    def cuMemHostAlloc(self, size_bytes, flags):
        assert flags == 1
        if not self.locks:
            raise Refused(Trouble.NO_MEMORY, "no more memory can be locked")
        made = ctypes.create_string_buffer(size_bytes)
        self.locked[ctypes.addressof(made)] = made
        self.most_locked = max(self.most_locked, sum(map(len, self.locked.values())))
        return ctypes.addressof(made)

    def cuMemFreeHost(self, address):
        del self.locked[address]

    def _copy(self, to, source, size_bytes):
        self.copies += 1
        if self.copies == self.fails_at:
            raise Refused(Trouble.OTHER, "the copy failed")
        ctypes.memmove(to, source, size_bytes)

    def cuMemcpyDtoHAsync(self, host, device, size_bytes, _stream):
        self._copy(host, device, size_bytes)

    def cuMemcpyHtoDAsync(self, device, host, size_bytes, _stream):
        self._copy(device, host, size_bytes)

    def cuStreamSynchronize(self, _stream):
        return None

    def cuDevicePrimaryCtxRetain(self, device):
        return device + 1

    cuCtxSetCurrent = cuDevicePrimaryCtxRelease = cuStreamSynchronize
