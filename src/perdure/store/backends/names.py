"""What every backend checks before it acts: that a key is a key, a prefix a prefix, and an object not too large. Called by each of them."""

from __future__ import annotations

from perdure import errors
from perdure.store.backends import contract

MAX_KEY_CHARS = 800
"""Object stores take 1,024 bytes of name, the prefix of the store included."""

MAX_PART_CHARS = 255
"""What a directory takes as one name."""


def check_key(key: str) -> str:
    """Return `key`, or raise `errors.StoreError` when it could not be the name of an object."""
    too_long = len(key) > MAX_KEY_CHARS or any(len(part) > MAX_PART_CHARS for part in key.split("/"))
    if too_long or contract.KEY.fullmatch(key) is None:
        shown = key if len(key) <= 80 else f"{key[:80]}…"
        raise errors.StoreError(f"{shown!r} cannot be the name of an object in a store", hint="this is a fault in Perdure: report it")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`, or raise `errors.StoreError` when it is neither empty nor a key with a slash behind it."""
    if prefix:
        if not prefix.endswith("/"):
            raise errors.StoreError(f"{prefix!r} is no prefix: it lacks its slash", hint="this is a fault in Perdure: report it")
        check_key(prefix[:-1])
    return prefix


def check_content(key: str, content: bytes | bytearray | memoryview) -> memoryview:
    """Return `content` as a flat view of bytes, or raise `errors.StoreError` when it is larger than an object may be."""
    view = memoryview(content).cast("B")
    if view.nbytes > contract.MAX_OBJECT_BYTES:
        raise errors.StoreError(f"{key}: an object of {view.nbytes} bytes is too large", hint="this is a fault in Perdure: report it")
    return view


def check_range(start: int, length: int | None) -> None:
    """Raise `errors.StoreError` for a range that begins or extends below zero."""
    if start < 0 or (length is not None and length < 0):
        raise errors.StoreError(f"no bytes lie at {start} + {length}", hint="this is a fault in Perdure: report it")


def missing(key: str) -> errors.ObjectMissing:
    """Return the error for an object that is not there."""
    return errors.ObjectMissing(f"the object {key} is not in the store", hint="see what is damaged: perdure store verify", object_key=key)


def exists(key: str) -> errors.ObjectExists:
    """Return the error for an object that is there already."""
    return errors.ObjectExists(f"the object {key} is in the store already")
