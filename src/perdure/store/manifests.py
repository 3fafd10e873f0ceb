"""Manifest objects: a head that says what the checkpoint is, and a body that says where its content lies. Called by the writer and the
repository.

::

    preamble (16) · salt (32) · bytes of the head u32 · bytes of the body u32       the front
    head        sealed (number 0), wrapped: the `Manifest` as JSON
    body        sealed (number 1), wrapped: the packs and the extents of every file, see `_plain_body`

Both are bound to the front and to the object's key: a manifest cannot be altered, given to another workload or moved to another epoch.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Sequence

import msgspec

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES, Manifest
from perdure.store import codec, layout, packs
from perdure.store.backends.contract import MAX_OBJECT_BYTES
from perdure.store.crypto import TAG_BYTES, Damaged
from perdure.store.extents import HOLE, Extents
from perdure.store.hashing import Bytes
from perdure.store.keys import SALT_BYTES, Keys
from perdure.store.packs import PackRef

MAGIC = b"PDRmani\n"
MAX_HEAD_BYTES = 64 * 1024 * 1024
MAX_BODY_BYTES = 1024 * 1024 * 1024

_LENGTHS = struct.Struct("<II")
FRONT_BYTES = codec.PREAMBLE_BYTES + SALT_BYTES + _LENGTHS.size
_HEAD, _BODY = 0, 1
_HEAD_STEP_BYTES = 64
_COUNTS = struct.Struct("<III")
_U32 = 2**32


class Body(msgspec.Struct, frozen=True):
    """Where a checkpoint's content lies: its packs, numbered from 1, and the extents of each file in the order of the head's `files`."""

    packs: tuple[PackRef, ...]
    files: tuple[Extents, ...]
    salt: bytes = b""
    """The manifest's own: tells it from another one that had the same key before."""


def plain(head: Manifest) -> bytes:
    """Return `head` as JSON, of ASCII alone."""
    # Not msgspec's JSON: names of files and arguments may be bytes that are no UTF-8, held as lone surrogates.
    return json.dumps(msgspec.to_builtins(head), separators=(",", ":")).encode("ascii")


def of_plain(content: bytes, name: str) -> Manifest:
    """Return the head that `plain` was given; `name` says where it stands. Raises `errors.StoreFormat` for anything else."""
    try:
        return msgspec.convert(json.loads(content), type=Manifest)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise errors.StoreFormat(
            f"{name} says things that this Perdure does not know: {error}", hint="use the Perdure that wrote it, or a newer one"
        ) from error


def encode(keys: Keys, salt: bytes, head: Manifest, body: bytes, *, least_head_bytes: int = 0) -> tuple[bytes, int]:
    """Return the manifest object, and the bytes that its head was given.

    `body` comes from `wrap_body`. The head is filled up to a multiple of 64 bytes and to `least_head_bytes`: so that its length, which
    counts towards the sizes that stand in it, can be settled.
    """
    key = layout.manifest_key(head.id)
    wrapped = codec.wrap(plain(head))
    head_bytes = max(-(-len(wrapped) // _HEAD_STEP_BYTES) * _HEAD_STEP_BYTES, least_head_bytes)
    wrapped += bytes(head_bytes - len(wrapped))
    front = codec.preamble(keys, MAGIC) + salt + _LENGTHS.pack(head_bytes + TAG_BYTES, len(body) + TAG_BYTES)
    seal, bound = keys.seal_for(salt), front + key.encode()
    return front + seal.seal(_HEAD, wrapped, bound) + seal.seal(_BODY, body, bound), head_bytes


class Opened:
    """A manifest object of which the front has been read. Raises `errors.StoreCorrupt`, `errors.StoreFormat`.

    `start` is the object's beginning, `FRONT_BYTES` at least.
    """

    def __init__(self, keys: Keys, key: str, start: bytes) -> None:
        codec.check_preamble(keys, MAGIC, start, key)
        self._front = start[:FRONT_BYTES]
        if len(self._front) < FRONT_BYTES:
            raise codec.corrupt(key, "it ends too soon")
        self._key = key
        self.salt = self._front[codec.PREAMBLE_BYTES : codec.PREAMBLE_BYTES + SALT_BYTES]
        self.head_bytes: int
        self.body_bytes: int
        self.head_bytes, self.body_bytes = _LENGTHS.unpack(self._front[-_LENGTHS.size :])
        if self.size_bytes > MAX_OBJECT_BYTES:
            raise codec.corrupt(key, "it claims an impossible length")
        self._seal = keys.seal_for(self.salt)

    @property
    def size_bytes(self) -> int:
        """Length of the whole object."""
        return FRONT_BYTES + self.head_bytes + self.body_bytes

    def head(self, sealed: Bytes) -> Manifest:
        """Return the head, from its sealed bytes."""
        manifest = of_plain(self._part(_HEAD, sealed, MAX_HEAD_BYTES), self._key)
        if layout.manifest_key(manifest.id) != self._key:
            raise codec.corrupt(self._key, f"it is the manifest of {manifest.id}")
        return manifest

    def body(self, sealed: Bytes, head: Manifest) -> Body:
        """Return the body, from its sealed bytes, checked against `head`."""
        try:
            body = read_body(self._part(_BODY, sealed, MAX_BODY_BYTES), self.salt)
            _check_body(body, head)
        except (Damaged, struct.error):
            raise codec.corrupt(self._key, "its table of contents makes no sense") from None
        return body

    def _part(self, number: int, sealed: Bytes, max_bytes: int) -> bytes:
        try:
            return codec.unwrap(self._seal.open(number, sealed, self._front + self._key.encode()), max_bytes=max_bytes)
        except Damaged:
            raise codec.corrupt(self._key, "it is not what was written") from None


def wrap_body(packs: Sequence[PackRef], files: Sequence[Extents]) -> bytes:
    """Return the body of a manifest, ready for `encode`."""
    return codec.wrap(_plain_body(packs, files))


def _plain_body(packs: Sequence[PackRef], files: Sequence[Extents]) -> bytes:
    """Return: counts of packs, files and extents (u32 each); the packs' names; then columns of u32, each as four planes of bytes, lowest
    first, so that the many zeros of the upper ones compress to nothing: the packs' sizes and slots, the files' counts of extents, and for
    all extents their packs, their skips and their counts.

    A skip is the first slot less the slot after the extent before in the same pack and manifest (0 for the first), modulo 2**32: mostly 0.
    """
    extents = sum(map(len, files))
    columns = [
        array("I", [pack.size_bytes for pack in packs]),
        array("I", [pack.slots for pack in packs]),
        array("I", map(len, files)),
    ]
    numbers, skips, counts = array("I"), array("I"), array("I")
    following = [0] * (len(packs) + 1)
    for file in files:
        numbers.extend(file.packs)
        counts.extend(file.counts)
        for pack, first, count in file:
            skips.append((first - following[pack]) % _U32)
            following[pack] = first + count if pack != HOLE else 0
    planes = [_planes(column) for column in (*columns, numbers, skips, counts)]
    return b"".join([_COUNTS.pack(len(packs), len(files), extents), *[pack.name for pack in packs], *planes])


def _planes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array("I", column)
        column.byteswap()
    flat = column.tobytes()
    return b"".join([flat[plane::4] for plane in range(4)])


def read_body(plain: bytes, salt: bytes) -> Body:
    """Return the body that `wrap_body` made, unwrapped. Raises `Damaged`, and `struct.error` for one that is too short."""
    pack_count, file_count, extent_count = _COUNTS.unpack_from(plain)
    names_end = _COUNTS.size + pack_count * layout.PACK_NAME_BYTES
    if len(plain) != names_end + 4 * (2 * pack_count + file_count + 3 * extent_count):
        raise Damaged
    names = [plain[at : at + layout.PACK_NAME_BYTES] for at in range(_COUNTS.size, names_end, layout.PACK_NAME_BYTES)]
    columns, at = [], names_end
    for length in (pack_count, pack_count, file_count, extent_count, extent_count, extent_count):
        columns.append(_column(plain[at : at + 4 * length], length))
        at += 4 * length
    sizes, slots, lengths, *of_extents = columns
    refs = tuple(PackRef(*fields) for fields in zip(names, sizes, slots, strict=True))
    if len(set(names)) != pack_count or sum(lengths) != extent_count:
        raise Damaged
    return Body(refs, _files(refs, lengths, *of_extents), salt)


def _column(planes: bytes, length: int) -> array[int]:
    flat = bytearray(4 * length)
    for plane in range(4):
        flat[plane::4] = planes[plane * length : (plane + 1) * length]
    column = array("I", bytes(flat))
    if sys.byteorder == "big":
        column.byteswap()
    return column


def _files(
    refs: tuple[PackRef, ...], lengths: array[int], numbers: array[int], skips: array[int], counts: array[int]
) -> tuple[Extents, ...]:
    following = [0] * (len(refs) + 1)
    limits = [_U32, *[ref.slots for ref in refs]]
    files, at = [], 0
    for length in lengths:
        file = Extents()
        for pack, skip, count in zip(numbers[at : at + length], skips[at : at + length], counts[at : at + length], strict=True):
            if pack > len(refs) or not count:
                raise Damaged
            first = (following[pack] + skip) % _U32
            if first + count > limits[pack]:
                raise Damaged
            following[pack] = first + count if pack != HOLE else 0
            file.append(pack, first, count)
        files.append(file)
        at += length
    return tuple(files)


def _check_body(body: Body, head: Manifest) -> None:
    if len(body.files) != len(head.files):
        raise Damaged
    for extents, file in zip(body.files, head.files, strict=True):
        if file.size_bytes < 0 or extents.blocks != -(-file.size_bytes // BLOCK_BYTES):
            raise Damaged
    for pack in body.packs:
        if not 0 < pack.slots <= packs.MAX_SLOTS or not packs.tail_bytes(pack.slots) < pack.size_bytes <= packs.MAX_BYTES:
            raise Damaged
