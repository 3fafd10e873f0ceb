"""Small sealed records: the objects that locks, lives and pins keep. Called by the repository.

A record is a preamble, a salt (32), the length of the sealed part (4) and that part, bound to all before it and to the object's key.
"""

from __future__ import annotations

import struct

from perdure.store import codec
from perdure.store.crypto import TAG_BYTES, Damaged
from perdure.store.keys import SALT_BYTES, Keys

MAGIC = b"PDRrecd\n"
MAX_BYTES = 1024 * 1024
_LENGTH = struct.Struct("<I")
_FRONT_BYTES = codec.PREAMBLE_BYTES + SALT_BYTES + _LENGTH.size
MAX_OBJECT_BYTES = _FRONT_BYTES + MAX_BYTES + TAG_BYTES + 64


def encode(keys: Keys, key: str, content: bytes, salt: bytes) -> bytes:
    """Return the object that holds `content` under `key`; `salt` is fresh and random."""
    if len(content) > MAX_BYTES:
        raise ValueError("a record has at most 1 MiB")
    wrapped = codec.wrap(content)
    front = codec.preamble(keys, MAGIC) + salt + _LENGTH.pack(len(wrapped) + TAG_BYTES)
    return front + keys.seal_for(salt).seal(0, wrapped, front + key.encode())


def decode(keys: Keys, key: str, stored: bytes) -> bytes:
    """Return what the object `stored` under `key` holds. Raises `errors.StoreCorrupt`, `errors.StoreFormat`."""
    codec.check_preamble(keys, MAGIC, stored, key)
    front, part = stored[:_FRONT_BYTES], memoryview(stored)[_FRONT_BYTES:]
    try:
        if len(front) < _FRONT_BYTES or _LENGTH.unpack(front[-_LENGTH.size :])[0] != len(part):
            raise Damaged
        salt = front[codec.PREAMBLE_BYTES : codec.PREAMBLE_BYTES + SALT_BYTES]
        return codec.unwrap(keys.seal_for(salt).open(0, part, front + key.encode()), max_bytes=MAX_BYTES)
    except Damaged:
        raise codec.corrupt(key, "its content is not what was written") from None
