"""Which output files go along with a checkpoint by themselves, and how an output file is told from another. Pure; called by this room.

CRIU saves of an open regular file its path, offset, flags and (unless write-only and for append) its size, never its content. So what a
workload writes after a checkpoint stays in the file while the workload goes back:

- A file that the tree can only append to (every descriptor has O_APPEND, none maps it) cannot change before its size at the checkpoint.
  It is recorded, and on restore what was added is cut off and kept aside. Content is not stored.
- Any other file can be written in place, and no flag tells a program that only goes forward from one that does not: a database, HDF5, a
  mapped array, an archive whose head is written last. Such files are stored with the checkpoint, each up to `Limits.file_bytes` and all
  together up to `Limits.total_bytes`, those that are opened for reading and writing or mapped before those that are only written, small
  ones first. What is beyond is recorded only, and named with `--outputs` as the remedy: on restore it is put right if its tail shows
  that it was added to, and named if it was overwritten, or if it could be anywhere and was written since. A database that would have to
  be cut stops the restore.
- A file below a folder that a reboot or another job may empty (`VOLATILE`) is stored within the same limits even if it is only appended to.
- Beside an SQLite database lie its -wal, -shm and -journal. Those that are there are stored with it even if nobody has them open, all of
  them or none; those that are not there must not be there after the restore either: a journal of a later time would be played back into
  the database.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import msgspec

from perdure.base import text
from perdure.model.checkpoint import Holder, OutputFile
from perdure.model.finding import Finding, Severity, problems

TAIL_BYTES = 64 << 10
"""How much before the end a digest covers: it tells a file that was added to from one that was written anew."""

VOLATILE = ("/tmp/", "/var/tmp/", "/run/user/", "/dev/shm/")  # noqa: S108 - folders that are named, not used
"""Folders whose content a reboot, a cleaner or another job may remove."""

UNSAVED = "file-overwrite-unsaved"
"""Code of a file that `unprotected` names. Before the freeze it can only be guessed which those are."""

SQLITE_MAGIC = b"SQLite format 3\0"
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
MAGIC_BYTES = max(len(SQLITE_MAGIC), len(HDF5_MAGIC))
"""How much of a file's beginning `is_database` looks at."""
SQLITE_SIBLINGS = ("-wal", "-shm", "-journal")


class Limits(msgspec.Struct, frozen=True):
    """How much of the files that can be written in place goes along by itself."""

    file_bytes: int = 64 << 20
    """Largest single file. Copying it costs the workload some 30 ms of standing still."""
    total_bytes: int = 1 << 30
    """All of them together."""


class Candidate(msgspec.Struct, frozen=True):
    """A file that would go along; `weight_bytes` is what a copy takes. Files of one `group` go along together or not at all."""

    key: int
    group: str
    is_append_only: bool
    is_read_write: bool
    weight_bytes: int
    path: str


def is_volatile(path: str) -> bool:
    """Tell whether `path` lies where content may be removed at any time."""
    return path.startswith(VOLATILE)


def choose(candidates: Iterable[Candidate], limits: Limits) -> frozenset[int]:
    """Return the keys of those that go along, by the rule of this module."""
    groups: dict[str, list[Candidate]] = {}
    for each in candidates:
        if not each.is_append_only or is_volatile(each.path):
            groups.setdefault(each.group, []).append(each)
    chosen: set[int] = set()
    left = limits.total_bytes
    for group in sorted(groups.values(), key=_rank):
        weight_bytes = sum(each.weight_bytes for each in group)
        if max(each.weight_bytes for each in group) <= limits.file_bytes and weight_bytes <= left:
            chosen.update(each.key for each in group)
            left -= weight_bytes
    return frozenset(chosen)


def _rank(group: list[Candidate]) -> tuple[bool, bool, int, str]:
    """Return what groups are sorted by: those first that a restore could least do without."""
    return (
        all(each.is_append_only for each in group),
        not any(each.is_read_write for each in group),
        sum(each.weight_bytes for each in group),
        group[0].group,
    )


def is_append_only(output: OutputFile) -> bool:
    """Tell whether the tree could only add to the end of `output`."""
    return not output.mapped and bool(output.holders) and all(holder.flags & os.O_APPEND for holder in output.holders)


def is_read_write(output: OutputFile) -> bool:
    """Tell whether the tree had `output` open for reading and writing, or mapped: as databases and arrays are, and logs are not."""
    return output.mapped or any(holder.flags & os.O_ACCMODE == os.O_RDWR for holder in output.holders)


def goes_forward(output: OutputFile) -> bool:
    """Tell whether the tree could only add to `output`, or could not read it and stood at its end with all that it could write with."""
    at_end = all(holder.flags & os.O_APPEND or holder.offset == output.size_bytes for holder in output.holders)
    return bool(output.holders) and not is_read_write(output) and at_end


def ends_alike(current: int, output: OutputFile) -> bool:
    """Tell whether the file of descriptor `current` holds before the recorded size what `output` held; false where that is not recorded."""
    begin = tail_begin(output.size_bytes)
    return output.head_digest is not None and digest(os.pread(current, output.size_bytes - begin, begin)) == output.head_digest


def are_lasting(findings: Iterable[Finding]) -> bool:
    """Tell whether what `findings` of a refused restore name as problems will not pass: its output files went on without it.

    Where a file system is not mounted they may be there once it is.
    """
    known = tuple(findings)
    found = problems(known)
    return bool(found) and all(each.code in _LASTING for each in found) and not any(each.code == "restore-mount" for each in known)


_LASTING = frozenset({"restore-output-missing", "restore-output-shorter", "restore-output-replaced", "restore-output-overwritten"})


def is_database(beginning: bytes) -> bool:
    """Tell whether a file that begins so has tables in front that speak of its end: cut off, it is damaged."""
    return beginning.startswith((SQLITE_MAGIC, HDF5_MAGIC))


def is_size_checked(output: OutputFile) -> bool:
    """Tell whether CRIU refuses to restore when the size of `output` is another (criu/files-reg.c: all but write-only and append)."""
    wanted = os.O_WRONLY | os.O_APPEND
    return output.mapped or any(holder.flags & (os.O_ACCMODE | os.O_APPEND) != wanted for holder in output.holders)


def digest(tail: bytes) -> str:
    """Return the digest of the end of a file, hexadecimal."""
    return hashlib.blake2b(tail, digest_size=16).hexdigest()


def tail_begin(size_bytes: int) -> int:
    """Return where the part that `digest` covers begins in a file of `size_bytes`."""
    return max(0, size_bytes - TAIL_BYTES)


def finding(
    code: str,
    severity: Severity,
    path: str,
    message: str,
    *,
    remedy: str | None = None,
    holder: Holder | None = None,
) -> Finding:
    """Return a finding about the file `path`, which `message` speaks of without naming it; names that are no text are made showable."""
    shown = text.printable(path)
    return Finding(
        code=code,
        severity=severity,
        subject=shown,
        message=message,
        remedy=remedy,
        path=text.storable(path),
        pid=holder.pid if holder else None,
        fd=holder.fd if holder else None,
    )


def unprotected(outputs: Iterable[OutputFile]) -> tuple[Finding, ...]:
    """Return a warning for each file that can be written in place and is too large to go along; `record` names those it cannot read."""
    return tuple(
        finding(
            UNSAVED,
            Severity.WARNING,
            text.original(output.path),
            f"can be written in place and is too large ({output.size_bytes} bytes) to go along by itself: what is overwritten after a "
            "checkpoint cannot be brought back",
            remedy=f"include it: --outputs {text.printable(text.original(output.path))}",
            holder=output.holders[0] if output.holders else None,
        )
        for output in outputs
        if output.stored_as is None and output.head_digest is not None and not is_append_only(output)
    )
