"""A process that holds GPU memory and can say what is in it: run as ``python -m perdure.checkpoint.host.gpu_buffers UUID BYTES``.

It speaks to the driver as any program does, through libcuda and without a checkpoint call: it is what is saved and brought back, by
`perdure doctor --gpu`, by the tests on a GPU and by `scripts/gpu-proof`. It answers each line on stdin with one on stdout, ends when
stdin does, and needs nothing but Python.

- ``digest``: the SHA-256 of the whole content, read back from the GPU
- ``step N``: change one word in each mebibyte, so that the content goes on changing
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import re
import sys
from collections.abc import Callable, Iterator

_LIBRARY = "libcuda.so.1"
_CHUNK_BYTES = 64 << 20
"""One allocation is at most so large, and so much is read back at once."""
_STRIDE_BYTES = 1 << 20
_TURN_BYTES = 17
"""Odd, so that 4096 chunks come before blocks repeat."""
_WORD = 4


class DriverError(Exception):
    """The driver refused a call."""


class Buffers:
    """GPU memory of `size_bytes` on the device `uuid`, filled with what neither compresses nor repeats, as weights do not."""

    def __init__(self, uuid: str, size_bytes: int) -> None:
        self._cuda = ctypes.CDLL(_LIBRARY)
        self._call("cuInit", ctypes.c_uint(0))
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(self._ordinal(uuid)))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._chunks: list[tuple[ctypes.c_uint64, int]] = []
        base = random.Random(0).randbytes(min(size_bytes, _CHUNK_BYTES) or _WORD)  # noqa: S311 - content, no secret
        for number, chunk_bytes in enumerate(_chunks(size_bytes)):
            address = ctypes.c_uint64()
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(chunk_bytes))
            self._chunks.append((address, chunk_bytes))
            self._write(address, 0, _pattern(base, number, chunk_bytes))

    def digest(self) -> str:
        """Return the SHA-256 of the whole content, read back from the GPU, in hexadecimal."""
        found = hashlib.sha256()
        host = ctypes.create_string_buffer(min(_CHUNK_BYTES, max((size for _, size in self._chunks), default=0)))
        for address, chunk_bytes in self._chunks:
            self._call("cuMemcpyDtoH_v2", host, address, ctypes.c_size_t(chunk_bytes))
            found.update(memoryview(host)[:chunk_bytes])
        return found.hexdigest()

    def step(self, amount: int) -> None:
        """Set one word in each `_STRIDE_BYTES` to `amount` and its place."""
        for number, (address, chunk_bytes) in enumerate(self._chunks):
            for offset in range(0, chunk_bytes, _STRIDE_BYTES):
                self._write(address, offset, ((amount + number + offset) % (1 << 32)).to_bytes(_WORD, "little"))

    def _write(self, address: ctypes.c_uint64, offset: int, content: bytes) -> None:
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address.value + offset), content, ctypes.c_size_t(len(content)))

    def _ordinal(self, uuid: str) -> int:
        """Return which device of this process's `uuid` names; the first one for ``-``."""
        if uuid == "-":
            return 0
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        for ordinal in range(count.value):
            raw, device = (ctypes.c_ubyte * 16)(), ctypes.c_int()
            self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
            self._call("cuDeviceGetUuid_v2", raw, device)
            if bytes(raw).hex() == re.sub(r"^GPU-|-", "", uuid):
                return ordinal
        raise DriverError(f"no GPU {uuid} is visible to this process")

    def _call(self, function: str, *arguments: object) -> None:
        entry: Callable[..., int] = getattr(self._cuda, function)
        number = entry(*arguments)
        if number != 0:
            raise DriverError(f"{function}: error {number}")


def _chunks(size_bytes: int) -> Iterator[int]:
    left = size_bytes // _WORD * _WORD
    while left:
        yield min(left, _CHUNK_BYTES)
        left -= min(left, _CHUNK_BYTES)


def _pattern(base: bytes, number: int, chunk_bytes: int) -> bytes:
    """Return the content of chunk `number`: `base`, turned so far that no block of 4 KiB is that of another chunk."""
    at = number * _TURN_BYTES % len(base)
    return (base[at:] + base[:at])[:chunk_bytes]


def main(arguments: list[str]) -> int:
    """Hold the memory and answer what stdin asks. Returns the exit status."""
    try:
        buffers = Buffers(arguments[0], int(arguments[1]))
        print("ready", flush=True)  # noqa: T201 - this is the answer
        for line in sys.stdin:
            words = line.split()
            if words[:1] == ["step"]:
                buffers.step(int(words[1]))
                print("stepped", flush=True)  # noqa: T201
            else:
                print(buffers.digest(), flush=True)  # noqa: T201
    except (DriverError, OSError) as error:
        print(f"refused {error}", flush=True)  # noqa: T201
        return 20
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
