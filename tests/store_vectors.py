"""The tiny stores in tests/contract/vectors, made again: `python -m store_vectors FOLDER` from the tests folder, with `src` in PYTHONPATH.

They are made once for each format and never again: that a newer Perdure reads them is what they are for.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3
from stores import describe

from perdure.model.checkpoint import Manifest, Part, Run
from perdure.store import layout
from perdure.store.backends.contract import Backend
from perdure.store.backends.local import LocalBackend
from perdure.store.repository import Repository

SECRET = bytes(range(32))
KEY_FILE = bytes(range(100, 140))
ID = "00112233445566778899aabbccddeeff"
STORES: dict[str, bytes | None] = {"store-1-open": None, "store-1-encrypted": KEY_FILE}
RECORD = layout.lease_key("tiny", 1)


def counted(seed: bytes) -> Callable[[int], bytes]:
    """Return a source of bytes that is the same each time."""
    calls = 0

    def random(count: int) -> bytes:
        nonlocal calls
        calls += 1
        return blake3(seed + calls.to_bytes(4, "little")).digest(count)

    return random


def noise(seed: int, count: int) -> bytes:
    """Return bytes that do not compress."""
    return blake3(seed.to_bytes(4, "little")).digest(count)


def contents(sequence: int) -> dict[str, tuple[bytes, list[Run] | None]]:
    """Return the files of checkpoint `sequence`, 1 or 2."""
    page = 4096
    pages = [noise(1, page), bytes(page), noise(2, page), b"text " * 819 + b"."] + [b"%04d" % n + bytes(page - 4) for n in range(40)]
    if sequence == 2:
        pages[0], pages[5] = noise(3, page), bytes(page)
        pages.insert(0, noise(2, page))
    runs = [Run("mm:1", 0x400000, len(pages) - 10), Run("mm:1", 0x7F0000001000, 10)]
    if sequence == 2:
        runs = [Run("mm:1", 0x10000, 1), Run("mm:1", 0x400000, len(pages) - 11), Run("mm:1", 0x7F0000001000, 10)]
    return {
        "images/pages-1.img": (b"".join(pages), runs),
        "images/core-1.img": (b"core" * sequence, None),
        "files/empty": (b"", None),
        "files/log": (b"line\n" * 2000 * sequence, None),
    }


def make(backend: Backend, key_file: bytes | None, cache: Path) -> list[Manifest]:
    """Make the store at `backend`."""
    repository = Repository.create(
        backend, key=key_file, secret=SECRET, repository_id=ID, cache=cache / "cache", threads=1, random=counted(b"vectors")
    )
    saved: list[Manifest] = []
    for sequence in (1, 2):
        with repository.writer(previous=saved[-1] if saved else None, progress=lambda _: None) as writer:
            for name, (content, runs) in contents(sequence).items():
                (cache / "staged").write_bytes(content)
                writer.add(name, cache / "staged", part=Part.FILES if name.startswith("files") else Part.MEMORY, runs=runs)
            saved.append(writer.commit(lambda sizes, files, n=sequence: describe(f"tiny@1.{n}", sizes=sizes, files=files)))
    repository.write_record(RECORD, b'{"holder":"node7"}', replace=False)
    return saved


if __name__ == "__main__":
    for name, key_file in STORES.items():
        with tempfile.TemporaryDirectory() as cache:
            make(LocalBackend(Path(sys.argv[1]) / name), key_file, Path(cache))
