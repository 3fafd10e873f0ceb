"""CRIU's image about the dump itself, made to say that it was in another PID namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import errors
from perdure.checkpoint.images import inventory, wire

IDS = bytes.fromhex("0801100118012001280130023803400448065007580860 05".replace(" ", ""))
DUMPED = bytes.fromhex("16313158 26000000 0802 1001 1a18".replace(" ", "")) + IDS + bytes.fromhex("2001280030003801")
"""As CRIU 4.2.1 wrote it for a tree that it shared a PID namespace with: the namespace's number is 1, as that of its own."""


def ids(text: bytes) -> tuple[wire.Field, ...]:
    return wire.parse(wire.content(wire.parse(text[8:]), 3) or b"")


def test_only_the_number_of_the_pid_namespace_is_another_one(tmp_path: Path):
    path = tmp_path / "inventory.img"
    path.write_bytes(DUMPED)
    path.chmod(0o600)
    inventory.part_pid_namespace(tmp_path)
    text = path.read_bytes()
    assert int.from_bytes(text[4:8], "little") == len(text) - 8
    changed = {field.number: field.value for field in ids(text)}
    before = {field.number: field.value for field in ids(DUMPED)}
    assert changed.pop(5) not in before.values()
    assert changed == {number: value for number, value in before.items() if number != 5}
    others = [field.raw for field in wire.parse(text[8:]) if field.number != 3]
    assert others == [field.raw for field in wire.parse(DUMPED[8:]) if field.number != 3]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", [b"", b"\x16\x31", DUMPED[:-1], DUMPED + b"\0", b"\0" + DUMPED[1:], DUMPED[:4] + b"\2\0\0\0\x08\x02"])
def test_what_is_no_inventory_is_refused_and_stays(tmp_path: Path, text: bytes):
    (tmp_path / "inventory.img").write_bytes(text)
    with pytest.raises(errors.InputFormat):
        inventory.part_pid_namespace(tmp_path)
    assert (tmp_path / "inventory.img").read_bytes() == text
