"""Record the files that a tree writes to, as they are while it stands still. Called at the freeze of a dump.

What must happen during the freeze happens in `record`: looking, reading the last 64 KiB of each file, copying those that go along (see
`rules`). Digests are made afterwards, by `Recording.outputs`. Paths are those of our own mount namespace and without links, as the kernel
shows them; a file that is not found under its path from here (another mount namespace, or a path that leads elsewhere by now) is named.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from perdure import errors
from perdure.base import acting, linkless, text
from perdure.base.proc import descriptors, mappings
from perdure.checkpoint.outputs import copying, rules
from perdure.checkpoint.outputs.rules import Limits
from perdure.model.checkpoint import Holder, OutputFile, Owner
from perdure.model.finding import Finding, Severity

FOLDER = "outputs"
"""Folder in the staging folder, and first part of the stored names."""

_NO_FILES = ("/proc/", "/sys/")
"""What lies there looks like files and is the kernel's."""

_SMALLEST_DATABASE_BYTES = 512
_MAX_TAILS_BYTES = 64 << 20
"""Tails kept in memory between the freeze and the digests, a thousand full ones; of more files the digest is made at once."""


class Recording:
    """What was recorded at one freeze. `outputs` is called once, after the thaw."""

    def __init__(self, owner: Owner | None = None) -> None:
        self.owner = owner
        """Whose rights count for what is read and looked for."""
        self._found: list[tuple[OutputFile, bytes | None]] = []
        self.findings: list[Finding] = []
        self.copied_bytes = 0
        """Bytes that were copied while the tree stood still."""
        self.shared_bytes = 0
        """Bytes that the file system shares (reflink) instead."""

    def add(self, output: OutputFile, tail: bytes | None) -> None:
        """Add one file; `tail` is hashed later."""
        self._found.append((output, tail))

    def outputs(self) -> tuple[OutputFile, ...]:
        """Return the files, digests made, in the order they were found."""
        return tuple(
            output if tail is None else msgspec.structs.replace(output, head_digest=rules.digest(tail)) for output, tail in self._found
        )


class _Open:
    """One file, by all who have it open for writing or mapped."""

    def __init__(self, path: str, way: str, there: os.stat_result) -> None:
        self.path = path
        self.way = way
        """A link below /proc that opens the very file, whatever its path leads to now."""
        self.there = there
        self.holders: list[Holder] = []
        self.mapped = False
        self.group = path
        self.without: tuple[str, ...] = ()

    @property
    def stored_without(self) -> tuple[str, ...]:
        return tuple(map(text.storable, self.without))

    def candidate(self, key: int) -> rules.Candidate:
        modes = {holder.flags & os.O_ACCMODE for holder in self.holders}
        return rules.Candidate(
            key=key,
            group=self.group,
            is_append_only=not self.mapped and bool(self.holders) and all(holder.flags & os.O_APPEND for holder in self.holders),
            is_read_write=self.mapped or os.O_RDWR in modes or not modes,
            weight_bytes=copying.allocated_bytes(self.there),
            path=self.path,
        )


def record(
    pids: Iterable[int],
    staging: Path,
    *,
    limits: Limits | None = None,
    besides: Collection[str] = (),
    stored: Mapping[str, str] = MappingProxyType({}),
    owner: Owner | None = None,
) -> Recording:
    """Record the output files of the processes `pids` (of the host), which must stand still.

    Copies go to `staging`/outputs, which is made. `besides` are paths that go along otherwise (`carried`), `stored` those that
    `trees.include` has copied already, with the names of their copies. Files are read and looked for with the rights of `owner` (None: of
    this process): one that this user may write and not read is recorded without its content. Raises `errors.CheckpointFailed` when a copy
    cannot be made, `errors.InputDenied` without the right to look.
    """
    recording = Recording(owner)
    found = _collect(pids, recording, besides)
    known = [*found, *_siblings(found, owner)]
    wanted = [opened.candidate(key) for key, opened in enumerate(known) if opened.path not in stored]
    chosen = rules.choose(wanted, limits or Limits())
    (staging / FOLDER).mkdir(mode=0o700, exist_ok=True)
    folder = os.open(staging / FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        tails_bytes = 0
        for key, opened in enumerate(known):
            name = f"{key}" if key in chosen else None
            output, tail = _one(opened, name, folder, recording)
            if opened.path in stored:
                output = msgspec.structs.replace(output, stored_as=stored[opened.path], without=opened.stored_without)
            tails_bytes += len(tail or b"")
            if tail is not None and tails_bytes > _MAX_TAILS_BYTES:
                output, tail = msgspec.structs.replace(output, head_digest=rules.digest(tail)), None
            recording.add(output, tail)
    finally:
        os.close(folder)
    return recording


def _collect(pids: Iterable[int], recording: Recording, besides: Collection[str]) -> list[_Open]:
    found: dict[tuple[str, int, int], _Open] = {}
    for pid in pids:
        try:
            for each in descriptors.of(pid):
                if each.is_regular and each.is_writable and each.is_path and _may_be_output(each.target, besides):
                    _add_descriptor(pid, each, found, recording)
            for mapping in mappings.of(pid):
                if mapping.is_shared_writable and mapping.is_file and _may_be_output(mapping.path, besides):
                    _add_mapping(pid, mapping, found, recording)
        except errors.ProcessGone:
            continue
    return [opened for opened in found.values() if _is_found_here(opened, recording)]


def _may_be_output(path: str, besides: Collection[str]) -> bool:
    return path not in besides and not path.startswith(_NO_FILES)


def _add_descriptor(pid: int, each: descriptors.Descriptor, found: dict[tuple[str, int, int], _Open], recording: Recording) -> None:
    holder = Holder(pid=pid, fd=each.number, offset=each.info.position, flags=each.info.flags)
    if each.deleted:
        recording.findings.append(_deleted(each.target, holder))
        return
    opened = found.get((each.target, each.device, each.inode))
    if opened is None:
        way = f"/proc/{pid}/fd/{each.number}"
        try:
            opened = found[each.target, each.device, each.inode] = _Open(each.target, way, os.stat(way))
        except FileNotFoundError:
            return
    opened.holders.append(holder)


def _add_mapping(pid: int, mapping: mappings.Mapping, found: dict[tuple[str, int, int], _Open], recording: Recording) -> None:
    there = mappings.file_of(pid, mapping)
    if there is None or not stat.S_ISREG(there.st_mode):
        return
    if mapping.deleted:
        recording.findings.append(_deleted(mapping.path, None))
        return
    key = (mapping.path, there.st_dev, there.st_ino)
    if key not in found:
        found[key] = _Open(mapping.path, f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}", there)
    found[key].mapped = True


def _is_found_here(opened: _Open, recording: Recording) -> bool:
    """Tell whether the path leads to the file from here, without any link; if not, say so."""
    try:
        with acting.as_owner(recording.owner), linkless.parent(opened.path) as (folder, name):
            there = linkless.status(folder, name)
    except (errors.InputError, PermissionError):
        there = None
    if there is not None and (there.st_dev, there.st_ino) == (opened.there.st_dev, opened.there.st_ino):
        return True
    recording.findings.append(
        rules.finding(
            "file-output-elsewhere",
            Severity.WARNING,
            opened.path,
            "is open for writing and is not found under that path from here: it will not be brought back on restore",
            remedy="start the workload without a mount namespace of its own",
            holder=opened.holders[0] if opened.holders else None,
        )
    )
    return False


def _siblings(found: list[_Open], owner: Owner | None) -> list[_Open]:
    """Return what lies beside SQLite databases and is not open; put what belongs together into groups, and note what is not there."""
    known = {opened.path: opened for opened in found}
    added: list[_Open] = []
    for database in found:
        if not _is_database(database, owner):
            continue
        for path in (database.path + suffix for suffix in rules.SQLITE_SIBLINGS):
            sibling = known.get(path) or _unopened(path, owner)
            if sibling is None:
                database.without += (path,)
                continue
            sibling.group = database.path
            if path not in known:
                known[path] = sibling
                added.append(sibling)
    return added


def _unopened(path: str, owner: Owner | None) -> _Open | None:
    try:
        with acting.as_owner(owner), linkless.parent(path) as (folder, name):
            there = linkless.status(folder, name)
    except errors.InputError:
        return None
    return _Open(path, path, there) if there is not None and stat.S_ISREG(there.st_mode) else None


def _is_database(opened: _Open, owner: Owner | None) -> bool:
    if opened.there.st_size < _SMALLEST_DATABASE_BYTES or opened.candidate(0).is_append_only:
        return False
    with contextlib.suppress(OSError):
        descriptor = acting.reopen(opened.way, owner)
        try:
            return os.pread(descriptor, len(rules.SQLITE_MAGIC), 0) == rules.SQLITE_MAGIC
        finally:
            os.close(descriptor)
    return False


def _one(opened: _Open, copy_name: str | None, folder: int, recording: Recording) -> tuple[OutputFile, bytes | None]:
    descriptor = _reopen(opened, recording)
    if descriptor is None:
        there, tail, copy_name = opened.there, None, None
    else:
        try:
            there = os.fstat(descriptor)
            tail = None
            if copy_name is None:
                tail = os.pread(descriptor, rules.TAIL_BYTES, rules.tail_begin(there.st_size))
            elif copying.to_staging(descriptor, folder, copy_name, there.st_size):
                recording.shared_bytes += copying.allocated_bytes(there)
            else:
                recording.copied_bytes += copying.allocated_bytes(there)
        finally:
            os.close(descriptor)
    output = OutputFile(
        path=text.storable(opened.path),
        size_bytes=there.st_size,
        device=there.st_dev,
        inode=there.st_ino,
        mtime_ns=there.st_mtime_ns,
        mode=stat.S_IMODE(there.st_mode),
        uid=there.st_uid,
        gid=there.st_gid,
        holders=tuple(opened.holders),
        stored_as=None if copy_name is None else f"{FOLDER}/{copy_name}",
        mapped=opened.mapped,
        without=opened.stored_without if copy_name is not None else (),
    )
    return output, tail


def _reopen(opened: _Open, recording: Recording) -> int | None:
    """Return a descriptor for reading; None, after it was told, when its owner may write the file and not read it."""
    owner = recording.owner
    try:
        if opened.way == opened.path:
            with acting.as_owner(owner), linkless.parent(opened.path) as (folder, name):
                return linkless.open_regular(folder, name)
        return acting.reopen(opened.way, owner)
    except (OSError, errors.InputError) as error:
        if owner is not None and isinstance(error, (PermissionError, errors.InputDenied)) and not isinstance(error, errors.LinkInPath):
            recording.findings.append(
                rules.finding(
                    "file-output-unreadable",
                    Severity.WARNING,
                    opened.path,
                    f"may be written and not read by user {owner.uid}: what is overwritten after a checkpoint cannot be brought back",
                    remedy="make it readable for its writer",
                    holder=opened.holders[0] if opened.holders else None,
                )
            )
            return None
        raise errors.CheckpointFailed(f"cannot read the open file {opened.path}: {error}", hint="run as root; see perdure check") from error


def _deleted(path: str, holder: Holder | None) -> Finding:
    message = "is open for writing and deleted: its content goes along in the images"
    return rules.finding("file-output-deleted", Severity.INFO, path, message, holder=holder)
