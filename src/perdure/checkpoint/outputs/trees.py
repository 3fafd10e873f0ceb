"""Files and whole trees that were asked for with `--outputs`: copied at the freeze, put back before a restore.

`include` copies regular files (content by reflink where the file system can), folders and links as links, with owner, permissions,
time and extended attributes, and writes what there was to ``outputs/index.json``, which is stored like the copies. `put_back` makes the
tree hold that again: files that differ are kept aside as ``NAME.perdure-tail-EPOCH`` and replaced, missing ones made; files that came
later stay, and are named. Hard links come back as separate files. Devices, FIFOs and sockets are left out and named.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from perdure import errors
from perdure.base import acting, linkless
from perdure.checkpoint.outputs import aside, copying, later, ledgers, listing
from perdure.checkpoint.outputs.bring_back import checked_name
from perdure.checkpoint.outputs.listing import Entry
from perdure.checkpoint.outputs.record import FOLDER
from perdure.checkpoint.outputs.rules import finding
from perdure.model.checkpoint import Owner
from perdure.model.finding import Finding, Severity

_MOST_ENTRIES = 1_000_000
_MAX_ATTRIBUTE_BYTES = 64 << 10
_DEEPEST = 256
_ATTRIBUTES = ("user.", "system.posix_acl_")


class Included(msgspec.Struct, frozen=True):
    """What `include` did."""

    stored: dict[str, str]
    """Names of the copies by path, for `record.record`."""
    copied_bytes: int
    shared_bytes: int
    """Bytes that the file system shares with the original instead of a copy."""
    findings: tuple[Finding, ...]


def include(paths: Iterable[str], staging: Path, owner: Owner | None = None) -> Included:
    """Copy each of `paths`, absolute and without links (a file or a tree), to `staging`/outputs, which is made.

    They are read with the rights of `owner` (None: of this process). Raises `errors.CheckpointFailed` when something cannot be read or
    there is no room.
    """
    roots = tuple(dict.fromkeys(path.rstrip("/") for path in paths))
    (staging / FOLDER).mkdir(mode=0o700, exist_ok=True)
    target = os.open(staging / FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        walk = _Walk(target, owner)
        for root in roots:
            walk.root(root)
    finally:
        os.close(target)
    if not roots:
        return Included({}, 0, 0, ())
    listing.write(staging, roots, tuple(walk.entries.values()))
    stored = {entry.path: entry.stored_as for entry in walk.entries.values() if entry.stored_as is not None}
    return Included(stored, walk.copied_bytes, walk.shared_bytes, tuple(walk.findings))


class _Walk:
    def __init__(self, target: int, owner: Owner | None) -> None:
        self._target = target
        self._owner = owner
        self._room_bytes = copying.room_bytes(target)
        self.entries: dict[str, Entry] = {}
        self.findings: list[Finding] = []
        self.copied_bytes = self.shared_bytes = 0

    def root(self, path: str) -> None:
        try:
            with acting.as_owner(self._owner), linkless.parent(path) as (folder, name):
                if linkless.status(folder, name) is None:
                    self._say("file-include-missing", Severity.WARNING, path, "was to be included and is not there")
                else:
                    self._one(folder, name, path, _DEEPEST)
        except errors.InputMissing:
            self._say("file-include-missing", Severity.WARNING, path, "was to be included and is not there")
        except errors.InputError as error:
            raise errors.CheckpointFailed(f"cannot include {path}: {error}", hint="give the path without links: realpath PATH") from error
        except OSError as error:
            raise errors.CheckpointFailed(f"cannot include {path}: {error.strerror}", hint="leave it out, or mend it") from error

    def _one(self, folder: int, name: str, path: str, depth: int) -> None:
        there = linkless.status(folder, name)
        if there is None or path in self.entries:
            return
        if len(self.entries) >= _MOST_ENTRIES or depth == 0:
            raise errors.CheckpointFailed(f"{path} is too deep, or one of too many files to include", hint="include less with --outputs")
        if stat.S_ISDIR(there.st_mode):
            self._folder(folder, name, path, depth)
        elif stat.S_ISREG(there.st_mode):
            self._file(folder, name, path)
        elif stat.S_ISLNK(there.st_mode):
            self._add(path, "link", there, target=os.readlink(name, dir_fd=folder))
        else:
            self._say("file-include-special", Severity.INFO, path, "is a device, FIFO or socket and is left out")

    def _folder(self, folder: int, name: str, path: str, depth: int) -> None:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            self._add(path, "folder", os.fstat(descriptor), attributes=_attributes(descriptor))
            for below in sorted(os.listdir(descriptor)):
                self._one(descriptor, below, f"{path}/{below}", depth - 1)
        finally:
            os.close(descriptor)

    def _file(self, folder: int, name: str, path: str) -> None:
        descriptor = linkless.open_regular(folder, name)
        try:
            if ledgers.is_ledger(descriptor) or ledgers.is_journal(folder, name):
                self._say("file-ledger-left", Severity.INFO, path, "is a ledger of effects, which must not go back, and is left out")
                return
            there = os.fstat(descriptor)
            weight_bytes = copying.allocated_bytes(there)
            if weight_bytes > self._room_bytes:
                raise errors.CheckpointFailed(
                    f"no room for {path} ({weight_bytes} bytes) where the checkpoint is made",
                    hint="include less with --outputs, or make room",
                )
            copy = f"t{len(self.entries)}"
            with acting.as_self():
                is_shared = copying.to_staging(descriptor, self._target, copy, there.st_size)
            if is_shared:
                self.shared_bytes += weight_bytes
            else:
                self.copied_bytes += weight_bytes
                self._room_bytes -= weight_bytes
            self._add(path, "file", there, stored_as=f"{FOLDER}/{copy}", attributes=_attributes(descriptor))
        finally:
            os.close(descriptor)

    def _add(
        self,
        path: str,
        kind: Literal["file", "folder", "link"],
        there: os.stat_result,
        *,
        stored_as: str | None = None,
        target: str | None = None,
        attributes: dict[str, bytes] | None = None,
    ) -> None:
        self.entries[path] = Entry(
            path=path,
            kind=kind,
            mode=stat.S_IMODE(there.st_mode),
            uid=there.st_uid,
            gid=there.st_gid,
            mtime_ns=there.st_mtime_ns,
            size_bytes=there.st_size if kind == "file" else 0,
            device=there.st_dev,
            inode=there.st_ino,
            stored_as=stored_as,
            target=target,
            attributes=attributes or {},
        )

    def _say(self, code: str, severity: Severity, path: str, message: str) -> None:
        self.findings.append(finding(code, severity, path, message))


def put_back(contents: Path, *, epoch: int, owner: Owner | None = None) -> tuple[Finding, ...]:
    """Put back what `include` stored, from the folder `contents` that the checkpoint was extracted to; nothing if nothing was included.

    It is done with the rights of `owner` (None: of this process), before `bring_back.bring_back`. Returns what was done and what could not
    be. Raises `errors.InputFormat` for a damaged index.
    """
    findings: list[Finding] = []
    folders: list[Entry] = []
    entries = listing.read(contents)
    known = frozenset(entry.path for entry in entries)
    for entry in entries:
        try:
            with (
                _source(entry, contents) as source,
                acting.as_owner(owner),
                linkless.parent(entry.path, make=(entry.uid, entry.gid)) as (folder, name),
            ):
                if entry.kind == "folder":
                    _put_folder(folder, name, entry, epoch)
                    folders.append(entry)
                elif entry.kind == "link":
                    findings += _put_link(folder, name, entry, epoch)
                else:
                    findings += _put_file(folder, name, entry, epoch, source)
        except (OSError, errors.InputError, errors.OutputError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            findings.append(_finding(entry, "restore-output-failed", Severity.PROBLEM, f"cannot be put back: {reason}"))
    for entry in reversed(folders):
        # Last, and from the inside out: what was put into a folder changed its time.
        with (
            contextlib.suppress(OSError, errors.InputError),
            acting.as_owner(owner),
            linkless.parent(entry.path) as (folder, name),
        ):
            _dress_in_place(folder, name, entry)
    return (*findings, *later.look(folders, known, owner))


def is_as_included(entry: Entry, contents: Path, owner: Owner | None = None) -> bool:
    """Tell whether `put_back` would leave the file of `entry` as it is. Raises OSError and `errors.PerdureError`."""
    with _source(entry, contents) as source, acting.as_owner(owner), linkless.parent(entry.path) as (folder, name):
        return aside.is_as(folder, name, source, _look(entry))


def _put_folder(folder: int, name: str, entry: Entry, epoch: int) -> None:
    there = linkless.status(folder, name)
    if there is not None and not stat.S_ISDIR(there.st_mode):
        aside.keep_whole(folder, name, epoch)
        os.unlink(name, dir_fd=folder)
        there = None
    if there is None:
        os.mkdir(name, 0o700, dir_fd=folder)
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        now = os.fstat(descriptor)
        # An empty one of ours is new, or a run that was interrupted made it. Another user's is left as it is.
        if now.st_uid == entry.uid or (now.st_uid == os.geteuid() and not os.listdir(descriptor)):
            aside.dress(descriptor, _look(entry))
    finally:
        os.close(descriptor)


def _put_link(folder: int, name: str, entry: Entry, epoch: int) -> Iterator[Finding]:
    there = linkless.status(folder, name)
    if there is None or not stat.S_ISLNK(there.st_mode) or os.readlink(name, dir_fd=folder) != entry.target:
        if there is not None:
            yield _kept(entry, aside.keep_whole(folder, name, epoch))
            if not stat.S_ISDIR(there.st_mode):
                os.unlink(name, dir_fd=folder)
        os.symlink(entry.target or "", name, dir_fd=folder)
        aside.sync(folder)
    _dress_in_place(folder, name, entry)


def _dress_in_place(folder: int, name: str, entry: Entry) -> None:
    """Give a link or folder owner and time; through a descriptor, since the name may be another file's by now."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        now = os.fstat(descriptor)
        is_kind = (stat.S_ISLNK if entry.kind == "link" else stat.S_ISDIR)(now.st_mode)
        if is_kind and now.st_uid in (entry.uid, os.geteuid()):
            way = f"/proc/self/fd/{descriptor}"
            os.chown(way, entry.uid, entry.gid)
            os.utime(way, ns=(entry.mtime_ns, entry.mtime_ns))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _source(entry: Entry, contents: Path) -> Iterator[int]:
    """Yield a descriptor of the stored content; -1 for what has none."""
    if entry.kind != "file":
        yield -1
        return
    descriptor = os.open(contents / checked_name(entry.stored_as or ".."), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _put_file(folder: int, name: str, entry: Entry, epoch: int, source: int) -> Iterator[Finding]:
    if os.fstat(source).st_size != entry.size_bytes:
        yield _finding(entry, "restore-output-failed", Severity.PROBLEM, "cannot be put back: its copy is not whole")
        return
    if aside.is_as(folder, name, source, _look(entry)):
        return
    tail = _overwritten(folder, name, source, entry, epoch)
    if tail is not None:
        yield _kept(entry, tail)
        return
    if linkless.status(folder, name) is not None:
        yield _kept(entry, aside.keep_whole(folder, name, epoch))
    aside.put(folder, name, source, _look(entry), epoch)


def _overwritten(folder: int, name: str, source: int, entry: Entry, epoch: int) -> str | None:
    """Put the content into the very file that it was of, if it is there still; return where what it held is kept, None if it is not."""
    try:
        current = linkless.open_regular(folder, name)
    except errors.InputError:
        return None
    try:
        there = os.fstat(current)
        if (there.st_dev, there.st_ino, there.st_uid) != (entry.device, entry.inode, entry.uid):
            return None
        return aside.overwrite(folder, name, current, source, look=_look(entry), epoch=epoch)
    finally:
        os.close(current)


def _look(entry: Entry) -> aside.Look:
    return aside.Look(entry.mode, entry.uid, entry.gid, entry.mtime_ns, tuple(entry.attributes.items()))


def _attributes(descriptor: int) -> dict[str, bytes]:
    try:
        names = os.listxattr(descriptor)
    except OSError:
        return {}
    found: dict[str, bytes] = {}
    for name in names:
        if name.startswith(_ATTRIBUTES):
            with contextlib.suppress(OSError):
                value = os.getxattr(descriptor, name)
                if len(value) <= _MAX_ATTRIBUTE_BYTES:
                    found[name] = value
    return found


def _kept(entry: Entry, tail: str) -> Finding:
    return _finding(entry, "restore-output-aside", Severity.INFO, f"was changed after the checkpoint, and is kept as {tail}")


def _finding(entry: Entry, code: str, severity: Severity, message: str) -> Finding:
    return finding(code, severity, entry.path, message)
