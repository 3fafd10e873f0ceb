"""The file that carries one checkpoint from store to store: writing it and reading it, part by part. Called by `transfer`.

All integers are unsigned and little-endian.

::

    front    magic (8) · version u16 · flags u16 (bit 0: a key file is needed) · zeros u32 · salt (32) · check (32)
    parts    length u32 · that many sealed bytes, numbered from 0
               0: the manifest as JSON
               1 …: the files' contents in the order of the manifest, each cut into pieces of 1 MiB; an empty file has none
               the last: the number of parts before it, u64

Every part is wrapped and sealed as in a store (`codec`, `crypto`), bound to the front and to what it is. The keys are derived from the salt
and from what the key file holds. Without a key file they come from the salt alone: then the seals find damage, and prove nothing about who
made the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

import msgspec

from perdure import errors
from perdure.model.checkpoint import Manifest
from perdure.store import codec, manifests, names
from perdure.store.crypto import TAG_BYTES, Damaged
from perdure.store.keys import Keys

MAGIC = b"PDRexpo\n"
VERSION = 1
SALT_BYTES = 32
PIECE_BYTES = 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024 * 1024

_KEYED = 1
_FRONT = struct.Struct(f"<8sHHI{SALT_BYTES}s32s")
_LENGTH = struct.Struct("<I")
_COUNT = struct.Struct("<Q")
_SLACK_BYTES = TAG_BYTES + 64
"""A sealed part is at most this much longer than what is in it."""


class Writer:
    """Writes the file to `handle`. `salt` is fresh and random, 32 bytes; `key_file` is what the key file holds, None without."""

    def __init__(self, handle: IO[bytes], manifest: Manifest, *, salt: bytes, key_file: bytes | None) -> None:
        keys = Keys(salt, key_file)
        self._handle = handle
        self._seal = keys.seal_for(salt)
        self._front = _FRONT.pack(MAGIC, VERSION, _KEYED if key_file is not None else 0, 0, salt, keys.check)
        self._parts = 0
        handle.write(self._front)
        self._write(b"manifest", manifests.plain(manifest))

    def piece(self, content: bytes) -> None:
        """Write the next piece: `PIECE_BYTES`, fewer only at the end of a file."""
        self._write(b"piece", content)

    def finish(self) -> None:
        """Write the end."""
        self._write(b"end", _COUNT.pack(self._parts))

    def _write(self, what: bytes, content: bytes) -> None:
        sealed = self._seal.seal(self._parts, codec.wrap(content), self._front + what)
        self._handle.write(_LENGTH.pack(len(sealed)))
        self._handle.write(sealed)
        self._parts += 1


class Front(msgspec.Struct, frozen=True):
    """The beginning of a file, before any key is known."""

    raw: bytes
    keyed: bool
    """A key file is needed; else nothing proves who made it."""

    def opens_with(self, key_file: bytes) -> bool:
        """Tell whether this is the key file that it was made with."""
        return Keys(self._salt, key_file).check == self._check

    @property
    def _salt(self) -> bytes:
        salt: bytes = _FRONT.unpack(self.raw)[4]
        return salt

    @property
    def _check(self) -> bytes:
        check: bytes = _FRONT.unpack(self.raw)[5]
        return check


def read_front(handle: IO[bytes], name: str) -> Front:
    """Read the beginning of the file; `name` is for messages. Raises `errors.InputFormat`, `errors.StoreFormat`."""
    raw = handle.read(_FRONT.size)
    if len(raw) < _FRONT.size or raw[: len(MAGIC)] != MAGIC:
        raise errors.InputFormat(f"{name} is not an exported checkpoint", hint="give a file that perdure store export wrote")
    _, version, flags, zeros, _, _ = _FRONT.unpack(raw)
    if version != VERSION or flags & ~_KEYED or zeros:
        raise errors.StoreFormat(f"{name} has format {version}: this Perdure reads format {VERSION}", hint="use the Perdure that wrote it")
    front = Front(raw, bool(flags & _KEYED))
    if not front.keyed and Keys(raw[16 : 16 + SALT_BYTES], None).check != raw[16 + SALT_BYTES :]:
        raise _damaged(name)
    return front


class Reader:
    """Reads the file from `handle`, whose front has been read. Everything that it returns has been authenticated, as far as keys go.

    Raises `errors.InputFormat` for a damaged or hostile file; never allocates more than one part needs.
    """

    def __init__(self, handle: IO[bytes], front: Front, *, key_file: bytes | None, name: str) -> None:
        salt = front.raw[16 : 16 + SALT_BYTES]
        self._handle = handle
        self._name = name
        self._front = front.raw
        self._seal = Keys(salt, key_file if front.keyed else None).seal_for(salt)
        self._parts = 0
        self.manifest = manifests.of_plain(self._read(b"manifest", MAX_HEAD_BYTES), name)
        self._check_files()

    def pieces(self, size_bytes: int) -> Iterator[bytes]:
        """Yield the content of the next file, of `size_bytes`, in pieces."""
        while size_bytes:
            wanted = min(size_bytes, PIECE_BYTES)
            content = self._read(b"piece", wanted)
            if len(content) != wanted:
                raise _damaged(self._name)
            yield content
            size_bytes -= wanted

    def finish(self) -> None:
        """Check that the file ends here and is whole."""
        if self._read(b"end", _COUNT.size) != _COUNT.pack(self._parts - 1) or self._handle.read(1):
            raise _damaged(self._name)

    def _read(self, what: bytes, max_bytes: int) -> bytes:
        length = self._handle.read(_LENGTH.size)
        if len(length) < _LENGTH.size:
            raise _damaged(self._name)
        (sealed_bytes,) = _LENGTH.unpack(length)
        if sealed_bytes > max_bytes + _SLACK_BYTES:
            raise _damaged(self._name)
        sealed = self._handle.read(sealed_bytes)
        try:
            content = codec.unwrap(self._seal.open(self._parts, sealed, self._front + what), max_bytes=max_bytes)
        except Damaged:
            raise _damaged(self._name) from None
        self._parts += 1
        return content

    def _check_files(self) -> None:
        files = self.manifest.files
        proper = all(names.is_safe(file.name) and file.size_bytes >= 0 and not file.mode & ~0o777 for file in files)
        if not proper or len({file.name for file in files}) != len(files):
            raise errors.InputFormat(f"{self._name} holds files with names or sizes that cannot be", hint="do not trust where it came from")


def _damaged(name: str) -> errors.InputFormat:
    return errors.InputFormat(f"{name} is damaged or cut short", hint="export the checkpoint again, and compare the files' sizes")
