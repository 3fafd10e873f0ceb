"""Records and errors across a process boundary, and into files: as one line of JSON, and back. Called by all here that keep or send some.

Names and arguments may hold bytes that are no text (PEP 383), which msgspec's own JSON does not take: such a byte is the escape of its
surrogate.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from perdure import errors
from perdure.model.finding import Finding


class ErrorDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A deliberate error, as one process tells it to another."""

    code: str
    message: str
    hint: str = ""
    object_key: str = ""
    findings: tuple[Finding, ...] = ()


def encode(record: Any) -> bytes:
    """Return `record`, of types that msgspec knows, as one line of JSON without its end."""
    return json.dumps(msgspec.to_builtins(record), separators=(",", ":")).encode("ascii")


def decode(line: bytes | bytearray, kind: Any) -> Any:
    """Return what `encode` was given, as a `kind`. Raises `msgspec.DecodeError` for anything else."""
    try:
        return msgspec.convert(json.loads(line), kind)
    except msgspec.ValidationError:
        raise
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(f"this is no JSON: {error}") from error


def document(error: errors.PerdureError) -> ErrorDocument:
    """Return `error` as a document."""
    return ErrorDocument(
        code=error.code,
        message=str(error),
        hint=error.hint,
        object_key=str(getattr(error, "object_key", "")),
        findings=tuple(getattr(error, "findings", ())),
    )


def error(told: ErrorDocument) -> errors.PerdureError:
    """Return the error that `told` speaks of; the base class for a code that is not known here."""
    kind = _kinds(errors.PerdureError).get(told.code, errors.PerdureError)
    if issubclass(kind, errors.StoreCorrupt | errors.ObjectMissing):
        return kind(told.message, hint=told.hint, object_key=told.object_key)
    if issubclass(kind, errors.CheckpointRefused | errors.RestoreRefused):
        return kind(told.message, hint=told.hint, findings=told.findings)
    return kind(told.message, hint=told.hint)


def _kinds(base: type[errors.PerdureError]) -> dict[str, type[errors.PerdureError]]:
    found = {base.code: base}
    for kind in base.__subclasses__():
        found |= _kinds(kind)
    return found
