"""Files that go along because the images do not hold them: in /dev/shm and the folders for temporary files, open or mapped by the tree.

Called at the freeze (`collect`, `carry`) and before a restore (`put_back`). CRIU saves the memory of processes, not the file that a shared
mapping or a descriptor leads to: a semaphore in /dev/shm, a segment of shared memory, the performance data of a JVM have to be there again,
on this machine or another. What is open for writing by a descriptor elsewhere than in /dev/shm is an output file (`outputs`), not carried.

Files in /dev/shm always go along: they are memory. Of the others those that fit `TEMPORARY` do, what is mapped for writing first and small
ones before large: a data set or a whole installation below /tmp stays where it is, is named, and has to be there at the restore like any
input.

Files in /dev/shm are memory: what another life left there has no worth, so that a differing one is replaced, unless a living process has it
open. Elsewhere a differing file is kept aside as ``NAME.perdure-tail-EPOCH``.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import acting, linkless, text
from perdure.base.proc import descriptors, holders, mappings
from perdure.checkpoint.outputs import aside, copying, rules
from perdure.checkpoint.outputs.bring_back import checked_name
from perdure.checkpoint.outputs.rules import Limits
from perdure.model.checkpoint import Carried, Manifest, Owner
from perdure.model.finding import Finding, Severity

FOLDER = "carried"
"""Folder in the staging folder, and first part of the stored names."""

_BUSY = "restore-carried-busy"
_BUSY_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Whoever has a file open for no longer, such as another restore that compares it or a backup, does not use it."""

SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - a folder that is named, not used

TEMPORARY = Limits(file_bytes=64 << 20, total_bytes=256 << 20)
"""How much of the files for temporary use goes along. Copying all of it costs the workload some 150 ms of standing still."""

_MOST_FILES = 100_000


class Collected(msgspec.Struct, frozen=True):
    """What `collect` found and copied."""

    carried: tuple[Carried, ...]
    copied_bytes: int
    """Bytes that were copied while the tree stood still."""
    findings: tuple[Finding, ...] = ()
    """A warning for each file that is too large to go along."""

    @property
    def paths(self) -> frozenset[str]:
        """Paths that go along: `outputs.record.record` leaves them out."""
        return frozenset(text.original(each.path) for each in self.carried)


def collect(pids: Iterable[int], staging: Path, *, explicit: Iterable[str] = (), owner: Owner | None = None) -> Collected:
    """Copy what the processes `pids` (of the host, standing still) need and images do not hold to `staging`/carried, which is made.

    `explicit` are more files to take, by absolute paths without links, such as the init's program; all others are read with the rights of
    `owner` (None: of this process). Deleted files are in the images already. Raises `errors.CheckpointFailed` when one cannot be read or
    there is no room, `errors.InputDenied` without the right to look.
    """
    found: dict[str, _Used] = {}
    for pid in pids:
        try:
            _look(pid, found)
        except errors.ProcessGone:
            continue
    left = _left_behind(found)
    for path in left:
        del found[path]
    ours = frozenset(explicit)
    for path in ours:
        found[path] = _Used(path, is_written=False)
    (staging / FOLDER).mkdir(mode=0o700, exist_ok=True)
    target = os.open(staging / FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        carried, copied_bytes = _copied(found, target, lambda path: None if path in ours else owner)
    finally:
        os.close(target)
    return Collected(carried, copied_bytes, tuple(map(_left, left)))


def is_carried(path: str, *, written: bool) -> bool:
    """Tell whether a file that the tree has open or mapped under `path` is to go along; `written`: a descriptor is open for writing."""
    return path.startswith(SHARED_MEMORY) or (rules.is_volatile(path) and not written)


class _Used(msgspec.Struct):
    """A file that is open or mapped; `way` is a link below /proc that opens the very file, whatever its path leads to now."""

    way: str
    is_written: bool
    """It is mapped shared and writable."""


def _look(pid: int, found: dict[str, _Used]) -> None:
    written: set[str] = set()
    used: dict[str, _Used] = {}
    for each in descriptors.of(pid):
        if each.is_regular and each.is_path and not each.deleted:
            if each.is_writable:
                written.add(each.target)
            used.setdefault(each.target, _Used(f"/proc/{pid}/fd/{each.number}", is_written=False))
    for mapping in mappings.of(pid):
        if mapping.is_file and not mapping.deleted and rules.is_volatile(mapping.path):
            way = f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"
            one = used.setdefault(mapping.path, _Used(way, is_written=False))
            one.is_written |= mapping.is_shared_writable
    for path, one in used.items():
        if is_carried(path, written=path in written):
            found.setdefault(path, one).is_written |= one.is_written


def _left_behind(found: dict[str, _Used]) -> tuple[str, ...]:
    """Return the paths of the files for temporary use that do not fit."""
    candidates: list[rules.Candidate] = []
    paths = [path for path in found if not path.startswith(SHARED_MEMORY)]
    for key, path in enumerate(paths):
        try:
            weight_bytes = copying.allocated_bytes(os.stat(found[path].way))
        except OSError:
            # What cannot be looked at is refused where it is opened, with its reason.
            weight_bytes = 0
        is_written = found[path].is_written
        candidates.append(
            rules.Candidate(key=key, group=path, is_append_only=False, is_read_write=is_written, weight_bytes=weight_bytes, path=path)
        )
    chosen = rules.choose(candidates, TEMPORARY)
    return tuple(path for key, path in enumerate(paths) if key not in chosen)


def _left(path: str) -> Finding:
    return rules.finding(
        "file-temporary-left",
        Severity.WARNING,
        path,
        "is used by the workload and too large to go along with a checkpoint: it has to be there, unchanged, when the workload is restored",
        remedy=f"keep it in a folder that is not emptied, or include it: --outputs {text.printable(path)}",
    )


def _copied(found: dict[str, _Used], target: int, owner_of: Callable[[str], Owner | None]) -> tuple[tuple[Carried, ...], int]:
    if len(found) > _MOST_FILES:
        raise errors.CheckpointFailed(f"the workload has {len(found)} files in /dev/shm and /tmp open", hint="close some of them")
    carried: list[Carried] = []
    copied_bytes = 0
    room_bytes = copying.room_bytes(target)
    for number, (path, used) in enumerate(found.items()):
        source = _open(path, used.way, owner_of(path))
        try:
            there = os.fstat(source)
            weight_bytes = copying.allocated_bytes(there)
            if weight_bytes > room_bytes:
                raise errors.CheckpointFailed(
                    f"no room for {path} ({weight_bytes} bytes) where the checkpoint is made",
                    hint="free memory or choose another staging folder",
                )
            if not copying.to_staging(source, target, str(number), there.st_size):
                copied_bytes += weight_bytes
                room_bytes -= weight_bytes
        finally:
            os.close(source)
        carried.append(_described(path, f"{FOLDER}/{number}", there))
    return tuple(carried), copied_bytes


def _described(path: str, name: str, there: os.stat_result) -> Carried:
    return Carried(
        path=text.storable(path),
        stored_as=name,
        size_bytes=there.st_size,
        mode=stat.S_IMODE(there.st_mode),
        uid=there.st_uid,
        gid=there.st_gid,
        mtime_ns=there.st_mtime_ns,
    )


def _open(path: str, way: str, owner: Owner | None) -> int:
    try:
        if way == path:
            with acting.as_owner(owner), linkless.parent(path) as (folder, name):
                return linkless.open_regular(folder, name)
        return acting.reopen(way, owner)
    except (OSError, errors.InputError) as error:
        hint = "run as root; see perdure check" if owner is None else f"make it readable for user {owner.uid}, or close it"
        raise errors.CheckpointFailed(f"cannot read {path}, which the workload uses: {error}", hint=hint) from error


def apart(manifest: Manifest) -> tuple[tuple[Carried, ...], tuple[Carried, ...]]:
    """Return what goes along of the init, which is never the user's, and what of the workload."""
    program = text.storable(manifest.processes[0].executable) if manifest.processes else ""
    of_init = tuple(each for each in manifest.carried if each.path == program)
    return of_init, tuple(each for each in manifest.carried if each.path != program)


def put_back(
    carried: Iterable[Carried], extracted: Path, *, epoch: int, owner: Owner | None = None, shared: bool = False
) -> tuple[Finding, ...]:
    """Put each of `carried` back where it is missing or different; `extracted` is the folder that the checkpoint was extracted to.

    It is done with the rights of `owner` (None: of this process). One with the same content, owner, permissions and time is left alone;
    of `shared` ones, which other workloads use too and may be bringing at this moment, the time does not matter. Returns what was done and
    what could not be: a problem stops the restore.
    """
    findings: list[Finding] = []
    wanted = tuple(carried)
    for each in wanted:
        try:
            findings += _put(each, extracted, epoch, owner, shared=shared)
        except (OSError, errors.InputError, errors.OutputError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            findings.append(_finding(each, "restore-carried-failed", Severity.PROBLEM, f"cannot be put back: {reason}"))
    return tuple(findings)


def _put(each: Carried, extracted: Path, epoch: int, owner: Owner | None, *, shared: bool) -> list[Finding]:
    for pause_s in _BUSY_PAUSES_S:
        findings = _put_now(each, extracted, epoch, owner, shared=shared)
        if not any(finding.code == _BUSY for finding in findings):
            return findings
        time.sleep(pause_s)
    return _put_now(each, extracted, epoch, owner, shared=shared)


def _put_now(each: Carried, extracted: Path, epoch: int, owner: Owner | None, *, shared: bool) -> list[Finding]:
    path = text.original(each.path)
    look = aside.Look(each.mode, each.uid, each.gid, each.mtime_ns)
    source = os.open(extracted / checked_name(each.stored_as), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(source).st_size != each.size_bytes:
            return [
                _finding(each, "restore-carried-failed", Severity.PROBLEM, "cannot be put back: its copy in the checkpoint is not whole")
            ]
        with acting.as_owner(owner), linkless.parent(path, make=(each.uid, each.gid)) as (folder, name):
            there = linkless.status(folder, name)
            if aside.is_as(folder, name, source, look):
                return []
            if there is None and _put_where_nothing_is(folder, name, source, look, epoch, shared=shared):
                return []
            there = there or os.stat(name, dir_fd=folder, follow_symlinks=False)
            with acting.as_self():
                holder = holders.of(there) if stat.S_ISREG(there.st_mode) else None
            if (shared or holder is not None) and aside.is_as(folder, name, source, _of_its_age(look, there)):
                # Only its time differs, as that of an init which another workload of the same user has brought here.
                return []
            if holder is not None:
                message = f"is not what it was, and process {holder} has it open"
                return [_finding(each, _BUSY, Severity.PROBLEM, message, pid=holder)]
            kept: list[Finding] = []
            if not (path.startswith(SHARED_MEMORY) and stat.S_ISREG(there.st_mode)):
                tail = aside.keep_whole(folder, name, epoch)
                kept.append(
                    _finding(each, "restore-carried-aside", Severity.INFO, f"is not what it was, and is kept as {text.printable(tail)}")
                )
            aside.put(folder, name, source, look, epoch)
            return kept
    finally:
        os.close(source)


def _put_where_nothing_is(folder: int, name: str, source: int, look: aside.Look, epoch: int, *, shared: bool) -> bool:
    """Put it there. Tell whether it was put: of a shared one, somebody else's may have come first, and is used already."""
    try:
        aside.put(folder, name, source, look, epoch, replace=not shared)
    except FileExistsError:
        return False
    return True


def _of_its_age(look: aside.Look, there: os.stat_result) -> aside.Look:
    return msgspec.structs.replace(look, mtime_ns=there.st_mtime_ns)


def _finding(each: Carried, code: str, severity: Severity, message: str, *, pid: int | None = None) -> Finding:
    found = rules.finding(code, severity, text.original(each.path), message)
    return msgspec.structs.replace(found, pid=pid)
