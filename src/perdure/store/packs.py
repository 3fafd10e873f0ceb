"""Packs: the objects that hold blocks. Building one, and reading its parts. Called by the writer, the reader and verification.

::

    frames      sealed one by one, numbers 0, 1, …; frame i holds slots 32·i to 32·i + 31, the last one perhaps fewer
    ids         sealed (number 2**32): the ids of all blocks, 16 bytes each, in the order of their slots
    table       sealed (number 2**32 + 1): for each frame u32: its sealed length, bit 31 set when it is compressed
    footer      salt (32) · slots u32 · bytes of all frames u32 · preamble (16)

Ids and table are bound to the footer. The end comes last, so that one read from the end shows all that is needed to find a frame.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES
from perdure.store import codec, compression, hashing, layout
from perdure.store.crypto import TAG_BYTES, Damaged, Seal
from perdure.store.hashing import Bytes
from perdure.store.keys import BLOCK_ID_BYTES, SALT_BYTES, Keys

MAGIC = b"PDRpack\n"
FRAME_SLOTS = 32
FRAME_BYTES = FRAME_SLOTS * BLOCK_BYTES
MAX_SLOTS = 65536
MAX_BYTES = 64 * 1024 * 1024
"""A reader refuses larger packs. The writer stays well below: see `assembly`."""

_FOOTER = struct.Struct(f"<{SALT_BYTES}sII{codec.PREAMBLE_BYTES}s")
_IDS, _TABLE = 2**32, 2**32 + 1
_COMPRESSED = 1 << 31

Get = Callable[[str, int, int], bytes]
"""Reads: an object's key, where from, how many bytes."""


class PackRef(msgspec.Struct, frozen=True, gc=False):
    """A pack as a manifest or the index names it."""

    name: bytes
    size_bytes: int
    slots: int

    @property
    def key(self) -> str:
        """The object's key."""
        return layout.pack_key(self.name)


class Table(msgspec.Struct, frozen=True):
    """Where the frames of a pack lie, authenticated. `starts` has one entry more than there are frames."""

    seal: Seal
    slots: int
    starts: array[int]
    compressed: bytes
    """1 for each frame that is compressed, else 0."""
    ids: bytes
    """Ids of all blocks; empty when they were not asked for."""

    def slots_in(self, frame: int) -> int:
        """Return how many blocks a frame holds."""
        return min(FRAME_SLOTS, self.slots - frame * FRAME_SLOTS)

    def open_frame(self, frame: int, sealed: Bytes) -> Bytes:
        """Return the blocks of a frame, from its sealed bytes. Raises `Damaged`."""
        size_bytes = self.slots_in(frame) * BLOCK_BYTES
        plain = self.seal.open(frame, sealed, b"")
        if self.compressed[frame]:
            return compression.decompress(plain, size_bytes)
        if len(plain) != size_bytes:
            raise Damaged
        return plain


def frames_for(slots: int) -> int:
    """Return how many frames hold that many slots."""
    return -(-slots // FRAME_SLOTS)


def seal_frame(seal: Seal, frame: int, blocks: bytes | bytearray) -> tuple[bytes, bool]:
    """Return the sealed frame that holds `blocks`, and whether it is compressed."""
    compressed = compression.compress(blocks)
    return seal.seal(frame, blocks if compressed is None else compressed, b""), compressed is not None


def tail_bytes(slots: int) -> int:
    """Return how long everything after the frames is."""
    return BLOCK_ID_BYTES * slots + TAG_BYTES + 4 * frames_for(slots) + TAG_BYTES + _FOOTER.size


def tail(keys: Keys, salt: bytes, ids: bytes, frames: array[int], frames_bytes: int) -> bytes:
    """Return everything after the frames. `frames` is the table: sealed lengths, with `mark_compressed` applied."""
    footer = _FOOTER.pack(salt, len(ids) // BLOCK_ID_BYTES, frames_bytes, codec.preamble(keys, MAGIC))
    seal = keys.seal_for(salt)
    table = struct.pack(f"<{len(frames)}I", *frames)
    return seal.seal(_IDS, ids, footer) + seal.seal(_TABLE, table, footer) + footer


def mark_compressed(sealed_bytes: int, compressed: bool) -> int:
    """Return a frame's entry in the table."""
    return sealed_bytes | (_COMPRESSED if compressed else 0)


def starts_of(frames: Iterable[int]) -> array[int]:
    """Return where each frame begins, and where the last one ends, from the entries of a table."""
    return array("I", accumulate((entry & ~_COMPRESSED for entry in frames), initial=0))


def read_table(get: Get, keys: Keys, pack: PackRef, *, with_ids: bool) -> Table:
    """Read the table of `pack`, and its blocks' ids.

    Raises `errors.StoreCorrupt` also for a pack that is missing or of another size, `errors.StoreFormat`.
    """
    key = pack.key
    whole = tail_bytes(pack.slots)
    wanted = whole if with_ids else whole - BLOCK_ID_BYTES * pack.slots - TAG_BYTES
    if not 0 < pack.slots <= MAX_SLOTS or not whole < pack.size_bytes <= MAX_BYTES:
        raise codec.corrupt(key, "a pack cannot have such a size")
    try:
        end = get(key, pack.size_bytes - wanted, wanted + 1)
    except errors.ObjectMissing as error:
        raise errors.StoreCorrupt(f"{key} is missing", hint="see what needs it: perdure store verify", object_key=key) from error
    if len(end) != wanted:
        raise codec.corrupt(key, f"it is not {pack.size_bytes} bytes long")
    codec.check_preamble(keys, MAGIC, end[-codec.PREAMBLE_BYTES :], key)
    try:
        return _table(keys, pack, end, with_ids=with_ids)
    except Damaged:
        raise codec.corrupt(key, "its table is not what was written") from None


def _table(keys: Keys, pack: PackRef, end: bytes, *, with_ids: bool) -> Table:
    footer = end[-_FOOTER.size :]
    salt, slots, frames_bytes, _ = _FOOTER.unpack(footer)
    if slots != pack.slots or frames_bytes + tail_bytes(slots) != pack.size_bytes:
        raise Damaged
    seal = keys.seal_for(salt)
    view = memoryview(end)
    table_bytes = 4 * frames_for(slots) + TAG_BYTES
    table = seal.open(_TABLE, view[-_FOOTER.size - table_bytes : -_FOOTER.size], footer)
    entries = struct.unpack(f"<{frames_for(slots)}I", table)
    starts = starts_of(entries)
    if starts[-1] != frames_bytes:
        raise Damaged
    ids = bytes(seal.open(_IDS, view[: BLOCK_ID_BYTES * slots + TAG_BYTES], footer)) if with_ids else b""
    return Table(seal, slots, starts, bytes(entry >> 31 for entry in entries), ids)


def together(frames: Sequence[int], table: Table, *, gap_bytes: int, most_bytes: int) -> Iterator[list[int]]:
    """Yield `frames` (given in order) in groups, each to be read at once: at most `most_bytes`, without larger gaps than `gap_bytes`."""
    group: list[int] = []
    for frame in frames:
        if group:
            gap = table.starts[frame] - table.starts[group[-1] + 1]
            if gap > gap_bytes or table.starts[frame + 1] - table.starts[group[0]] > most_bytes:
                yield group
                group = []
        group.append(frame)
    if group:
        yield group


def name_of(keys: Keys, content: Bytes) -> bytes:
    """Return the name of the pack that consists of `content`."""
    return hashing.keyed(keys.pack, layout.PACK_NAME_BYTES, content)


def ref_of(key: str, name: bytes, size_bytes: int, end: bytes) -> PackRef:
    """Return how a manifest would name the pack of which `end` is (at least) the last `FOOTER_BYTES`. Raises `errors.StoreCorrupt`."""
    if len(end) < _FOOTER.size:
        raise codec.corrupt(key, "it is too short for a pack")
    slots = _FOOTER.unpack(end[-_FOOTER.size :])[1]
    return PackRef(name, size_bytes, slots)


FOOTER_BYTES = _FOOTER.size
