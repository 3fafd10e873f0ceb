"""zstd, where it pays. Called by `packs` for frames and by `codec` for the parts of manifests and records.

The one module of the node's side that uses zstd: from the standard library where it has it (Python 3.14), else from `backports.zstd`.
"""

from __future__ import annotations

import sys
import threading

from perdure.store.crypto import Damaged
from perdure.store.hashing import Bytes

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 1
"""The fastest ordinary level: memory of processes compresses little better at the next ones, at twice the time and more."""

PAYS = 0.9
"""Compressed bytes are kept when they are at most this part of the plain ones. Weights in floating point reach 0.95 at best: not worth
the time that restoring them would take."""

_SAMPLE_BYTES = 4096
_SAMPLES = 4

_own = threading.local()
"""A compressor for each thread: making one costs more than compressing a frame."""


def compress(plain: bytes | bytearray) -> bytes | None:
    """Return `plain` as one zstd frame, or None where that does not pay. Large ones are judged by a sample first."""
    if not hasattr(_own, "compressor"):
        _own.compressor = zstd.ZstdCompressor(level=LEVEL)
    whole = zstd.ZstdCompressor.FLUSH_FRAME
    if len(plain) >= 2 * _SAMPLES * _SAMPLE_BYTES:
        step = len(plain) // _SAMPLES
        sample = b"".join([plain[start : start + _SAMPLE_BYTES] for start in range(0, _SAMPLES * step, step)])
        if len(_own.compressor.compress(sample, whole)) > PAYS * len(sample):
            return None
    compressed: bytes = _own.compressor.compress(plain, whole)
    return compressed if len(compressed) <= PAYS * len(plain) else None


def decompress(compressed: Bytes, size_bytes: int) -> bytes:
    """Return what was compressed, which has to be `size_bytes` long; never more is allocated. Raises `Damaged`."""
    decompressor = zstd.ZstdDecompressor()
    try:
        plain: bytes = decompressor.decompress(compressed, size_bytes)
    except zstd.ZstdError:
        raise Damaged from None
    if len(plain) != size_bytes or not decompressor.eof or decompressor.unused_data:
        raise Damaged
    return plain
