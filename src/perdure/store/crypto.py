"""Sealing: bytes that nobody without the store's key can alter, and in an encrypted store nobody can read. Called by `codec`.

The one module that uses `cryptography`. A seal belongs to one object: its key is derived from the store's and from 32 random bytes (the
salt) that lie in the object, so numbers that count from zero inside an object are nonces that never repeat under one key. Sealed bytes are
16 longer than plain ones. Without encryption the tag is a keyed BLAKE3 over the same things that AES-GCM authenticates.
"""

from __future__ import annotations

from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from perdure.store import hashing
from perdure.store.hashing import Bytes

TAG_BYTES = 16


class Damaged(Exception):
    """The bytes are not what was sealed. Stays inside the store: whoever knows the object's key turns it into `errors.StoreCorrupt`."""


class Seal(Protocol):
    """Seals and opens the parts of one object."""

    def seal(self, number: int, plain: Bytes, bound: bytes) -> bytes:
        """Return `plain` sealed, `TAG_BYTES` longer, bound to its `number` (below 2**64, used once) and to the bytes `bound`."""
        ...

    def open(self, number: int, sealed: Bytes, bound: bytes) -> Bytes:
        """Return what was sealed. Raises `Damaged`."""
        ...


class PlainSeal:
    """Authenticated, readable by all: for stores without a key file. `key` is 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def _tag(self, number: int, plain: Bytes, bound: bytes) -> bytes:
        front = number.to_bytes(8, "little") + len(bound).to_bytes(8, "little") + bound
        return hashing.keyed(self._key, TAG_BYTES, front, plain)

    def seal(self, number: int, plain: Bytes, bound: bytes) -> bytes:
        """See `Seal.seal`."""
        return b"".join((plain, self._tag(number, plain, bound)))

    def open(self, number: int, sealed: Bytes, bound: bytes) -> Bytes:
        """See `Seal.open`."""
        view = memoryview(sealed)
        plain = view[:-TAG_BYTES]
        # A keyed hash over data that an attacker can already read: how long the comparison takes tells nothing of use.
        if len(view) < TAG_BYTES or self._tag(number, plain, bound) != view[-TAG_BYTES:]:
            raise Damaged
        return plain


class SecretSeal:
    """AES-256-GCM: for stores with a key file. `key` is 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, number: int, plain: Bytes, bound: bytes) -> bytes:
        """See `Seal.seal`."""
        return self._cipher.encrypt(number.to_bytes(12, "little"), plain, bound)

    def open(self, number: int, sealed: Bytes, bound: bytes) -> Bytes:
        """See `Seal.open`."""
        try:
            return self._cipher.decrypt(number.to_bytes(12, "little"), sealed, bound)
        except InvalidTag:
            raise Damaged from None
