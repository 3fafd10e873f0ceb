"""The memory mappings of a process, and how much memory it takes. Called by preflight, output files, carried files and staging."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import msgspec

from perdure import errors
from perdure.base.proc import reading

_LINE = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-][ps]) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+)(?: +(\S.*)?)?", re.DOTALL)
_POLICY_BYTES = 64
_UNNAMED = ("/memfd:", "/SYSV", "/dev/zero", "/anon_hugepage")


class Mapping(msgspec.Struct, frozen=True):
    """One mapping. `start` and `end` are addresses, `offset` is the place in the file; all in bytes."""

    start: int
    end: int
    permissions: str
    """As the kernel shows them: ``rw-p``; the last letter is p private or s shared."""
    offset: int
    device: int
    inode: int
    path: str
    """The file's path, ``[heap]``, ``[stack]``…, or empty."""
    deleted: bool

    @property
    def size_bytes(self) -> int:
        """Length of the mapping."""
        return self.end - self.start

    @property
    def is_shared_writable(self) -> bool:
        """Tell whether what is written there goes to the file."""
        return self.permissions[1] == "w" and self.permissions[3] == "s"

    @property
    def is_file(self) -> bool:
        """Tell whether it maps a file that had a name: not anonymous memory, a memfd, or a System V segment."""
        return self.inode != 0 and self.path.startswith("/") and not self.path.startswith(_UNNAMED)


class Usage(msgspec.Struct, frozen=True):
    """Memory of one process from /proc/PID/smaps_rollup, in bytes."""

    resident_bytes: int
    proportional_bytes: int
    """Each shared page counted in parts among those who share it: the sum over a tree is what the tree takes."""
    private_dirty_bytes: int
    anonymous_bytes: int
    shared_memory_bytes: int
    """Proportional part that is shared memory."""
    swapped_bytes: int
    locked_bytes: int
    huge_bytes: int


def parse_line(line: bytes) -> Mapping | None:
    """Read one line of /proc/PID/maps, with the path as shown; None for a line that is no mapping."""
    found = _LINE.fullmatch(line)
    if not found:
        return None
    start, end, offset, major, minor = (int(found[number], 16) for number in (1, 2, 4, 5, 6))
    return Mapping(
        start=start,
        end=end,
        permissions=found[3].decode("ascii"),
        offset=offset,
        device=os.makedev(major, minor),
        inode=int(found[7]),
        path=os.fsdecode(found[8] or b""),
        deleted=False,
    )


def parse(text: bytes) -> tuple[Mapping, ...]:
    """Read the text of /proc/PID/maps with paths as shown: a line end in a name is ``\\012`` there, and nothing else is escaped."""
    return tuple(mapping for line in text.split(b"\n") if (mapping := parse_line(line)) is not None)


def of(pid: int) -> Iterator[Mapping]:
    """Yield the mappings of process `pid`, lowest address first, with true paths.

    A path that is ambiguous in maps (a backslash, `` (deleted)``) is asked for again through /proc/PID/map_files, which needs root;
    without it the path stays as shown.
    Raises `errors.ProcessGone` and `errors.InputDenied`.
    """
    root = ""
    text = reading.content(pid, "maps")
    if text:
        root = reading.root_for(pid)
    for mapping in parse(text):
        if mapping.inode and ("\\" in mapping.path or mapping.path.endswith(reading.DELETED)):
            yield _resolved(pid, mapping, root)
        else:
            yield mapping


def _resolved(pid: int, mapping: Mapping, root: str) -> Mapping:
    name = f"map_files/{mapping.start:x}-{mapping.end:x}"
    try:
        shown = reading.link(pid, name)
        with reading.of_process(pid):
            there = os.stat(f"/proc/{pid}/{name}")
    except (errors.ProcessGone, errors.InputDenied):
        path = mapping.path.removesuffix(reading.DELETED)
        return msgspec.structs.replace(mapping, path=path, deleted=path != mapping.path)
    path, deleted = reading.told_apart(shown, root, there.st_dev, there.st_ino)
    return msgspec.structs.replace(mapping, path=path, deleted=deleted)


def file_of(pid: int, mapping: Mapping) -> os.stat_result | None:
    """Return stat(2) of the file behind `mapping` of process `pid`, whatever its name leads to now; None when it is not mapped any more.

    Its device number is the one that stat(2) gives for the file elsewhere too; the one in maps differs on overlayfs and btrfs.
    Raises `errors.InputDenied` (needs root).
    """
    try:
        with reading.of_process(pid):
            return os.stat(f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}")
    except errors.ProcessGone:
        return None


def parse_usage(text: bytes) -> Usage:
    """Read the text of /proc/PID/smaps_rollup; all zero for a process without memory (a zombie, a kernel thread)."""
    found = reading.fields(text)

    def size(name: str) -> int:
        words = found.get(name, "0").split()
        return int(words[0]) * 1024

    return Usage(
        resident_bytes=size("Rss"),
        proportional_bytes=size("Pss"),
        private_dirty_bytes=size("Private_Dirty"),
        anonymous_bytes=size("Anonymous"),
        shared_memory_bytes=size("Pss_Shmem"),
        swapped_bytes=size("Swap"),
        locked_bytes=size("Locked"),
        huge_bytes=size("Private_Hugetlb") + size("Shared_Hugetlb"),
    )


def parse_policy(text: bytes) -> str:
    """Read the beginning of /proc/PID/numa_maps: the policy of the first mapping, as the kernel words it; empty for the default one."""
    words = text.partition(b"\n")[0].split(b" ")
    policy = words[1].decode("ascii", "replace") if len(words) > 1 else ""
    if policy in ("prefer", "weighted") and len(words) > 2:
        policy += f" {words[2].decode('ascii', 'replace')}"
    return "" if policy == "default" else policy


def memory_policy(pid: int) -> str:
    """Return by which policy process `pid` takes memory of NUMA nodes (``bind:0``); empty: the default one, or a kernel without.

    One of single mappings (mbind) is not seen: the kernel would have to walk through all of the memory. Raises `errors.InputDenied`.
    """
    try:
        # A short read shows the first mapping only, which is the program's.
        return parse_policy(reading.content(pid, "numa_maps", limit_bytes=_POLICY_BYTES))
    except errors.ProcessGone:
        return ""  # also: no such file


def usage(pid: int) -> Usage:
    """Return the memory that process `pid` takes. Raises `errors.ProcessGone` and `errors.InputDenied`."""
    try:
        return parse_usage(reading.content(pid, "smaps_rollup"))
    except errors.ProcessGone:
        # The kernel answers "no such process" for a zombie, too.
        if os.path.exists(f"/proc/{pid}/stat"):
            return parse_usage(b"")
        raise
