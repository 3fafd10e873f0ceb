"""The object `perdure.json`: what a store is, and what its keys are derived from. Called by the repository when it makes or opens a store.

One JSON object on one line. Its last member is ``digest``: BLAKE3, hexadecimal, of everything before the comma in front of it, in this and
all future formats: so that damage is told from a newer format and from a wrong key file.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from perdure import errors
from perdure.store import codec, hashing, layout
from perdure.store.keys import Keys

FORMAT = 1
MAX_BYTES = 4096
_TAIL = re.compile(rb',"digest":"([0-9a-f]{64})"\}\n?')
_TAIL_BYTES = len(b',"digest":""}') + 64

_Hex32 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    encrypted: bool
    secret: _Hex32
    check: _Hex32


class _Any(msgspec.Struct, frozen=True):
    format: int


def encode(repository_id: str, secret: bytes, keys: Keys) -> bytes:
    """Return the object for a new store."""
    config = _Config(format=FORMAT, id=repository_id, encrypted=keys.encrypted, secret=secret.hex(), check=keys.check.hex())
    body = msgspec.json.encode(config)[:-1]
    msgspec.json.decode(body + b"}", type=_Config)
    return body + b',"digest":"' + hashing.digest(body) + b'"}\n'


def decode(content: bytes, key_file: bytes | None) -> tuple[str, Keys]:
    """Return the store's id and keys.

    Raises `errors.StoreCorrupt`, `errors.StoreFormat`, and `errors.StoreKeyWrong` for a key file that is wrong, missing or not asked for.
    """
    config = _decode(content)
    if config.encrypted and key_file is None:
        raise errors.StoreKeyWrong("the store is encrypted, and no key file was given", hint="give the key file: --key-file FILE")
    if not config.encrypted and key_file is not None:
        raise errors.StoreKeyWrong(
            "a key file was given, but the store is not encrypted", hint="leave out --key-file, or name another --store"
        )
    keys = Keys(bytes.fromhex(config.secret), key_file)
    if keys.check.hex() != config.check:
        raise errors.StoreKeyWrong("the key file is not the one that the store was made with", hint="give the right one: --key-file FILE")
    return config.id, keys


def _decode(content: bytes) -> _Config:
    content = content.removesuffix(b"\n")
    body, tail = content[:-_TAIL_BYTES], _TAIL.fullmatch(content[-_TAIL_BYTES:])
    if len(content) > MAX_BYTES or not tail or hashing.digest(body) != tail[1]:
        raise codec.corrupt(layout.CONFIG, "it is not what was written")
    try:
        if (found := msgspec.json.decode(body + b"}", type=_Any).format) != FORMAT:
            raise errors.StoreFormat(
                f"the store has format {found}: this Perdure reads format {FORMAT}", hint="use the Perdure that made it, or a newer one"
            )
        return msgspec.json.decode(body + b"}", type=_Config)
    except msgspec.DecodeError:
        raise codec.corrupt(layout.CONFIG, "it does not say what it should") from None


def check(content: bytes, repository_id: str, keys: Keys) -> None:
    """Check that `content` is still the object of the store that was opened. Raises `errors.StoreCorrupt`, `errors.StoreFormat`."""
    config = _decode(content)
    if not content.endswith(b"\n"):
        # Opening a store forgives a lost end of line; a verification tells even that.
        raise codec.corrupt(layout.CONFIG, "it was cut short")
    if config.id != repository_id or config.encrypted != keys.encrypted or config.check != keys.check.hex():
        raise codec.corrupt(layout.CONFIG, "it is another store's")
