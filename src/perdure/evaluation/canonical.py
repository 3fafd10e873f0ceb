"""What a plan says, without how it is written: the content that a lock fixes. Called by lock, amendments and the harness.

The content is plain data in which everything that has its default is left out, so that neither blanks, comments, the order of keys nor a
default that is written out changes it, and a later Perdure that knows more keys finds the same. Its hash is SHA-256 over a line that names
the format and the content as JSON with sorted keys, ASCII only, without blanks, whole numbers without a fraction.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import json
from typing import Any, Literal

import msgspec

from perdure.evaluation.plan import Plan

_MAGIC = b"perdure evaluation plan 1\n"


def content(plan: Plan) -> dict[str, Any]:
    """Return what the plan says as data of JSON: keys as in the file, those that have their default left out."""
    return _plain(plan)  # type: ignore[no-any-return]


def restore(data: dict[str, Any]) -> Plan:
    """Return the plan of which `content` made `data`. Raises `msgspec.ValidationError`."""
    return msgspec.convert(data, Plan)


def digest(data: dict[str, Any]) -> str:
    """Return the SHA-256 of data of JSON, 64 hexadecimal digits."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(_MAGIC + text.encode("ascii")).hexdigest()


def plan_hash(plan: Plan) -> str:
    """Return the hash of the whole plan."""
    return digest(content(plan))


def workload_hash(plan: Plan) -> str:
    """Return the hash of the workload alone: what a baseline is a baseline of."""
    return digest(_plain(plan.workload))


def hash_for(plan: Plan, purpose: Literal["baseline", "arms", "coldstart", "matrix"]) -> str:
    """Return what `Run.plan_hash` holds: of the workload for a baseline, which comes before the rest is fixed, else of the whole plan."""
    return workload_hash(plan) if purpose == "baseline" else plan_hash(plan)


def _plain(value: Any) -> Any:
    match value:
        case msgspec.Struct():
            return {
                field.encode_name: _plain(given)
                for field in msgspec.structs.fields(value)
                if not _is_default(field, given := getattr(value, field.name))
            }
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case tuple() | list():
            return [_plain(item) for item in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    match value:
        case datetime.datetime():
            return value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
        case enum.Enum():
            return value.value
        case float() if value.is_integer() and abs(value) < 1 << 53:
            return int(value)
    return value


def _is_default(field: msgspec.structs.FieldInfo, value: Any) -> bool:
    if field.default_factory is not msgspec.NODEFAULT:
        return bool(value == field.default_factory())
    return bool(value == field.default)
