"""Exported checkpoints of format 1, kept as bytes: that every later Perdure reads them is what they are for.

They were made once, by `python -m test_export_vectors` from this folder with `src` and `tests` in PYTHONPATH, and never again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from stores import Still, content, describe, new_repository

from perdure import errors
from perdure.model.checkpoint import Part, StoredFile
from perdure.store import transfer, transfer_format

VECTORS = Path(__file__).parent / "vectors"
KEY_FILE = bytes(range(100, 140))
EXPORTS = {"export-1-open.perdure": None, "export-1-sealed.perdure": KEY_FILE}
FILES = {
    "images/pages-1.img": bytes(transfer_format.PIECE_BYTES) + b"".join(hashlib.sha256(bytes([n])).digest() for n in range(64)),
    "files/empty": b"",
    "files/log": b"line\n" * 400,
}


def make(path: Path, key_file: bytes | None) -> None:
    stored = tuple(StoredFile(name, len(one), Part.MEMORY) for name, one in FILES.items())
    with open(path, "wb") as handle:
        writer = transfer_format.Writer(handle, describe("tiny@2.3", files=stored), salt=bytes(range(32)), key_file=key_file)
        for one in FILES.values():
            for start in range(0, len(one), transfer_format.PIECE_BYTES):
                writer.piece(one[start : start + transfer_format.PIECE_BYTES])
        writer.finish()


@pytest.mark.parametrize("name", EXPORTS)
def test_it_is_read(tmp_path, name):
    repository = new_repository(tmp_path / "cache")
    imported = transfer.import_(
        repository,
        VECTORS / name,
        key_files=(KEY_FILE,),
        trusted=EXPORTS[name] is None,
        scratch=tmp_path,
        surroundings=Still(),
        progress=lambda _done: None,
    )
    assert content(repository, "tiny@2.3") == FILES
    assert imported.manifest.command == ("python", "train.py")
    assert imported.manifest.host.hostname == "node7"


def test_only_the_right_key_opens_it(tmp_path):
    with open(VECTORS / "export-1-sealed.perdure", "rb") as handle:
        front = transfer_format.read_front(handle, "x")
        assert front.keyed
        assert front.opens_with(KEY_FILE)
        assert not front.opens_with(KEY_FILE[::-1])
        with pytest.raises(errors.InputFormat):
            transfer_format.Reader(handle, front, key_file=KEY_FILE[::-1], name="x")


if __name__ == "__main__":
    for each, key in EXPORTS.items():
        make(VECTORS / each, key)
