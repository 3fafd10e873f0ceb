"""Content that lies in packs already, and belongs to no checkpoint yet. Called by the writer and by who stores before the rest is known.

What a workload has on a GPU is stored while it stands still, by another process than the one that stores the rest and commits. What the
one leaves to the other, for each file, is a record of this module: which packs, which blocks of them, and the fingerprints. It is sealed
with the store's keys, and small: some bytes for each stretch of blocks and 16 for each 64 KiB.

Nothing protects such packs from garbage collection but the lock of whoever wrote them; a commit looks whether they are there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES, Part, StoredFile
from perdure.store import codec, manifests
from perdure.store.crypto import Damaged
from perdure.store.extents import HOLE, Extents
from perdure.store.keys import SALT_BYTES, Keys
from perdure.store.objects import Objects
from perdure.store.packs import PackRef
from perdure.store.streaming import Streams

_MAGIC = b"PDRplcd\n"
_LENGTHS = struct.Struct("<QQQQ")
"""Size of the file, new blocks, bytes that were put for it, bytes of the body."""
_MOST_BYTES = 1 << 30
_NAME = "a record of what was stored before its checkpoint"


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Where the content of one file lies."""

    size_bytes: int
    packs: tuple[PackRef, ...]
    """Numbered from 1 by `extents`."""
    extents: Extents
    prints: bytes
    """Fingerprints of its pieces, as one run from address 0."""
    new_blocks: int
    put_bytes: int
    """What had to be put for it, in bytes of packs."""


def of_file(size_bytes: int, refs: tuple[PackRef, ...], extents: Extents, prints: bytes, *, new_blocks: int, put_bytes: int) -> Placed:
    """Return the record of a file with `extents` in `refs`, without the packs that it does not need."""
    numbers: dict[int, int] = {}
    own = Extents()
    for pack, first, count in extents:
        number = HOLE if pack == HOLE else numbers.setdefault(pack, len(numbers) + 1)
        own.append(number, first, count)
    return Placed(
        size_bytes=size_bytes,
        packs=tuple(refs[pack - 1] for pack in numbers),
        extents=own,
        prints=prints,
        new_blocks=new_blocks,
        put_bytes=put_bytes,
    )


class Placements:
    """Seals, opens and reads such records. Made by the repository."""

    def __init__(self, objects: Objects, keys: Keys, threads: int, random: Callable[[int], bytes]) -> None:
        self._objects, self._keys, self._threads, self._random = objects, keys, threads, random

    def encode(self, placed: Placed) -> bytes:
        """Return `placed` as a record."""
        body = manifests.wrap_body(placed.packs, [placed.extents])
        plain = _LENGTHS.pack(placed.size_bytes, placed.new_blocks, placed.put_bytes, len(body)) + body + placed.prints
        salt = self._random(SALT_BYTES)
        front = codec.preamble(self._keys, _MAGIC) + salt
        return front + self._keys.seal_for(salt).seal(0, plain, front)

    def decode(self, record: bytes) -> Placed:
        """Return what `encode` made a record of. Raises `errors.StoreCorrupt`, `errors.StoreFormat`."""
        codec.check_preamble(self._keys, _MAGIC, record, _NAME)
        front, sealed = record[: codec.PREAMBLE_BYTES + SALT_BYTES], record[codec.PREAMBLE_BYTES + SALT_BYTES :]
        try:
            plain = bytes(self._keys.seal_for(front[codec.PREAMBLE_BYTES :]).open(0, sealed, front))
            size_bytes, new_blocks, put_bytes, body_bytes = _LENGTHS.unpack_from(plain)
            end = _LENGTHS.size + body_bytes
            body = manifests.read_body(codec.unwrap(plain[_LENGTHS.size : end], max_bytes=_MOST_BYTES), b"")
            (extents,) = body.files
            if extents.blocks != -(-size_bytes // BLOCK_BYTES):
                raise Damaged
        except (Damaged, struct.error, ValueError):
            raise codec.corrupt(_NAME, "it is not what was written") from None
        return Placed(
            size_bytes=size_bytes, packs=body.packs, extents=extents, prints=plain[end:], new_blocks=new_blocks, put_bytes=put_bytes
        )

    def stream(self, files: dict[str, Placed]) -> Streams:
        """Return the content of `files`, by name, to be read from front to back, as `Repository.stream` does for a checkpoint."""
        refs: dict[bytes, int] = {}
        packs: list[PackRef] = []
        merged = []
        for placed in files.values():
            own = Extents()
            for pack, first, count in placed.extents:
                if pack != HOLE and placed.packs[pack - 1].name not in refs:
                    packs.append(placed.packs[pack - 1])
                    refs[packs[-1].name] = len(packs)
                own.append(HOLE if pack == HOLE else refs[placed.packs[pack - 1].name], first, count)
            merged.append(own)
        stored = [StoredFile(name, placed.size_bytes, Part.GPU) for name, placed in files.items()]
        return Streams(self._objects, self._keys, manifests.Body(tuple(packs), tuple(merged), b""), stored, self._threads)


def unusable(ref: PackRef) -> errors.StoreCorrupt:
    """Return the error for a pack that a record names and that cannot be used."""
    return errors.StoreCorrupt(
        f"{ref.key}, stored for this checkpoint, is missing or damaged", hint="see perdure store verify", object_key=ref.key
    )
