"""Deciding where each block of a new checkpoint lies: where it was, where the same block is already, or in a new pack.

Called by the writer.

Cheapest first: a piece that did not change keeps its extents, without a look at its blocks; a block that did not change is found at its
former place; a block seen shortly before in this checkpoint, in memory; any other block of the store, through the index. All but the first
compare ids, keyed BLAKE3 of the content, and ids are checked against what the store's packs say themselves.
"""

from __future__ import annotations

from perdure.model.checkpoint import BLOCK_BYTES
from perdure.store import blocks
from perdure.store.assembly import Assembly
from perdure.store.extents import HOLE, Extents
from perdure.store.index import Index
from perdure.store.keys import BLOCK_ID_BYTES, Keys
from perdure.store.known import KnownPacks
from perdure.store.reuse import Reuse
from perdure.store.scan import Chunk, Piece, Scanned

_RECENT = 1 << 17
"""Blocks of a generation, of which two are kept in memory by id: about 45 MB. Older ones are found through the index."""

_Place = tuple[int, int]
_ZEROS: _Place = (HOLE, 0)


class _Blocks:
    """The blocks of a piece that is not as it was, and where they lie as far as that is known."""

    __slots__ = ("ids", "places")

    def __init__(self, ids: list[bytes], places: list[_Place | None]) -> None:
        self.ids = ids
        self.places = places


class Placing:
    """Places the blocks of chunk after chunk. Used by one thread."""

    def __init__(self, keys: Keys, index: Index, known: KnownPacks, reuse: Reuse, assembly: Assembly) -> None:
        self._index, self._known, self._reuse, self._assembly = index, known, reuse, assembly
        self._zero = blocks.block_ids(memoryview(bytes(BLOCK_BYTES)), keys.block)
        self._recent: dict[bytes, _Place] = {}
        self._older: dict[bytes, _Place] = {}
        self._ask_index = bool(index.packs())
        self.new_blocks = 0
        """Blocks stored so far."""

    def place(self, chunk: Chunk, scanned: Scanned, content: memoryview, extents: Extents) -> None:
        """Append the places of a chunk's blocks to `extents`. `content` holds the chunk."""
        changed = {at: self._look(piece, ids) for at, (piece, ids) in enumerate(zip(chunk.pieces, scanned.pieces, strict=True)) if ids}
        found = self._ask(changed)
        start = 0
        same: tuple[int, int, int] | None = None
        for at, (piece, ids) in enumerate(zip(chunk.pieces, scanned.pieces, strict=True)):
            if ids is None:
                if same and same[0] == piece.file and same[1] + same[2] == piece.block:
                    same = (piece.file, same[1], same[2] + piece.length)
                else:
                    self._keep(same, extents)
                    same = (piece.file, piece.block, piece.length)
            else:
                self._keep(same, extents)
                same = None
                if ids:
                    self._place(changed[at], found, content[start * BLOCK_BYTES : (start + piece.length) * BLOCK_BYTES], extents)
                else:
                    extents.append(HOLE, 0, piece.length)
            start += piece.length
        self._keep(same, extents)

    def _keep(self, same: tuple[int, int, int] | None, extents: Extents) -> None:
        if same:
            for pack, first, count in self._reuse.extents(*same):
                extents.append(pack, first, count)

    def _look(self, piece: Piece, ids: bytes) -> _Blocks:
        """Find the blocks of a piece without asking the index."""
        each = [ids[at : at + BLOCK_ID_BYTES] for at in range(0, len(ids), BLOCK_ID_BYTES)]
        places: list[_Place | None] = [None] * len(each)
        if piece.file >= 0:
            for at, former in enumerate(self._reuse.places(piece.file, piece.block, piece.available)):
                if former and self._known.holds(*former, each[at]):
                    places[at] = (self._known.number(former[0]), former[1])
        for at, block_id in enumerate(each):
            if places[at] is None:
                places[at] = _ZEROS if block_id == self._zero else self._remembered(block_id)
        return _Blocks(each, places)

    def _remembered(self, block_id: bytes) -> _Place | None:
        return self._recent.get(block_id) or self._older.get(block_id)

    def _ask(self, changed: dict[int, _Blocks]) -> dict[bytes, _Place]:
        """Return the places of the blocks that only the index knows, each checked against the pack."""
        if not self._ask_index:
            return {}
        unknown = {block_id for piece in changed.values() for block_id, place in zip(piece.ids, piece.places, strict=True) if place is None}
        return {
            block_id: (self._known.number(ref), slot)
            for block_id, (ref, slot) in self._index.find(list(unknown)).items()
            if self._known.holds(ref, slot, block_id)
        }

    def _place(self, piece: _Blocks, found: dict[bytes, _Place], content: memoryview, extents: Extents) -> None:
        fresh: dict[bytes, int] = {}
        start = 0
        for at, (block_id, known) in enumerate(zip(piece.ids, piece.places, strict=True)):
            place = known or found.get(block_id) or self._remembered(block_id)
            if place is None and block_id not in fresh:
                fresh[block_id] = at
                continue
            self._store(piece.ids, start, at, content, extents)
            fresh.clear()
            pack, slot = place or self._recent[block_id]
            extents.append(pack, slot, 1)
            start = at + 1
        self._store(piece.ids, start, len(piece.ids), content, extents)

    def _store(self, ids: list[bytes], start: int, end: int, content: memoryview, extents: Extents) -> None:
        """Store the blocks `start` to `end` of a piece, none of which is stored yet."""
        if start == end:
            return
        if len(self._recent) >= _RECENT:
            self._older, self._recent = self._recent, {}
            self._ask_index = True
        at = start
        for pack, first, count in self._assembly.add(content[start * BLOCK_BYTES : end * BLOCK_BYTES], b"".join(ids[start:end])):
            extents.append(pack, first, count)
            for offset in range(count):
                self._recent[ids[at + offset]] = (pack, first + offset)
            at += count
        self.new_blocks += end - start
