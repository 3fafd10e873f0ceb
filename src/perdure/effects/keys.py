"""One text for one value: canonical JSON, digests of inputs, keys from inputs. Called by the ledger and by its users.

The text follows RFC 8785 (JSON Canonicalization Scheme, 2020): no white space, members sorted by UTF-16 code units,
numbers as ECMAScript prints them. Values that have no one text are refused, never approximated.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

from perdure import errors

MAX_KEY = 255
"""Characters of a key: what providers accept (Stripe: 255)."""

_MAX_DEPTH = 100
_MAX_EXACT = 2**53 - 1  # RFC 8785 numbers are IEEE doubles: larger whole numbers would collide
_KEY = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_SPECIAL = re.compile(r'["\\\x00-\x1f]')


def check_key(key: object) -> str:
    """Return `key` when it is 1 to 255 printable ASCII characters without spaces: it must fit into a request header.

    Raises `errors.UsageError`.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise errors.UsageError(
            f"not a key: {str(key)[:80]!r}",
            hint=f"use 1 to {MAX_KEY} printable ASCII characters without spaces, or derive_key(name, inputs)",
        )
    return key


def derive_key(name: str, inputs: Any) -> str:
    """Derive a key from a step's name and everything that makes this step another step than the next one.

    Returns ``NAME-`` and 32 hexadecimal digits: the first 128 bits of SHA-256 of the canonical text of `inputs`. Take
    only what is the same in every run: an order's number, never a time or a random value.

    Raises `errors.UsageError` for inputs that have no canonical text, or a name that is not fit for a key.
    """
    return check_key(f"{name}-{digest(inputs)[:32]}")


def digest(inputs: Any) -> str:
    """Return SHA-256 of the canonical text of `inputs`, in hexadecimal. Raises `errors.UsageError`."""
    return hashlib.sha256(canonical(inputs).encode("utf-8")).hexdigest()


def canonical(value: Any) -> str:
    """Return the canonical JSON text of `value`: None, booleans, numbers, text, lists or tuples, dicts with text keys.

    ``1`` and ``1.0`` are one number, as in JSON. NaN, infinities, whole numbers beyond ±(2⁵³ − 1), lone surrogates and
    every other type are refused. Raises `errors.UsageError`, naming the place.
    """
    return "".join(_parts(value, "inputs", 0))


def _parts(value: Any, place: str, depth: int) -> list[str]:
    if depth > _MAX_DEPTH:
        raise errors.UsageError(f"{place[:80]}: nested deeper than {_MAX_DEPTH}", hint="take a flatter value, or its hash")
    match value:
        case None:
            return ["null"]
        case bool():
            return ["true" if value else "false"]
        case int() | float():
            return [_number(value, place)]
        case str():
            return [_text(value, place)]
        case list() | tuple():
            parts = ["["]
            for index, item in enumerate(value):
                parts += [","] if index else []
                parts += _parts(item, f"{place}[{index}]", depth + 1)
            return [*parts, "]"]
        case dict():
            return _members(value, place, depth)
    raise errors.UsageError(
        f"{place}: {type(value).__name__} has no canonical text", hint="turn it into text, a number, a list or a dict first"
    )


def _members(value: dict[Any, Any], place: str, depth: int) -> list[str]:
    for key in value:
        if not isinstance(key, str):
            raise errors.UsageError(f"{place}: the key {key!r} is not text", hint="JSON objects have text keys: convert it first")
    parts = ["{"]
    named = sorted((key.encode("utf-16-be", "surrogatepass"), key) for key in value)
    for index, (_, key) in enumerate(named):
        parts += [",", _text(key, place), ":"] if index else [_text(key, place), ":"]
        parts += _parts(value[key], f"{place}.{key}", depth + 1)
    return [*parts, "}"]


def _text(value: str, place: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise errors.UsageError(
            f"{place}: text with a lone surrogate", hint="decode it from its bytes properly, or take its hash"
        ) from None
    return f'"{_SPECIAL.sub(_escape, value)}"'


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}"


def _number(value: float, place: str) -> str:
    if isinstance(value, int):
        if abs(value) > _MAX_EXACT:
            raise errors.UsageError(f"{place}: {value} is beyond what JSON numbers hold exactly", hint="give it as text")
        return str(int(value))
    if not math.isfinite(value):
        raise errors.UsageError(f"{place}: {value} is not a JSON number", hint="leave it out or give it as text")
    return _double(float(value))


def _double(value: float) -> str:
    """ECMAScript's Number::toString (ECMA-262 section 6.1.6.1.20), from the same shortest digits that `repr` finds."""
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return f"{sign}{digits}{'0' * (point - count)}"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    tail = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{tail}e{'+' if power > 0 else '-'}{abs(power)}"
