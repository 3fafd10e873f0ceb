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

_ASK_AT_ONCE = 256
"""The index is asked for that many blocks together, and until then at most their content (1 MiB) is kept."""

_Extent = tuple[int, int, int]
"""Pack, first slot, count."""


class _Unknown:
    """Blocks that follow each other and of which only the index may know where they are."""

    __slots__ = ("content", "ids")

    def __init__(self, ids: list[bytes], content: memoryview) -> None:
        self.ids = ids
        self.content = content


class Placing:
    """Places the blocks of chunk after chunk, then `settle`s each file. Used by one thread."""

    def __init__(self, keys: Keys, index: Index, known: KnownPacks, reuse: Reuse, assembly: Assembly) -> None:
        self._index, self._known, self._reuse, self._assembly = index, known, reuse, assembly
        self._zero = blocks.zero_id(keys.block)
        self._recent: dict[bytes, tuple[int, int]] = {}
        self._older: dict[bytes, tuple[int, int]] = {}
        self._ask_index = bool(index.packs())
        self._waiting: list[_Extent | _Unknown] = []
        self._unknown = 0
        self.new_blocks = 0
        """Blocks stored so far."""

    def place(self, chunk: Chunk, scanned: Scanned, content: memoryview, extents: Extents) -> None:
        """Find the places of a chunk's blocks; `extents`, the file's, has them at the latest when the file is settled.

        `content` holds the chunk; it may be used for another one afterwards.
        """
        first_new = len(self._waiting)
        start = 0
        same: tuple[int, int, int] | None = None
        for piece, ids in zip(chunk.pieces, scanned.pieces, strict=True):
            if ids is None:
                if same and same[0] == piece.file and same[1] + same[2] == piece.block:
                    same = (piece.file, same[1], same[2] + piece.length)
                else:
                    self._keep(same)
                    same = (piece.file, piece.block, piece.length)
            else:
                self._keep(same)
                same = None
                if ids:
                    self._look(piece, ids, content[start * BLOCK_BYTES : (start + piece.length) * BLOCK_BYTES])
                else:
                    self._waiting.append((HOLE, 0, piece.length))
            start += piece.length
        self._keep(same)
        if not self._unknown or self._unknown >= _ASK_AT_ONCE:
            self.settle(extents)
            return
        for waiting in self._waiting[first_new:]:
            if isinstance(waiting, _Unknown):
                waiting.content = memoryview(bytes(waiting.content))

    def settle(self, extents: Extents) -> None:
        """Bring everything that waits into `extents`."""
        found = self._ask()
        for waiting in self._waiting:
            if isinstance(waiting, _Unknown):
                self._place(waiting, found, extents)
            else:
                extents.append(*waiting)
        self._waiting.clear()
        self._unknown = 0

    def _keep(self, same: tuple[int, int, int] | None) -> None:
        if same:
            self._waiting.extend(self._reuse.extents(*same))

    def _look(self, piece: Piece, ids: bytes, content: memoryview) -> None:
        """Find the blocks of a piece that is not as it was, without asking the index."""
        own = _each(ids)
        former = _each(self._reuse.ids(piece.file, piece.block, piece.available)) if piece.available else []
        former += [b""] * (piece.length - len(former))
        at = 0
        while at < piece.length:
            end = at + 1
            if own[at] == former[at]:
                while end < piece.length and own[end] == former[end]:
                    end += 1
                self._keep((piece.file, piece.block + at, end - at))
            elif place := self._place_of(own[at]):
                self._waiting.append((*place, 1))
            else:
                while end < piece.length and own[end] != former[end] and not self._place_of(own[end]):
                    end += 1
                self._waiting.append(_Unknown(own[at:end], content[at * BLOCK_BYTES : end * BLOCK_BYTES]))
                self._unknown += end - at
            at = end

    def _place_of(self, block_id: bytes) -> tuple[int, int] | None:
        if block_id == self._zero:
            return HOLE, 0
        return self._recent.get(block_id) or self._older.get(block_id)

    def _ask(self) -> dict[bytes, tuple[int, int]]:
        """Return the places of the blocks that only the index knows, each checked against the pack."""
        if not self._ask_index or not self._unknown:
            return {}
        unknown = {block_id for waiting in self._waiting if isinstance(waiting, _Unknown) for block_id in waiting.ids}
        return {
            block_id: (self._known.number(ref), slot)
            for block_id, (ref, slot) in self._index.find(list(unknown)).items()
            if self._known.holds(ref, slot, block_id)
        }

    def _place(self, unknown: _Unknown, found: dict[bytes, tuple[int, int]], extents: Extents) -> None:
        fresh: set[bytes] = set()
        start = 0
        for at, block_id in enumerate(unknown.ids):
            # Known since `_look` only when it was stored since then.
            place = found.get(block_id) or self._recent.get(block_id)
            if place is None and block_id not in fresh:
                fresh.add(block_id)
                continue
            self._store(unknown, start, at, extents)
            fresh.clear()
            pack, slot = place or self._recent[block_id]
            extents.append(pack, slot, 1)
            start = at + 1
        self._store(unknown, start, len(unknown.ids), extents)

    def _store(self, unknown: _Unknown, start: int, end: int, extents: Extents) -> None:
        """Store the blocks `start` to `end`, none of which is stored yet."""
        if start == end:
            return
        if len(self._recent) >= _RECENT:
            self._older, self._recent = self._recent, {}
            self._ask_index = True
        ids = unknown.ids[start:end]
        at = 0
        for pack, first, count in self._assembly.add(unknown.content[start * BLOCK_BYTES : end * BLOCK_BYTES], b"".join(ids)):
            extents.append(pack, first, count)
            for offset in range(count):
                self._recent[ids[at + offset]] = (pack, first + offset)
            at += count
        self.new_blocks += end - start


def _each(ids: bytes) -> list[bytes]:
    return [ids[at : at + BLOCK_ID_BYTES] for at in range(0, len(ids), BLOCK_ID_BYTES)]
