"""Keyed pseudonyms: the same word of the same kind always becomes the same other word, and no two become the same.

BLAKE2b with a key (RFC 7693), one namespace a kind. A pseudonym is ten letters out of sixteen that make no words; it never
contains a word of the original.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

from perdure import errors
from perdure.history.anonymise import words

_ALPHABET = "ghjkmnpqrstvwxyz"  # no vowels, and none of a to f: normalising a name takes those for parts of hashes
_HEX = str.maketrans("0123456789abcdef", _ALPHABET)
LENGTH = 10
_TRIES = 10_000

FIRST_UID = 100_000
_UIDS = 900_000_000
WEEK_S = 7 * 86400
_WEEKS = (52, 520)


class Pseudonyms:
    """Makes pseudonyms with one `key`, none of which contains a word of `original` (lower case)."""

    def __init__(self, key: bytes, original: Collection[str]) -> None:
        self._key = key
        impossible = re.compile(f"[{_ALPHABET}]{{{words.SHORTEST},{LENGTH}}}")
        self._forbidden = frozenset(word for word in original if impossible.fullmatch(word))
        self._lengths = sorted({len(word) for word in self._forbidden})
        self._given: dict[str, dict[str, str]] = {}
        self._taken: dict[str, set[str]] = {}

    def word(self, kind: str, text: str) -> str:
        """Return the pseudonym of `text` in the namespace `kind`: `LENGTH` lower-case letters."""
        given = self._given.setdefault(kind, {})
        found = given.get(text)
        if found is None:
            found = given[text] = self._new(kind, text)
        return found

    def _new(self, kind: str, text: str) -> str:
        taken = self._taken.setdefault(kind, set())
        for attempt in range(_TRIES):
            candidate = self._digest(kind, f"{attempt}\x00{text}").hex().translate(_HEX)
            if candidate not in taken and not self._contains_original(candidate):
                taken.add(candidate)
                return candidate
        raise errors.InputFormat(
            "the names in this history leave no room for pseudonyms", hint="it holds nearly every three-letter word: anonymise a part of it"
        )

    def _contains_original(self, candidate: str) -> bool:
        return any(candidate[at : at + length] in self._forbidden for length in self._lengths for at in range(LENGTH - length + 1))

    def uids(self, originals: Collection[int]) -> dict[int, int]:
        """Return a new uid for each of `originals`; 0 stays 0, for what root did is not a person's. None is one of `originals`."""
        new = {0: 0}
        taken = set(originals) | {0}
        for uid in sorted(originals):
            attempt = 0
            while uid not in new:
                candidate = FIRST_UID + int.from_bytes(self._digest("uid", f"{attempt}\x00{uid}", 8)) % _UIDS
                attempt += 1
                if candidate not in taken:
                    new[uid] = candidate
                    taken.add(candidate)
        return new

    def shift_s(self) -> int:
        """Return the secret shift of all times, in seconds: 1 to 10 years back, in whole weeks, so that weekday and hour stay."""
        low, high = _WEEKS
        return -WEEK_S * (low + int.from_bytes(self._digest("shift", "", 8)) % (high - low + 1))

    def _digest(self, kind: str, text: str, size: int = LENGTH // 2) -> bytes:
        data = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, digest_size=size, key=self._key, person=kind.encode("ascii")).digest()
