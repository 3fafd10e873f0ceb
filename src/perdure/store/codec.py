"""What all objects of a store share: how they begin, and how a sealed part is laid out. Called by `manifests`, `packs` and `records`.

All integers are unsigned and little-endian.

A preamble is 16 bytes: magic (8), version (2), flags (2; bit 0: encrypted), check (4). The check is keyed and covers what is before it, in
this and all future formats: so that an object of a newer format is told from a damaged one.
"""

from __future__ import annotations

import struct

from perdure import errors
from perdure.store import compression, hashing
from perdure.store.crypto import Damaged
from perdure.store.hashing import Bytes
from perdure.store.keys import Keys

VERSION = 1
PREAMBLE_BYTES = 16
_ENCRYPTED = 1
_HEAD = struct.Struct("<8sHH")
_CHECK_BYTES = 4

_PART = struct.Struct("<III")
_RAW, _ZSTD = 0, 1


def preamble(keys: Keys, magic: bytes) -> bytes:
    """Return the preamble of an object of this format; `magic` has 8 bytes."""
    head = _HEAD.pack(magic, VERSION, _ENCRYPTED if keys.encrypted else 0)
    return head + hashing.keyed(keys.preamble, _CHECK_BYTES, head)


def check_preamble(keys: Keys, magic: bytes, content: Bytes, key: str) -> None:
    """Check that `content` begins as an object of this format does. `key` is the object's.

    Raises `errors.StoreCorrupt`, and `errors.StoreFormat` for an undamaged object of another format.
    """
    start = bytes(content[:PREAMBLE_BYTES])
    if start == preamble(keys, magic):
        return
    head = start[: _HEAD.size]
    if len(start) == PREAMBLE_BYTES and hashing.keyed(keys.preamble, _CHECK_BYTES, head) == start[_HEAD.size :]:
        found, version, flags = _HEAD.unpack(head)
        if found == magic:
            raise errors.StoreFormat(
                f"{key} has format {version}.{flags}: this Perdure reads format {VERSION}",
                hint="use the Perdure that wrote it, or a newer one",
            )
    raise corrupt(key, "it does not begin as it should")


def corrupt(key: str, reason: str) -> errors.StoreCorrupt:
    """Return the error for a damaged object."""
    return errors.StoreCorrupt(
        f"{key} is damaged: {reason}",
        hint="see what else is with: perdure store verify; restore an older checkpoint meanwhile",
        object_key=key,
    )


def wrap(plain: bytes, *, size_bytes: int = 0) -> bytes:
    """Return `plain`, compressed where it pays, with its lengths before it and zeros after it up to `size_bytes` in all."""
    compressed = compression.compress(plain)
    content = plain if compressed is None else compressed
    wrapped = _PART.pack(len(plain), len(content), _RAW if compressed is None else _ZSTD) + content
    return wrapped + bytes(max(0, size_bytes - len(wrapped)))


def unwrap(wrapped: Bytes, *, max_bytes: int) -> bytes:
    """Return what was wrapped, at most `max_bytes`. Raises `Damaged`."""
    if len(wrapped) < _PART.size:
        raise Damaged
    plain_bytes, content_bytes, encoding = _PART.unpack_from(wrapped)
    content = memoryview(wrapped)[_PART.size :]
    if plain_bytes > max_bytes or content_bytes > len(content) or any(content[content_bytes:]):
        raise Damaged
    content = content[:content_bytes]
    if encoding == _ZSTD:
        return compression.decompress(content, plain_bytes)
    if encoding != _RAW or plain_bytes != content_bytes:
        raise Damaged
    return bytes(content)
