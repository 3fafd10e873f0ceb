"""What is there: a tree of processes and what it is connected to, as `reading` found it. The rules of a save are pure functions of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.base.proc import descriptors as fds
from perdure.base.proc import mappings as maps
from perdure.base.proc import mounts as all_mounts
from perdure.base.proc import network, process
from perdure.checkpoint.preflight import links
from perdure.checkpoint.preflight.watches import Watch

CRIU_FOLDER = "proc.crtools"
"""What CRIU calls the folder that it makes in the first process's working directory, to see the namespace's own /proc."""


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
    memory_policy: str = ""
    """By which it takes memory of NUMA nodes, as the kernel words it; empty: the default one."""
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
    sees_own_proc: bool = False
    """The root has a mount namespace in which /proc is that of its PID namespace, and which otherwise is as ours."""
    own_mounts: frozenset[tuple[int, str, str]] = frozenset()
    """Device, root and point of the mounts of who looks."""
    mounts: tuple[all_mounts.Mount, ...] = ()
    """Those that the root sees."""
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
    allocated: Mapping[tuple[int, int], int] = {}
    """Bytes on disk of each regular file that is open for writing or mapped shared and writable, by device and inode as they are told of
    the descriptor, or of the mapping."""
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
