"""What is there: one reading of a tree of processes and of what it is connected to. The rules of a save are pure functions of it.

Nothing is stopped for it: processes may come, change and end meanwhile. Who vanishes is left out; who may not be looked into is named.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterable, Mapping

import msgspec

from perdure import errors
from perdure.base.proc import descriptors as fds
from perdure.base.proc import mappings as maps
from perdure.base.proc import mounts as all_mounts
from perdure.base.proc import network, process
from perdure.checkpoint.preflight import links
from perdure.checkpoint.preflight.watches import Watch, unreachable

_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_VM, _KCMP_FILES, _KCMP_FS = 1, 2, 3

CRIU_FOLDER = "proc.crtools"
"""What CRIU calls the folder that it makes in the first process's working directory, to see the namespace's own /proc."""

_THREAD_NAMESPACES = ("mnt", "net", "user", "uts", "ipc", "cgroup", "time")


class Thread(msgspec.Struct, frozen=True):
    """What a thread may have apart from its process."""

    tid: int
    policy: int
    """Scheduling policy, as in sched(7)."""
    own_files: bool
    own_directory: bool
    own_namespaces: tuple[str, ...]


class Deleted(msgspec.Struct, frozen=True):
    """A file that has lost the name it was opened by; `links` are those that it still has."""

    allocated_bytes: int
    links: int


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the tree. PIDs are the host's."""

    pid: int
    stat: process.Stat
    status: process.Status
    namespaces: Mapping[str, int]
    threads: tuple[Thread, ...] = ()
    descriptors: tuple[fds.Descriptor, ...] = ()
    device_numbers: Mapping[int, int] = {}
    """Of each descriptor that is a device: its device number."""
    protocols: Mapping[int, str] = {}
    """Of each descriptor that is a socket: the kernel's name of its protocol, such as ``TCP``."""
    mappings: tuple[maps.Mapping, ...] = ()
    mapped_devices: frozenset[int] = frozenset()
    """Start addresses of mappings of devices."""
    usage: maps.Usage
    directory: str = ""
    directory_deleted: bool = False
    directory_writable: bool = True
    directory_taken: bool = False
    """The folder that CRIU makes there for an instant exists."""
    frozen: bool = False
    shares_memory_with: int | None = None
    """Another process, not a thread, that lives in the same memory."""

    @property
    def name(self) -> str:
        """How findings call it."""
        return f"pid {self.pid} ({self.stat.command})"

    @property
    def is_dead(self) -> bool:
        """Tell whether it has ended and waits to be asked."""
        return self.stat.is_dead and self.stat.threads <= 1


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """A tree and its surroundings."""

    root: int
    members: tuple[Member, ...]
    own_namespaces: Mapping[str, int]
    """Namespaces of who looks."""
    mounts: tuple[all_mounts.Mount, ...] = ()
    inet: tuple[network.Inet, ...] = ()
    unix: Mapping[int, network.Unix] = {}
    unix_peers: Mapping[int, int] = {}
    """Of each connected Unix socket the inode of the other end, as far as the kernel tells."""
    netlink_pending: frozenset[int] = frozenset()
    """Inodes of netlink sockets that hold unread messages."""
    corked: frozenset[int] = frozenset()
    """Inodes of UDP sockets with data that waits to be sent."""
    outside_sessions: frozenset[int] = frozenset()
    """Sessions of members whose leader lives, and is no member."""
    outside: Mapping[str, tuple[links.Holder, ...]] = {}
    """Who, outside the tree, has an end of what the tree has open: ``pipe:[5]``, ``socket:[7]``."""
    deleted: Mapping[tuple[int, int], Deleted] = {}
    """Each file that has lost the name it was opened by, by device and inode."""
    unreachable_watches: tuple[tuple[int, int, Watch], ...] = ()
    """Process, descriptor and watch, of watches whose file the kernel does not find by its handle."""
    unread: tuple[tuple[int, str], ...] = ()
    """Processes that may not be looked into, and why."""

    @property
    def pids(self) -> frozenset[int]:
        """PIDs of all members."""
        return frozenset(member.pid for member in self.members)

    @property
    def first(self) -> Member:
        """The root process."""
        return next(member for member in self.members if member.pid == self.root)

    @property
    def has_own_pid_namespace(self) -> bool:
        """Tell whether the root is the init of a PID namespace that is not that of who looks."""
        return self.first.namespaces.get("pid") != self.own_namespaces.get("pid") and self.first.status.inner_pid == 1

    def moved_since(self, before: Scene) -> frozenset[int]:
        """Return the PIDs of members that have run since the earlier scene `before`."""
        then = {member.pid: member for member in before.members}
        return frozenset(
            member.pid for member in self.members if member.pid not in then or _progress(member) != _progress(then[member.pid])
        )


def _progress(member: Member) -> tuple[int, int, int]:
    return member.stat.ticks, member.status.voluntary_switches, member.status.involuntary_switches


def pids_of(root: int) -> tuple[int, ...]:
    """Return the PIDs of the tree of `root`, itself first: its descendants, and all of its PID namespace where it is that one's init.

    Raises `errors.ProcessGone` when `root` is gone.
    """
    found = [root, *process.descendants(root)]
    space = process.namespaces(root).get("pid")
    if process.status(root).inner_pid == 1 and space != process.namespaces(os.getpid()).get("pid"):
        for pid in process.pids():
            with contextlib.suppress(errors.ProcessGone, errors.InputDenied):
                if pid not in found and process.namespaces(pid).get("pid") == space:
                    found.append(pid)
    return tuple(found)


def read(root: int) -> Scene:
    """Read the tree of process `root` and its surroundings.

    Raises `errors.ProcessGone` when `root` is gone, `errors.InputDenied` when it may not be looked into.
    """
    members: list[Member] = []
    unread: list[tuple[int, str]] = []
    for pid in pids_of(root):
        try:
            members.append(_member(pid))
        except errors.ProcessGone:
            if pid == root:
                raise
        except errors.InputDenied as error:
            if pid == root:
                raise
            unread.append((pid, str(error)))
    if members[0].is_dead:
        raise errors.ProcessGone(f"process {root} has ended")
    _tell_shared_memory(members)
    inside = frozenset(member.pid for member in members)
    seen = process.namespaces(root)
    own = process.namespaces(os.getpid())
    peers = links.unix_peers() if seen.get("net") == own.get("net") else {}
    visible = all_mounts.of(root)
    return Scene(
        root=root,
        members=tuple(members),
        own_namespaces=own,
        mounts=visible,
        inet=network.inet(root),
        unix=network.unix(root),
        unix_peers=peers,
        netlink_pending=links.pending_netlink(root),
        corked=links.corked_datagrams(root),
        outside_sessions=frozenset(member.stat.session for member in members if os.path.exists(f"/proc/{member.stat.session}")) - inside,
        outside=links.holders_outside(inside, _other_ends(members, peers)),
        deleted=_deleted(members),
        unreachable_watches=tuple(
            (member.pid, descriptor.number, watch)
            for member in members
            for descriptor in member.descriptors
            for watch in unreachable(descriptor, visible)
        ),
        unread=tuple(unread),
    )


def _member(pid: int) -> Member:
    stat = process.stat(pid)
    status = process.status(pid)
    if stat.is_dead and stat.threads <= 1:
        return Member(pid=pid, stat=stat, status=status, namespaces=process.namespaces(pid), usage=maps.parse_usage(b""))
    opened = tuple(fds.of(pid))
    mapped = tuple(maps.of(pid))
    devices, protocols = _of_descriptors(pid, opened)
    directory, deleted, writable, taken = "", False, True, False
    with contextlib.suppress(errors.ProcessGone):
        directory, deleted = process.working_directory(pid)
        writable = not deleted and _can_make_folder(pid)
        taken = os.path.lexists(f"/proc/{pid}/cwd/{CRIU_FOLDER}")
    return Member(
        pid=pid,
        stat=stat,
        status=status,
        namespaces=process.namespaces(pid),
        threads=tuple(_threads(pid)),
        descriptors=opened,
        device_numbers=devices,
        protocols=protocols,
        mappings=mapped,
        mapped_devices=frozenset(_mapped_devices(pid, mapped)),
        usage=maps.usage(pid),
        directory=directory,
        directory_deleted=deleted,
        directory_writable=writable,
        directory_taken=taken,
        frozen=_is_frozen(pid),
    )


def _of_descriptors(pid: int, opened: Iterable[fds.Descriptor]) -> tuple[dict[int, int], dict[int, str]]:
    devices: dict[int, int] = {}
    protocols: dict[int, str] = {}
    for descriptor in opened:
        path = f"/proc/{pid}/fd/{descriptor.number}"
        with contextlib.suppress(OSError):
            if links.is_device(descriptor.mode):
                devices[descriptor.number] = os.stat(path).st_rdev
            elif descriptor.target.startswith("socket:"):
                protocols[descriptor.number] = os.getxattr(path, "system.sockprotoname").rstrip(b"\0").decode("ascii", "replace")
    return devices, protocols


def _mapped_devices(pid: int, mapped: Iterable[maps.Mapping]) -> Iterable[int]:
    for mapping in mapped:
        if mapping.path.startswith(("/dev/", "/sys/")) and not mapping.path.startswith(("/dev/zero", "/dev/shm/")):  # noqa: S108
            there = _file_of(pid, mapping)
            if there is not None and (links.is_device(there.st_mode) or mapping.path.startswith("/sys/")):
                yield mapping.start


def _file_of(pid: int, mapping: maps.Mapping) -> os.stat_result | None:
    """Return stat(2) of a mapped file; None without root, whom alone the kernel tells."""
    try:
        return maps.file_of(pid, mapping)
    except errors.InputDenied:
        return None


def _threads(pid: int) -> Iterable[Thread]:
    for tid in process.threads(pid):
        if tid == pid:
            yield Thread(tid, _policy(tid), own_files=False, own_directory=False, own_namespaces=())
            continue
        own = []
        for kind in _THREAD_NAMESPACES:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/task/{tid}/ns/{kind}") != os.readlink(f"/proc/{pid}/ns/{kind}"):
                    own.append(kind)
        yield Thread(
            tid,
            _policy(tid),
            own_files=_differ(pid, tid, _KCMP_FILES),
            own_directory=_differ(pid, tid, _KCMP_FS),
            own_namespaces=tuple(own),
        )


def _policy(tid: int) -> int:
    try:
        return os.sched_getscheduler(tid) & ~os.SCHED_RESET_ON_FORK
    except OSError:
        return os.SCHED_OTHER


def _kcmp(first: int, second: int, kind: int) -> int | None:
    """Compare what two tasks have of one kind: 0 is the same thing, None: the kernel does not tell."""
    number = _KCMP.get(platform.machine())
    if number is None:
        return None
    answer = ctypes.CDLL(None).syscall(number, first, second, kind, 0, 0)
    return int(answer) if answer >= 0 else None


def _differ(first: int, second: int, kind: int) -> bool:
    answer = _kcmp(first, second, kind)
    return answer is not None and answer != 0


def _tell_shared_memory(members: list[Member]) -> None:
    """Mark those who share their memory with their parent."""
    known = {member.pid for member in members}
    for number, member in enumerate(members):
        parent = member.stat.parent
        if parent in known and not member.is_dead and _kcmp(member.pid, parent, _KCMP_VM) == 0:
            members[number] = msgspec.structs.replace(member, shares_memory_with=parent)


def _can_make_folder(pid: int) -> bool:
    """Tell whether root can make a folder in the working directory of `pid`: not where it is read-only or of /proc, nor where an NFS
    server takes root for nobody.
    """
    try:
        there = os.statvfs(f"/proc/{pid}/cwd")
    except OSError:
        return True
    return bool(there.f_blocks or there.f_files) and os.access(f"/proc/{pid}/cwd", os.W_OK | os.X_OK)


def _is_frozen(pid: int) -> bool:
    """Tell whether a cgroup of `pid`, of either version, is frozen."""
    for hierarchy, path in process.cgroups(pid).items():
        controllers = hierarchy.split(",")
        places = (
            [f"/sys/fs/cgroup/freezer{path}/freezer.state"]
            if "freezer" in controllers
            else [f"/sys/fs/cgroup{path}/cgroup.events", f"/sys/fs/cgroup/unified{path}/cgroup.events"]
            if not hierarchy
            else []
        )
        for place in places:
            try:
                with open(place, "rb") as handle:
                    said = handle.read(4096)
            except OSError:
                continue
            if said.startswith((b"FROZEN", b"FREEZING")) or b"frozen 1" in said:
                return True
    return False


def _other_ends(members: Iterable[Member], peers: Mapping[int, int]) -> frozenset[str]:
    """Return what other processes could have the other end of: the tree's pipes, and the peers of its Unix sockets."""
    found = set()
    for member in members:
        for descriptor in member.descriptors:
            if descriptor.target.startswith("pipe:"):
                found.add(descriptor.target)
            elif descriptor.target.startswith("socket:") and descriptor.inode in peers:
                found.add(f"socket:[{peers[descriptor.inode]}]")
    return frozenset(found)


def _deleted(members: Iterable[Member]) -> dict[tuple[int, int], Deleted]:
    found: dict[tuple[int, int], Deleted] = {}
    for member in members:
        for descriptor in member.descriptors:
            if descriptor.deleted and descriptor.is_regular:
                with contextlib.suppress(OSError):
                    there = os.stat(f"/proc/{member.pid}/fd/{descriptor.number}")
                    found[descriptor.device, descriptor.inode] = Deleted(there.st_blocks * 512, there.st_nlink)
        for mapping in member.mappings:
            if mapping.deleted and mapping.is_file:
                mapped = _file_of(member.pid, mapping)
                if mapped is not None:
                    told = Deleted(mapped.st_blocks * 512, mapped.st_nlink)
                    # maps and stat(2) number a file differently on btrfs and overlay.
                    found[mapped.st_dev, mapped.st_ino] = found[mapping.device, mapping.inode] = told
    return found
