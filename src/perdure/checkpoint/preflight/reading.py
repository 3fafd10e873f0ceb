"""Read a tree of processes and what it is connected to into a `Scene`. Called by `save`.

Nothing is stopped for it: processes may come, change and end meanwhile. Who vanishes is left out; who may not be looked into is named.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

from perdure import errors
from perdure.base.proc import descriptors as fds
from perdure.base.proc import mappings as maps
from perdure.base.proc import mounts as all_mounts
from perdure.base.proc import network, process
from perdure.checkpoint import views
from perdure.checkpoint.outputs import copying
from perdure.checkpoint.preflight import links, tasks
from perdure.checkpoint.preflight.scene import CRIU_FOLDER, Deleted, Member, Scene
from perdure.checkpoint.preflight.watches import unreachable


def pids_of(root: int) -> tuple[int, ...]:
    """Return the PIDs of the tree of `root`, itself first: its descendants, and all of its PID namespace where it is that one's init.

    Raises `errors.ProcessGone` when `root` is gone.
    """
    found = [root, *process.descendants(root)]
    space = process.namespaces(root).get("pid")
    # Where CRIU works inside, it is no descendant, nor is what it starts.
    if process.status(root).inner_pid == 1 and not views.is_own(root) and space != process.namespaces(os.getpid()).get("pid"):
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
    tasks.tell_shared_memory(members)
    inside = frozenset(member.pid for member in members)
    seen = process.namespaces(root)
    own = process.namespaces(os.getpid())
    peers = links.unix_peers() if seen.get("net") == own.get("net") else {}
    visible = all_mounts.of(root)
    return Scene(
        root=root,
        members=tuple(members),
        own_namespaces=own,
        sees_own_proc=views.is_own(root),
        own_mounts=frozenset((mount.device, mount.root, mount.point) for mount in all_mounts.of(os.getpid())),
        mounts=visible,
        inet=network.inet(root),
        unix=network.unix(root),
        unix_peers=peers,
        netlink_pending=links.pending_netlink(root),
        corked=links.corked_datagrams(root),
        outside_sessions=frozenset(member.stat.session for member in members if os.path.exists(f"/proc/{member.stat.session}")) - inside,
        outside=links.holders_outside(inside, _other_ends(members, peers)),
        deleted=_deleted(members),
        allocated=_allocated(members),
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
        writable = not deleted and tasks.can_make_folder(pid)
        taken = os.path.lexists(f"/proc/{pid}/cwd/{CRIU_FOLDER}")
    return Member(
        pid=pid,
        stat=stat,
        status=status,
        namespaces=process.namespaces(pid),
        threads=tuple(tasks.threads(pid)),
        descriptors=opened,
        device_numbers=devices,
        protocols=protocols,
        mappings=mapped,
        mapped_devices=frozenset(_mapped_devices(pid, mapped)),
        usage=maps.usage(pid),
        memory_policy=maps.memory_policy(pid),
        directory=directory,
        directory_deleted=deleted,
        directory_writable=writable,
        directory_taken=taken,
        frozen=tasks.is_frozen(pid),
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


def _allocated(members: Iterable[Member]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for member in members:
        for descriptor in member.descriptors:
            if descriptor.is_regular and descriptor.is_writable:
                with contextlib.suppress(OSError):
                    there = os.stat(f"/proc/{member.pid}/fd/{descriptor.number}")
                    found[descriptor.device, descriptor.inode] = copying.allocated_bytes(there)
        for mapping in member.mappings:
            if mapping.is_file and mapping.is_shared_writable and mapping.start not in member.mapped_devices:
                mapped = _file_of(member.pid, mapping)
                if mapped is not None:
                    found[mapping.device, mapping.inode] = copying.allocated_bytes(mapped)
    return found
