"""BLAKE3 as the store uses it. The one module of this room that imports `blake3`; it lets other threads run while it hashes."""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

Bytes = bytes | bytearray | memoryview


def derive(context: str, material: bytes) -> bytes:
    """Return 32 bytes of key for the use that `context` names."""
    return blake3(material, derive_key_context=context).digest()


def digest(content: bytes) -> bytes:
    """Return the plain hash of `content`, hexadecimal."""
    return blake3(content).hexdigest().encode()


def keyed(key: bytes, size_bytes: int, *parts: Bytes) -> bytes:
    """Return `size_bytes` of the keyed hash of all `parts`, one after the other."""
    hasher = blake3(key=key)
    for part in parts:
        hasher.update(part)
    return hasher.digest(size_bytes)


def keyed_each(key: bytes, size_bytes: int, content: memoryview, step_bytes: int) -> bytes:
    """Return the keyed hashes of every `step_bytes` of `content`, `size_bytes` each, one after the other."""
    # A copy costs less than setting a key: 2.1 instead of 2.9 µs for a block in all.
    start = blake3(key=key)
    found = []
    for at in range(0, len(content), step_bytes):
        hasher = start.copy()
        hasher.update(content[at : at + step_bytes])
        found.append(hasher.digest(size_bytes))
    return b"".join(found)


def keyed_pieces(key: bytes, size_bytes: int, content: memoryview, ends: Sequence[int]) -> bytes:
    """Return the keyed hashes of the pieces of `content` that end at `ends`, `size_bytes` each, one after the other."""
    starts = [0, *ends[:-1]]
    return b"".join([blake3(content[start:end], key=key).digest(size_bytes) for start, end in zip(starts, ends, strict=True)])
