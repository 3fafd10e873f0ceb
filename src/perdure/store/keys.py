"""The keys of a store: one master, and a key of its own for each use. Called by the repository when it makes or opens a store.

Everything is BLAKE3: `derive_key` with a context string for each use, the keyed hash for ids and names. What it says in
`docs/reference/store-format.md` is the rule; the contexts here never change within a format.
"""

from __future__ import annotations

from perdure import errors
from perdure.store import hashing
from perdure.store.crypto import PlainSeal, Seal, SecretSeal

SECRET_BYTES = 32
SALT_BYTES = 32
KEY_FILE_MIN_BYTES = 32
KEY_FILE_MAX_BYTES = 1024 * 1024
BLOCK_ID_BYTES = 16

_CONTEXT = "perdure.store 2026-11 "


def _derive(use: str, material: bytes) -> bytes:
    return hashing.derive(_CONTEXT + use, material)


class Keys:
    """All keys of one store.

    `secret` is the store's own 32 random bytes, from its configuration; `key_file` is what the key file holds, or None for a store that
    is not encrypted. Without a key file whoever reads the configuration has the keys: they then protect against accident and against users
    who cannot read the store, not against those who can.
    """

    def __init__(self, secret: bytes, key_file: bytes | None) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a store's secret has {SECRET_BYTES} bytes")
        if key_file is not None and not KEY_FILE_MIN_BYTES <= len(key_file) <= KEY_FILE_MAX_BYTES:
            raise errors.StoreKeyWrong(
                f"the key file holds {len(key_file)} bytes: it needs at least {KEY_FILE_MIN_BYTES}, and at most 1 MiB",
                hint="make one with: head -c 32 /dev/urandom > KEYFILE && chmod 600 KEYFILE",
            )
        self.encrypted = key_file is not None
        master = _derive("master of an open store", secret) if key_file is None else _derive("master of a key file", secret + key_file)
        self.check = _derive("check value", master)
        """32 bytes that the configuration holds, to tell a wrong key file from damage. Gives nothing away of any other key."""
        self.preamble = _derive("preamble", master)
        self.block = _derive("block id", master)
        self.pack = _derive("pack name", master)
        self.fingerprint = _derive("fingerprint", master)
        self.cache = _derive("cache file", master)
        self._seal = _derive("seal", master)

    def seal_for(self, salt: bytes) -> Seal:
        """Return the seal of the object in which `salt`, `SALT_BYTES` random bytes, lies."""
        key = hashing.keyed(self._seal, 32, salt)
        return SecretSeal(key) if self.encrypted else PlainSeal(key)
