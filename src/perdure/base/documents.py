"""Records as JSON where text may hold bytes that are no text: paths and arguments of a workload (PEP 383). Called by whoever keeps or
sends such records.

Plain JSON wherever that can be; a surrogate that stands for a byte becomes its ``\\udcXX`` escape, which is read back here.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec


def encode(record: Any) -> bytes:
    """Return `record`, of types that msgspec knows, as one line of JSON."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(record), separators=(",", ":")).encode("ascii")


def decode(content: bytes | bytearray, kind: Any) -> Any:
    """Return what `encode` was given, as a `kind`. Raises `msgspec.DecodeError` (`msgspec.ValidationError` for another structure)."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        # Lone surrogates are malformed to it.
        if b"\\ud" not in content:
            raise
        try:
            plain = json.loads(content)
        except (ValueError, RecursionError):
            raise error from None
        try:
            return msgspec.convert(plain, kind)
        except UnicodeEncodeError:  # what msgspec makes of such text where it has no place
            raise msgspec.ValidationError("text where something else should be") from None
