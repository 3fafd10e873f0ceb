"""Where each page in CRIU's pages files belongs, so that the store can compare a page with the one of the checkpoint before.

Called by the saver. A file whose map is not understood in full is left out, and is then stored as a plain file: never guessed.
Source of the format: images/pagemap.proto and criu/include/pagemap.h of CRIU 4.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint.images import container, wire
from perdure.model.checkpoint import BLOCK_BYTES, Run

PARENT = 1
LAZY = 2
PRESENT = 4

_NAME = re.compile(r"pagemap-(shmem-)?([0-9]+)\.img")
_HEAD_PAGES_ID = 1
_ADDRESS, _PAGES_32, _IN_PARENT, _FLAGS, _PAGES_64 = 1, 2, 3, 4, 5
_KEYS = frozenset(field << 3 for field in (_ADDRESS, _PAGES_32, _IN_PARENT, _FLAGS, _PAGES_64))
_LARGEST_SHIFT = 63
_KNOWN_FLAGS = PARENT | LAZY | PRESENT
_MAX_ADDRESS = 1 << 62


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """One entry of a page map: `pages` pages from `address` (in bytes) on."""

    address: int
    pages: int
    flags: int

    @property
    def is_stored(self) -> bool:
        """Tell whether the pages are in the file. The others are in a parent image, or come later on request (lazy only)."""
        return bool(self.flags & PRESENT)


class PageMap(msgspec.Struct, frozen=True):
    """A whole page map: the pages file it speaks of, and its stretches in the order of the file."""

    pages_id: int
    stretches: tuple[Stretch, ...]


def parse(text: bytes) -> PageMap:
    """Read a pagemap image as it is. Raises `errors.InputFormat` for anything that is not known in full."""
    image = container.parse(text, container.PAGEMAP)
    if not image.entries:
        raise errors.InputFormat("a page map without its head")
    head = wire.parse(image.entries[0])
    if [field.number for field in head] != [_HEAD_PAGES_ID]:
        raise errors.InputFormat("a page map whose head is not known")
    try:
        stretches = tuple([_stretch(entry) for entry in image.entries[1:]])
    except IndexError as error:
        raise errors.InputFormat("a page map with an entry that is not whole") from error
    return PageMap(wire.number(head, _HEAD_PAGES_ID), stretches)


def _stretch(entry: bytes) -> Stretch:
    # Fragmented memory makes hundreds of thousands of these: read here byte by byte, three times as fast as with `wire`.
    values = [0, 0, -1, 0, -1, -1]
    at, end = 0, len(entry)
    while at < end:
        key = entry[at]
        value = shift = 0
        while shift <= _LARGEST_SHIFT:
            at += 1
            byte = entry[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        at += 1
        if key not in _KEYS or shift > _LARGEST_SHIFT:
            raise errors.InputFormat(f"a page map with an entry that is not known ({key:#x})")
        values[key >> 3] = value
    _, address, narrow, in_parent, flags, wide = values
    if flags < 0:
        # As CRIU 2 wrote it: no flags, and what is not in the parent is here.
        flags = PARENT if in_parent else PRESENT
    pages = narrow if wide < 0 else wide
    if pages <= 0 or flags & ~_KNOWN_FLAGS or address > _MAX_ADDRESS or pages > _MAX_ADDRESS:
        raise errors.InputFormat("a page map with a length or flags that are not known")
    return Stretch(address, pages, flags)


def runs(space: str, pagemap: PageMap, *, page_bytes: int) -> tuple[Run, ...]:
    """Return the runs of the pages file, in the order of the file; neighbours in file and memory are one run.

    `page_bytes` is a multiple of `BLOCK_BYTES`. Raises `errors.InputFormat` when stretches overlap.
    """
    found: list[Run] = []
    end = -1
    previous = 0
    for stretch in pagemap.stretches:
        if stretch.address < previous or stretch.address % BLOCK_BYTES:
            raise errors.InputFormat("a page map whose stretches overlap, or lie between pages")
        previous = stretch.address + stretch.pages * page_bytes
        if not stretch.is_stored:
            end = -1
            continue
        blocks = stretch.pages * (page_bytes // BLOCK_BYTES)
        if stretch.address == end:
            last = found[-1]
            found[-1] = Run(space, last.address, last.blocks + blocks)
        else:
            found.append(Run(space, stretch.address, blocks))
        end = previous
    return tuple(found)


def runs_of(images: Path) -> dict[str, tuple[Run, ...]]:
    """Return, for each pages file in the folder `images` whose map is understood in full, its runs.

    Spaces are ``mm:ID`` for private memory (ID is the process's PID in its namespace) and ``shm:ID`` for shared memory (ID is CRIU's,
    addresses count from the start of the segment). The blocks of all runs make up the file's size. A pages file that is missing here is
    to be stored as a plain file. Raises `errors.InputMissing` when the folder cannot be listed.
    """
    try:
        names = sorted(os.listdir(images))
    except OSError as error:
        raise errors.InputMissing(f"cannot list the images in {images}: {error.strerror}") from error
    found: dict[str, tuple[Run, ...]] = {}
    named: set[str] = set()
    for name in names:
        matched = _NAME.fullmatch(name)
        if not matched:
            continue
        space = f"{'shm' if matched[1] else 'mm'}:{matched[2]}"
        try:
            pagemap = parse(container.content(images / name))
            pages = f"pages-{pagemap.pages_id}.img"
            if pages in named:
                # Two maps of one file: which of them speaks of which page is not known.
                found.pop(pages, None)
                continue
            named.add(pages)
            described = runs(space, pagemap, page_bytes=os.sysconf("SC_PAGE_SIZE"))
            size = (images / pages).lstat().st_size
        except (errors.InputError, FileNotFoundError):
            continue
        if size == sum(run.blocks for run in described) * BLOCK_BYTES:
            found[pages] = described
    return found
