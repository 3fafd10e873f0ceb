"""Page maps: runs cover the pages file exactly, or there are none."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.checkpoint.images import container, pagemaps, wire
from perdure.checkpoint.images.pagemaps import LAZY, PARENT, PRESENT
from perdure.model.checkpoint import BLOCK_BYTES, Run

HEAD = struct.pack("<II", container.COMMON, container.PAGEMAP)
PAGE = 4096


def field(number: int, value: int) -> bytes:
    return wire.encode_varint(number << 3) + wire.encode_varint(value)


def entry(address: int, pages: int, flags: int | None = PRESENT, *, wide: bool = True, in_parent: bool = False) -> bytes:
    text = field(1, address) + field(2, 0 if wide else pages)
    if in_parent:
        text += field(3, 1)
    if flags is not None:
        text += field(4, flags)
    return text + (field(5, pages) if wide else b"")


def image(pages_id: int, *entries: bytes) -> bytes:
    return container.assemble(HEAD, [field(1, pages_id), *entries])


def put(folder, name: str, text: bytes, pages_id: int, blocks: int) -> None:
    (folder / name).write_bytes(text)
    with open(folder / f"pages-{pages_id}.img", "wb") as handle:
        handle.truncate(blocks * BLOCK_BYTES)


def test_what_criu_4_2_wrote_is_read():
    # The head of a page map that CRIU 4.2.1 wrote here: two stretches of one and two pages.
    text = bytes.fromhex(
        "194356542540085602000000" + "08010e000000" + "0880809e958aac15100020042801" + "0e000000" + "0880c09e958aac15100020042802"
    )
    found = pagemaps.parse(text)
    assert found == pagemaps.PageMap(1, (pagemaps.Stretch(93873534107648, 1, PRESENT), pagemaps.Stretch(93873534115840, 2, PRESENT)))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.sampled_from([PRESENT, PRESENT | LAZY, PARENT, LAZY])), max_size=20))
def test_runs_are_the_pages_in_the_order_of_the_file(pieces):
    address = 1 << 30
    stored: list[int] = []
    entries = []
    for gap, pages, flags in pieces:
        address += gap * PAGE
        entries.append(entry(address, pages, flags))
        if flags & PRESENT:
            stored += range(address, address + pages * PAGE, PAGE)
        address += pages * PAGE
    found = pagemaps.runs("mm:1", pagemaps.parse(image(1, *entries)), page_bytes=PAGE)
    assert [run.address + block * BLOCK_BYTES for run in found for block in range(run.blocks)] == stored
    for before, after in itertools.pairwise(found):
        assert before.address + before.blocks * BLOCK_BYTES <= after.address


def test_neighbours_in_memory_are_one_run_unless_something_between_them_is_not_stored():
    near = pagemaps.parse(image(1, entry(0, 2), entry(2 * PAGE, 3), entry(8 * PAGE, 1)))
    assert pagemaps.runs("shm:4", near, page_bytes=PAGE) == (Run("shm:4", 0, 5), Run("shm:4", 8 * PAGE, 1))
    apart = pagemaps.parse(image(1, entry(0, 2), entry(2 * PAGE, 3, PARENT), entry(5 * PAGE, 1)))
    assert pagemaps.runs("mm:1", apart, page_bytes=PAGE) == (Run("mm:1", 0, 2), Run("mm:1", 5 * PAGE, 1))


def test_large_pages_are_many_blocks():
    found = pagemaps.parse(image(1, entry(1 << 16, 2)))
    assert pagemaps.runs("mm:1", found, page_bytes=1 << 16) == (Run("mm:1", 1 << 16, 32),)


def test_older_forms_are_read():
    found = pagemaps.parse(
        image(
            1, entry(0, 2, None, wide=False), entry(2 * PAGE, 1, None, wide=False, in_parent=True), entry(3 * PAGE, 1, PRESENT, wide=False)
        )
    )
    assert [(stretch.pages, stretch.is_stored) for stretch in found.stretches] == [(2, True), (1, False), (1, True)]


def test_every_pages_file_gets_the_runs_of_its_own_map(tmp_path):
    put(tmp_path, "pagemap-17.img", image(2, entry(0x1000, 3), entry(0x10000, 1)), 2, 4)
    put(tmp_path, "pagemap-shmem-8125.img", image(1, entry(0, 2)), 1, 2)
    (tmp_path / "core-17.img").write_bytes(b"?")
    assert pagemaps.runs_of(tmp_path) == {
        "pages-2.img": (Run("mm:17", 0x1000, 3), Run("mm:17", 0x10000, 1)),
        "pages-1.img": (Run("shm:8125", 0, 2),),
    }


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        (image(1, entry(0, 2)), 3),
        (image(1, entry(0, 2)), 1),
        (image(1, entry(0, 2) + field(6, 1)), 2),
        (image(1, entry(0, 2) + b"\x32\x01x"), 2),
        (image(1, entry(0, 2, PRESENT | 8)), 2),
        (image(1, entry(0x2000, 2), entry(0x3000, 1)), 3),
        (image(1, entry(0x2000, 1), entry(0x1000, 1)), 2),
        (image(1, entry(100, 1)), 1),
        (image(1, entry(0, 0)), 0),
        (image(1, entry(1 << 63, 1)), 1),
        (image(1, entry(0, 1 << 63)), 1),
        (container.assemble(HEAD, []), 0),
        (container.assemble(HEAD, [field(1, 1) + field(2, 1), entry(0, 1)]), 1),
        (image(1, entry(0, 1))[:-1], 1),
        (image(1, entry(0, 1)[:-1]), 1),
        (image(1, field(1, 0) + b"\x10" + b"\x80" * 100_000 + b"\x01"), 1),
        (struct.pack("<II", container.COMMON, container.FILES) + image(1, entry(0, 1))[8:], 1),
    ],
)
def test_what_is_not_understood_in_full_has_no_runs(tmp_path, text, blocks):
    put(tmp_path, "pagemap-17.img", text, 1, blocks)
    put(tmp_path, "pagemap-18.img", image(2, entry(0, 1)), 2, 1)
    assert pagemaps.runs_of(tmp_path) == {"pages-2.img": (Run("mm:18", 0, 1),)}


def test_two_maps_of_one_file_leave_it_plain(tmp_path):
    for name in ("pagemap-17.img", "pagemap-18.img", "pagemap-19.img"):
        put(tmp_path, name, image(1, entry(0, 1)), 1, 1)
    assert pagemaps.runs_of(tmp_path) == {}


def test_links_and_missing_files_have_no_runs(tmp_path):
    put(tmp_path, "pagemap-17.img", image(1, entry(0, 1)), 1, 1)
    (tmp_path / "pages-1.img").unlink()
    assert pagemaps.runs_of(tmp_path) == {}
    with pytest.raises(errors.InputMissing):
        pagemaps.runs_of(tmp_path / "absent")


@given(st.binary(max_size=80), st.lists(st.binary(max_size=20), max_size=3))
def test_rubbish_is_refused(head, entries):
    for text in (head, HEAD + head, container.assemble(HEAD, [field(1, 1), *entries])):
        try:
            pagemaps.parse(text)
        except errors.InputFormat:
            continue
