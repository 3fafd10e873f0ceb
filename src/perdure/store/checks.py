"""Whole packs: verifying one, and filling an empty index from those that are there. Called by the repository."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES
from perdure.store import blocks, codec, layout, packs
from perdure.store.crypto import Damaged
from perdure.store.index import Index
from perdure.store.keys import BLOCK_ID_BYTES, Keys
from perdure.store.objects import Objects
from perdure.store.packs import FRAME_SLOTS, PackRef


def check_pack(keys: Keys, key: str, content: bytes) -> None:
    """Verify all of the pack `content`: its name, its table, every frame and every block's id. Raises `errors.StoreCorrupt`."""
    name = layout.pack_name(key)
    if name is None or packs.name_of(keys, content) != name:
        # Of another format, perhaps: then its own words say so.
        codec.check_preamble(keys, packs.MAGIC, content[-codec.PREAMBLE_BYTES :], key)
        raise codec.corrupt(key, "its content is not what it is named after")
    ref = packs.ref_of(key, name, len(content), content)
    view = memoryview(content)
    table = packs.read_table(lambda _, start, length: content[start : start + length], keys, ref, with_ids=True)
    for frame in range(len(table.compressed)):
        try:
            found = table.open_frame(frame, view[table.starts[frame] : table.starts[frame + 1]])
        except Damaged:
            raise codec.corrupt(key, f"frame {frame} is not what was written") from None
        start = frame * FRAME_SLOTS * BLOCK_ID_BYTES
        if blocks.block_ids(memoryview(found), keys.block) != table.ids[start : start + len(found) // BLOCK_BYTES * BLOCK_ID_BYTES]:
            raise codec.corrupt(key, f"frame {frame} holds other blocks than its ids say")


def fill_index(objects: Objects, keys: Keys, index: Index, found: Sequence[str], most_bytes: int) -> None:
    """Add the packs at the keys `found` to `index`, unless their ids come to more than `most_bytes`. Damaged ones are left out."""
    with ThreadPoolExecutor(objects.parallel, thread_name_prefix="index") as pool:
        refs = [ref for ref in pool.map(lambda key: _ref(objects, key), found) if ref is not None]
        if sum(ref.slots for ref in refs) * BLOCK_ID_BYTES > most_bytes:
            return
        for ref, ids in zip(refs, pool.map(lambda ref: _ids(objects, keys, ref), refs), strict=True):
            if ids:
                index.add(ref, ids)


def _ref(objects: Objects, key: str) -> PackRef | None:
    name = layout.pack_name(key)
    if name is None:
        return None
    try:
        size_bytes = objects.size(key)
        end = objects.get(key, start=max(0, size_bytes - packs.FOOTER_BYTES), length=packs.FOOTER_BYTES)
        return packs.ref_of(key, name, size_bytes, end)
    except (errors.ObjectMissing, errors.StoreCorrupt):
        return None


def _ids(objects: Objects, keys: Keys, ref: PackRef) -> bytes:
    try:
        return packs.read_table(lambda key, start, length: objects.get(key, start=start, length=length), keys, ref, with_ids=True).ids
    except (errors.StoreCorrupt, errors.StoreFormat):
        return b""
