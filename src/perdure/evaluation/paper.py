"""What is written beside the plan: the lock, once, and the amendments, one a line. Records, and how they are read.

Called by lock, amend, standing and report. Both hold the canonical content of the plan itself, so that whoever reads them later can hash it
again and see what changed without the file it was written in. Both carry a seal, the hash of all else in them, and an amendment names the
hash of what stands before it: the lock's file for the first, else the line of the amendment before. That finds every edit that is not
made with the intention to deceive; against that helps the plan's hash, noted elsewhere on the day of the lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from perdure import errors
from perdure.base import linkless
from perdure.evaluation import lines
from perdure.evaluation.folder import AMENDMENTS, LOCK, Folder
from perdure.evaluation.this_machine import Signature

FORMAT = 1
_LONGEST_BYTES = 16 << 20


class BaselineRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run that the baseline stands on."""

    id: str
    node: str
    sha256: str
    """Of its line in `runs.jsonl`."""
    duration_s: float | None
    """From launch to end."""
    ready_s: float | None
    """From launch to the first progress."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The measured baseline, as it was when the plan was locked."""

    runs: tuple[BaselineRun, ...]
    duration_s: float | None
    """Median."""
    ready_s: float | None
    """Median."""
    history_sha256: str | None = None
    """Of the attempts file, where the plan names one."""


class Lock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`evaluation.lock`."""

    format: int
    name: str
    plan_sha256: str
    workload_sha256: str
    signed: Signature
    versions: dict[str, str]
    """Of Perdure and Python at the lock, and of the rest as the baseline's newest run recorded them."""
    baseline: Baseline
    plan: dict[str, Any]
    """The canonical content that `plan_sha256` is of."""
    seal: str = ""


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key whose value changed; a side that is not set had no such key, and then the default holds."""

    key: str
    old: Any = msgspec.UNSET
    new: Any = msgspec.UNSET


class Amendment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of `amendments.jsonl`."""

    number: int
    reason: str
    old_sha256: str
    new_sha256: str
    changes: tuple[Change, ...]
    signed: Signature
    data_existed: bool
    """Managed data were there already: the change may have been made with the result in sight."""
    managed_runs: int
    lacks: tuple[str, ...] = ()
    """What the amended plan lacks, such as a baseline of the workload that it now names."""
    previous_sha256: str
    plan: dict[str, Any]
    seal: str = ""


_Sealed = TypeVar("_Sealed", Lock, Amendment)


def sealed(record: _Sealed) -> _Sealed:
    """Return the record with the seal that belongs to it."""
    return msgspec.structs.replace(record, seal=_seal(record))


def is_whole(record: Lock | Amendment) -> bool:
    """Tell whether a record is as it was written."""
    return record.seal == _seal(record)


def _seal(record: Lock | Amendment) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(record, seal=""), order="deterministic")).hexdigest()


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return what changed between two contents of a plan, key by key in the order of the alphabet; lists count as one value."""
    before, after = dict(_leaves(old, "")), dict(_leaves(new, ""))
    return tuple(
        Change(key, before.get(key, msgspec.UNSET), after.get(key, msgspec.UNSET))
        for key in sorted(before.keys() | after.keys())
        # As text: for Python, 0 and false are equal.
        if key not in before or key not in after or msgspec.json.encode(before[key]) != msgspec.json.encode(after[key])
    )


def _leaves(data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        path = f"{where}.{key}" if where else key
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def read_lock(folder: Folder) -> tuple[Lock, str] | None:
    """Return the lock and the SHA-256 of its file, None when there is none.

    Raises `errors.InputFormat` when it is no lock, `errors.LinkInPath` and `errors.InputDenied`.
    """
    with lines.entered(folder.path) as place:
        try:
            descriptor = linkless.open_regular(place, LOCK)
        except errors.InputMissing:
            return None
        with open(descriptor, "rb") as handle:
            content = handle.read(_LONGEST_BYTES)
    try:
        lock = msgspec.json.decode(content, type=Lock)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.InputFormat(f"{folder.lock} is not a lock: {error}", hint="put a copy of it back: it is written once") from error
    if lock.format != FORMAT:
        raise errors.InputFormat(f"{folder.lock} has format {lock.format}; this Perdure knows {FORMAT}", hint="use a newer Perdure")
    return lock, hashlib.sha256(content).hexdigest()


class Amendments(msgspec.Struct, frozen=True):
    """The amendments in order, the SHA-256 of each one's line, and how many torn lines were met."""

    items: tuple[Amendment, ...] = ()
    sha256s: tuple[str, ...] = ()
    torn: int = 0


def read_amendments(folder: Folder) -> Amendments:
    """Return every amendment. Raises `errors.InputFormat` for a line that is none, and what `lines.read` raises."""
    found = lines.read(folder.path, AMENDMENTS)
    items = []
    for number, line in enumerate(found.lines, 1):
        try:
            items.append(msgspec.json.decode(line, type=Amendment))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.InputFormat(
                f"{folder.amendments}, line {number} is no amendment: {error}", hint="the file is written by perdure alone: put a copy back"
            ) from error
    return Amendments(tuple(items), tuple(hashlib.sha256(line).hexdigest() for line in found.lines), found.torn)
