"""The wire form of protocol buffers, as far as CRIU's images use it. Called by the other modules of this room.

A message is read into its fields and put together again from them; a field that nobody knows keeps its bytes. Source of the format:
the encoding chapter of the protocol buffers documentation. Input is untrusted: nothing is allocated that the input does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from perdure import errors

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_MAX_VARINT_BYTES = 10


class Field(msgspec.Struct, frozen=True, gc=False):
    """One field of a message. `value` is the number of a varint or fixed field, the content of a field of bytes."""

    number: int
    kind: int
    value: int | bytes
    raw: bytes
    """The field as it stood in the message, its key included."""


def varint(text: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number at `at` and where it ends. Raises `errors.InputFormat`."""
    value = shift = 0
    for end in range(at, min(len(text), at + _MAX_VARINT_BYTES)):
        byte = text[end]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, end + 1
        shift += 7
    raise errors.InputFormat("not a protocol buffer: a number has no end")


def encode_varint(value: int) -> bytes:
    """Return `value` (0 … 2⁶⁴−1) as bytes."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def parse(message: bytes) -> tuple[Field, ...]:
    """Return the fields of `message` in their order. Raises `errors.InputFormat` for what is no message."""
    found: list[Field] = []
    at = 0
    while at < len(message):
        key, begin = varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise errors.InputFormat("not a protocol buffer: a field has number 0")
        value: int | bytes
        if kind == VARINT:
            value, end = varint(message, begin)
        elif kind == BYTES:
            size, begin = varint(message, begin)
            end = begin + size
            value = message[begin:end]
        elif kind in (FIXED64, FIXED32):
            end = begin + (8 if kind == FIXED64 else 4)
            value = int.from_bytes(message[begin:end], "little")
        else:
            raise errors.InputFormat(f"not a protocol buffer: a field has type {kind}")
        if end > len(message):
            raise errors.InputFormat("not a protocol buffer: a field reaches beyond its message")
        found.append(Field(number, kind, value, message[at:end]))
        at = end
    return tuple(found)


def assemble(fields: Iterable[Field]) -> bytes:
    """Return the message that consists of `fields`: the inverse of `parse`, byte for byte."""
    return b"".join(field.raw for field in fields)


def number(fields: Iterable[Field], wanted: int, default: int = 0) -> int:
    """Return the number in field `wanted`, the last one where it is repeated; `default` where there is none."""
    found = default
    for field in fields:
        if field.number == wanted and isinstance(field.value, int):
            found = field.value
    return found


def numbers(fields: Iterable[Field], wanted: int) -> tuple[int, ...]:
    """Return the numbers in the repeated field `wanted`, packed or not. Raises `errors.InputFormat`."""
    found: list[int] = []
    for field in fields:
        if field.number != wanted:
            continue
        if isinstance(field.value, int):
            found.append(field.value)
            continue
        at = 0
        while at < len(field.value):
            value, at = varint(field.value, at)
            found.append(value)
    return tuple(found)


def content(fields: Iterable[Field], wanted: int) -> bytes | None:
    """Return the bytes in field `wanted`, the last one where it is repeated; None where there is none."""
    found: bytes | None = None
    for field in fields:
        if field.number == wanted and isinstance(field.value, bytes):
            found = field.value
    return found


def replaced(fields: Iterable[Field], wanted: int, value: int | bytes) -> tuple[Field, ...]:
    """Return `fields` with field `wanted` set to `value` where it stands last, or added at the end; all others as they are."""
    before = tuple(fields)
    kind = VARINT if isinstance(value, int) else BYTES
    key = encode_varint(wanted << 3 | kind)
    raw = key + (encode_varint(value) if isinstance(value, int) else encode_varint(len(value)) + value)
    field = Field(wanted, kind, value, raw)
    places = [place for place, each in enumerate(before) if each.number == wanted]
    if not places:
        return (*before, field)
    return (*before[: places[-1]], field, *before[places[-1] + 1 :])


def signed(value: int) -> int:
    """Return `value` of a varint read as a 64-bit two's complement number (``int32`` and ``int64``)."""
    return value - (1 << 64) if value >= 1 << 63 else value


def zigzag(value: int) -> int:
    """Return `value` of a varint read as a ``sint32`` or ``sint64``."""
    return value >> 1 ^ -(value & 1)
