"""What a writer may reuse: the packs that a new checkpoint names, and what was verified of those that are in the store already.

Called by the writer alone. A pack is used again only after its table was read from the store and found authentic, and a block that the
index claims only where the pack's own list of ids holds it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from perdure import errors
from perdure.store import packs
from perdure.store.keys import BLOCK_ID_BYTES, Keys
from perdure.store.objects import Objects
from perdure.store.packs import PackRef

_KEPT_IDS = 256
"""Lists of ids kept at hand: 64 KiB each where blocks do not compress, at most 256 KiB."""


class KnownPacks:
    """The packs of one new checkpoint, numbered from 1, and the store's packs as far as they were looked at.

    Those called `avoid` are not used.
    """

    def __init__(self, objects: Objects, keys: Keys, avoid: Collection[bytes]) -> None:
        self._objects, self._keys = objects, keys
        self._refs: list[PackRef | None] = []
        """By number less 1; None: being written."""
        self._numbers: dict[bytes, int] = {}
        self._starts: dict[bytes, array[int]] = {}
        self._unusable = set(avoid)
        self._ids: OrderedDict[bytes, bytes] = OrderedDict()
        self._own: set[bytes] = set()

    def begin(self) -> int:
        """Return the number of a pack that is going to be written."""
        self._refs.append(None)
        return len(self._refs)

    def stored(self, number: int, ref: PackRef, starts: array[int]) -> None:
        """Say what became of the pack that `begin` gave `number` to. `starts` is where its frames begin, and where the last ends."""
        self._refs[number - 1] = ref
        self._numbers[ref.name] = number
        self._starts[ref.name] = starts
        self._own.add(ref.name)

    def number(self, ref: PackRef) -> int:
        """Return the number of a pack in the new checkpoint."""
        number = self._numbers.get(ref.name)
        if number is None:
            self._refs.append(ref)
            number = self._numbers[ref.name] = len(self._refs)
        return number

    def refs(self) -> tuple[PackRef, ...]:
        """Return all packs of the checkpoint in the order of their numbers. Only when all are written."""
        done = tuple(ref for ref in self._refs if ref is not None)
        if len(done) != len(self._refs):
            raise ValueError("a pack is still being written")
        return done

    def check(self, refs: Sequence[PackRef], pool: ThreadPoolExecutor) -> None:
        """Read the tables of `refs`; those that cannot be used again are remembered as such."""
        for ref, starts in zip(refs, pool.map(self._table, refs), strict=True):
            if starts is None:
                self._unusable.add(ref.name)
            else:
                self._starts[ref.name] = starts

    def give_up(self, refs: Iterable[PackRef]) -> None:
        """Use `refs` no more in this checkpoint."""
        self._unusable.update(ref.name for ref in refs)

    def is_usable(self, ref: PackRef) -> bool:
        """Tell whether nothing speaks against using the pack again."""
        return ref.name not in self._unusable

    def ids(self, ref: PackRef) -> bytes | None:
        """Return the ids of the blocks of a usable pack, as the store holds them; None when it cannot be used again."""
        if ref.name in self._unusable:
            return None
        found = self._ids.get(ref.name)
        if found is not None:
            self._ids.move_to_end(ref.name)
            return found
        try:
            table = packs.read_table(self._get, self._keys, ref, with_ids=True)
        except (errors.StoreCorrupt, errors.StoreFormat):
            self._unusable.add(ref.name)
            return None
        self._starts[ref.name] = table.starts
        self._ids[ref.name] = table.ids
        if len(self._ids) > _KEPT_IDS:
            self._ids.popitem(last=False)
        return table.ids

    def holds(self, ref: PackRef, slot: int, block_id: bytes) -> bool:
        """Tell whether a usable pack holds that block at that slot."""
        ids = self.ids(ref)
        return ids is not None and ids[slot * BLOCK_ID_BYTES : (slot + 1) * BLOCK_ID_BYTES] == block_id

    def starts(self) -> list[array[int]]:
        """Return for each pack of the checkpoint where its frames begin, and where the last ends. Only when all are written."""
        return [self._starts[ref.name] for ref in self.refs()]

    def check_again(self, pool: ThreadPoolExecutor) -> None:
        """Make sure that every pack that is used again is still there, in its length. Raises `errors.StoreCorrupt`."""
        reused = [ref for ref in self.refs() if ref.name not in self._own]
        for ref, size_bytes in zip(reused, pool.map(lambda ref: self._objects.find(ref.key), reused), strict=True):
            if size_bytes != ref.size_bytes:
                raise errors.StoreCorrupt(
                    f"{ref.key} vanished or changed while the checkpoint was made",
                    hint="make the checkpoint again: it will not use that object; see perdure store verify",
                    object_key=ref.key,
                )

    def _table(self, ref: PackRef) -> array[int] | None:
        try:
            return packs.read_table(self._get, self._keys, ref, with_ids=False).starts
        except (errors.StoreCorrupt, errors.StoreFormat):
            return None

    def _get(self, key: str, start: int, length: int) -> bytes:
        return self._objects.get(key, start=start, length=length)
