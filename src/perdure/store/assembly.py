"""New blocks become packs: frames are compressed and sealed in several threads, packs are put while the next one is filled. Called by the
writer.

In memory are at most one pack being filled and two being put.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from perdure.model.checkpoint import BLOCK_BYTES
from perdure.store import packs
from perdure.store.crypto import TAG_BYTES
from perdure.store.keys import BLOCK_ID_BYTES, SALT_BYTES, Keys
from perdure.store.objects import Objects
from perdure.store.packs import FRAME_BYTES, FRAME_SLOTS, PackRef

PACK_BYTES = 16 * 1024 * 1024
PACK_SLOTS = 16384
_CAPACITY_BYTES = PACK_BYTES + packs.tail_bytes(PACK_SLOTS)
_PUTS = 2


class _Pack:
    """A pack being filled."""

    def __init__(self, number: int, salt: bytes, keys: Keys, content: bytearray) -> None:
        self.number = number
        self.salt = salt
        self.seal = keys.seal_for(salt)
        self.content = content
        self.ids = bytearray()
        self.table = array("I")
        self.stored_bytes = 0
        self.waiting_bytes = 0
        """At most what the frames that are being sealed come to."""
        self.frames = 0
        self.full = False

    @property
    def slots(self) -> int:
        return len(self.ids) // BLOCK_ID_BYTES

    def take(self, sealed: bytes, compressed: bool, most_bytes: int) -> None:
        self.content[self.stored_bytes : self.stored_bytes + len(sealed)] = sealed
        self.stored_bytes += len(sealed)
        self.waiting_bytes -= most_bytes
        self.table.append(packs.mark_compressed(len(sealed), compressed))


class Assembly:
    """Fills packs. `begin` hands out the number of a new pack; `stored` is told of each pack when it is durable: number, pack, ids, table.

    Used by one thread; both are called in that thread.
    """

    def __init__(
        self,
        objects: Objects,
        keys: Keys,
        *,
        pool: ThreadPoolExecutor,
        depth: int,
        random: Callable[[int], bytes],
        begin: Callable[[], int],
        stored: Callable[[int, PackRef, bytes, array[int]], None],
    ) -> None:
        self._objects, self._keys, self._pool, self._random = objects, keys, pool, random
        self._begin, self._stored = begin, stored
        self._depth = depth
        self._putting = ThreadPoolExecutor(min(_PUTS, objects.parallel), thread_name_prefix="put")
        self._pack: _Pack | None = None
        self._frame = bytearray()
        self._sealing: deque[tuple[_Pack, int, Future[tuple[bytes, bool]]]] = deque()
        self._puts: deque[tuple[_Pack, Future[PackRef]]] = deque()
        self._spare: list[bytearray] = []

    def add(self, content: memoryview, ids: bytes) -> list[tuple[int, int, int]]:
        """Store whole blocks and return where they will lie: pack, first slot, count. `content` is copied."""
        placed = []
        at, count = 0, len(ids) // BLOCK_ID_BYTES
        while at < count:
            pack = self._pack or self._new()
            in_frame = len(self._frame) // BLOCK_BYTES
            taken = min(FRAME_SLOTS - in_frame, count - at)
            placed.append((pack.number, pack.slots, taken))
            pack.ids += ids[at * BLOCK_ID_BYTES : (at + taken) * BLOCK_ID_BYTES]
            self._frame += content[at * BLOCK_BYTES : (at + taken) * BLOCK_BYTES]
            if in_frame + taken == FRAME_SLOTS:
                self._close_frame(pack)
            at += taken
        return placed

    def finish(self) -> None:
        """Put everything; all of it is durable then."""
        if self._pack is not None:
            # Its last frame is still being sealed: of those only the oldest are ever waited for.
            self._pack.full = True
            if self._frame:
                self._close_frame(self._pack)
            self._pack = None
        while self._sealing:
            self._take_sealed()
        while self._puts:
            self._take_put()

    def close(self) -> None:
        """End the threads. What was not put is dropped."""
        self._putting.shutdown(wait=True, cancel_futures=True)
        self._spare.clear()

    def _new(self) -> _Pack:
        content = self._spare.pop() if self._spare else bytearray(_CAPACITY_BYTES)
        self._pack = _Pack(self._begin(), self._random(SALT_BYTES), self._keys, content)
        return self._pack

    def _close_frame(self, pack: _Pack) -> None:
        frame, self._frame = self._frame, bytearray()
        most_bytes = len(frame) + TAG_BYTES
        self._sealing.append((pack, most_bytes, self._pool.submit(packs.seal_frame, pack.seal, pack.frames, frame)))
        pack.frames += 1
        pack.waiting_bytes += most_bytes
        no_room = pack.stored_bytes + pack.waiting_bytes + FRAME_BYTES + TAG_BYTES > PACK_BYTES or pack.slots + FRAME_SLOTS > PACK_SLOTS
        if no_room:
            pack.full = True
            self._pack = None
        # Not as soon as they are done: where packs end must not depend on who is quicker.
        while len(self._sealing) > self._depth:
            self._take_sealed()

    def _take_sealed(self) -> None:
        pack, most_bytes, future = self._sealing.popleft()
        sealed, compressed = future.result()
        pack.take(sealed, compressed, most_bytes)
        if pack.full and len(pack.table) == pack.frames:
            self._put(pack)

    def _put(self, pack: _Pack) -> None:
        if len(self._puts) >= _PUTS:
            self._take_put()
        self._puts.append((pack, self._putting.submit(self._write, pack)))

    def _write(self, pack: _Pack) -> PackRef:
        end = packs.tail(self._keys, pack.salt, bytes(pack.ids), pack.table, pack.stored_bytes)
        size_bytes = pack.stored_bytes + len(end)
        pack.content[pack.stored_bytes : size_bytes] = end
        with memoryview(pack.content) as view:
            content = view[:size_bytes]
            ref = PackRef(packs.name_of(self._keys, content), size_bytes, pack.slots)
            self._objects.put(ref.key, content)
            content.release()
        return ref

    def _take_put(self) -> None:
        pack, future = self._puts.popleft()
        ref = future.result()
        self._spare.append(pack.content)
        self._stored(pack.number, ref, bytes(pack.ids), pack.table)
