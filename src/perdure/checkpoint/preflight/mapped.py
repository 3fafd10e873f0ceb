"""Files that must be the same where a workload is restored: what it executes, maps or reads. Recorded before the freeze."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from perdure import errors
from perdure.base import text
from perdure.base.proc import descriptors, mappings, mounts, process
from perdure.checkpoint.preflight import buildid
from perdure.model.checkpoint import MappedFile

VIRTUAL_KINDS = frozenset(
    {
        "proc", "sysfs", "cgroup", "cgroup2", "devtmpfs", "devpts", "debugfs", "tracefs", "securityfs", "mqueue", "bpf", "pstore",
        "configfs", "nsfs", "binfmt_misc", "hugetlbfs", "efivarfs", "fusectl", "selinuxfs",
    }
)  # fmt: skip
"""File systems whose files the kernel makes up: there is nothing to compare."""


def record(pids: Iterable[int]) -> tuple[MappedFile, ...]:
    """Return the files that processes `pids` execute, map or have open for reading alone, sorted by path.

    Files that they write are no part of it (those are outputs), nor deleted ones (those are in the images). Processes that end
    meanwhile are passed over. Raises `errors.InputDenied`.
    """
    found: dict[str, MappedFile] = {}
    written: set[tuple[int, int]] = set()
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            seen = mounts.of(pid)
            virtual = {mount.id for mount in seen if mount.kind in VIRTUAL_KINDS}
            for path, there, source in [*_mapped(pid), *_opened(pid, virtual, written)]:
                if path not in found:
                    found[path] = MappedFile(
                        path=text.storable(path),
                        size_bytes=there.st_size,
                        mtime_ns=there.st_mtime_ns,
                        build_id=buildid.of_path(source) if source else None,
                    )
    return tuple(found[path] for path in sorted(found))


def _mapped(pid: int) -> Iterator[tuple[str, os.stat_result, str | None]]:
    """Yield path, stat(2), and where to read a build id, of each mapped file once."""
    writable: set[str] = set()
    first: dict[str, mappings.Mapping] = {}
    code: set[str] = set()
    for mapping in mappings.of(pid):
        if not mapping.is_file or mapping.deleted or mapping.path.startswith(("/dev/", "/[", "/sys/")):
            continue
        first.setdefault(mapping.path, mapping)
        if mapping.is_shared_writable:
            writable.add(mapping.path)
        if "x" in mapping.permissions:
            code.add(mapping.path)
    for path, mapping in first.items():
        there = mappings.file_of(pid, mapping) if path not in writable else None
        if there is not None:
            yield path, there, f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}" if path in code else None


def _opened(pid: int, virtual: set[int], written: set[tuple[int, int]]) -> Iterator[tuple[str, os.stat_result, str | None]]:
    opened = [one for one in descriptors.of(pid) if one.is_regular and one.is_path and not one.deleted and one.info.mount not in virtual]
    written.update((one.device, one.inode) for one in opened if one.is_writable)
    for one in opened:
        if (one.device, one.inode) not in written and not one.info.flags & os.O_PATH:
            with contextlib.suppress(OSError):
                yield one.target, os.stat(f"/proc/{pid}/fd/{one.number}"), None


def executables(pids: Iterable[int]) -> tuple[str, ...]:
    """Return the programs of processes `pids`, sorted; those that end meanwhile are passed over. Raises `errors.InputDenied`."""
    found = set()
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            path, deleted = process.executable(pid)
            if not deleted:
                found.add(path)
    return tuple(sorted(found))
