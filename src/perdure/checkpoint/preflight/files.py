"""Rules about open and mapped files: mounts, deleted ones, /proc, watches, file systems of other machines. Pure."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from perdure.base import units
from perdure.base.proc import mounts as all_mounts
from perdure.base.proc.descriptors import Descriptor
from perdure.base.proc.mounts import Mount
from perdure.checkpoint import carried, of_process
from perdure.checkpoint.outputs import rules
from perdure.checkpoint.preflight import about
from perdure.checkpoint.preflight.codes import finding
from perdure.checkpoint.preflight.plan import Plan
from perdure.checkpoint.preflight.scene import Member, Scene
from perdure.model.finding import Finding

_MEMORY_KINDS = frozenset({"tmpfs", "ramfs"})
"""File systems in memory: what of them has another name goes along and is linked again."""

REMOTE_KINDS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "afs", "glusterfs", "orangefs", "virtiofs"}
)
"""File systems whose content lies elsewhere; those of type ``fuse`` are too."""


def check(scene: Scene, plan: Plan) -> Iterator[Finding]:
    """Yield what is wrong with the files that `scene` has open or mapped."""
    by_id = {mount.id: mount for mount in scene.mounts}
    foreign = _foreign(scene)
    told: set[tuple[int, int]] = set()
    remote: dict[str, tuple[Mount, Member, str]] = {}
    for member in scene.members:
        for opened in member.descriptors:
            if not _is_file(member, opened):
                continue
            mount = by_id.get(opened.info.mount)
            if mount is None:
                if opened.info.mount:  # memory of memfd_create lies on no mount, and says 0
                    yield about.descriptor("file-mount-unknown", member, opened, f"is {opened.target}, which lies on no mount that is seen")
                continue
            yield from _opened(scene, plan, member, opened, mount)
            if mount.id in foreign:
                yield about.descriptor("file-mount-own", member, opened, f"is {opened.target}, on what was mounted at {mount.point}")
            if opened.deleted and opened.is_regular and (opened.device, opened.inode) not in told:
                told.add((opened.device, opened.inode))
                yield from _deleted(scene, plan, member, opened, mount)
            if is_remote(mount.kind):
                remote.setdefault(mount.point, (mount, member, opened.target))
        yield from _mapped(scene, plan, member, told, remote)
        yield from _on_foreign(scene, member, foreign)
    for mount, member, path in remote.values():
        yield finding(
            "file-remote", mount.point, f"{member.name} has {path} open, on {mount.kind} from {mount.source}", pid=member.pid, path=path
        )
    yield from _watches(scene)
    yield from _overwritten(scene, plan)


def _foreign(scene: Scene) -> frozenset[int]:
    """Return the numbers of the mounts that the tree has and who looks has not: no image holds them, and a restore does not make them."""
    if not scene.sees_own_proc:
        return frozenset()
    return frozenset(
        mount.id for mount in scene.mounts if mount.kind != "proc" and (mount.device, mount.root, mount.point) not in scene.own_mounts
    )


def _on_foreign(scene: Scene, member: Member, foreign: frozenset[int]) -> Iterator[Finding]:
    """Yield what `member` maps, or works in, on a mount that is only the tree's."""
    if not foreign:
        return
    places = {mapping.path: "maps" for mapping in member.mappings if mapping.is_file and not mapping.deleted}
    if member.directory and not member.directory_deleted:
        places[member.directory] = "works in"
    for path, what in places.items():
        mount = all_mounts.covering(path, scene.mounts)
        if mount is not None and mount.id in foreign:
            yield about.process("file-mount-own", member, f"{what} {path}, on what was mounted at {mount.point}", path=path)


def is_remote(kind: str) -> bool:
    """Tell whether a file system of type `kind` keeps its content elsewhere, or in another process."""
    return kind in REMOTE_KINDS or kind == "fuse" or kind.startswith("fuse.")


def is_hidden(mount: Mount, mounts: tuple[Mount, ...]) -> bool:
    """Tell whether no path leads to `mount`, because another of `mounts` lies on its root, or on a folder above its mount point."""
    by_id = {other.id: other for other in mounts}
    for _ in range(len(mounts)):
        for other in mounts:
            if other.id == mount.id:
                continue
            on_top = other.parent == mount.id and other.point == mount.point
            beside = other.parent == mount.parent and other.point != mount.point and mount.point.startswith(other.point.rstrip("/") + "/")
            if on_top or beside:
                return True
        above = by_id.get(mount.parent)
        if above is None or above is mount:
            return False
        # A mount that lies on a folder of a hidden one is hidden with it; one on its very root has become what is seen.
        if above.point == mount.point:
            return False
        mount = above
    return False


def _is_file(member: Member, opened: Descriptor) -> bool:
    return opened.target.startswith("/") and opened.number not in member.device_numbers and not stat.S_ISSOCK(opened.mode)


def _opened(scene: Scene, plan: Plan, member: Member, opened: Descriptor, mount: Mount) -> Iterator[Finding]:
    if is_hidden(mount, scene.mounts):
        yield about.descriptor("file-overmounted", member, opened, f"is {opened.target}, which a later mount hides")
    if mount.kind != "proc" or of_process.number(opened.target) is None:
        return
    living = {each.status.inner_pid for each in scene.members if not each.is_dead}
    why = of_process.why_not(opened.target, living, sees_own_proc=scene.sees_own_proc, owner=plan.owner, is_written=opened.is_writable)
    if why:
        yield about.descriptor("file-of-process", member, opened, f"is {opened.target}, {why}")


def _deleted(scene: Scene, plan: Plan, member: Member, opened: Descriptor, mount: Mount) -> Iterator[Finding]:
    told = scene.deleted.get((opened.device, opened.inode))
    if told is None:
        return
    if told.links and mount.kind not in _MEMORY_KINDS:
        yield about.descriptor("file-deleted-linked", member, opened, _linked(opened.target, told.links))
    elif not told.links and told.allocated_bytes > plan.ghost_limit_bytes:
        yield about.descriptor("file-deleted-large", member, opened, f"is {_too_large(opened.target, told.allocated_bytes, plan)}")


def _linked(path: str, links: int) -> str:
    names = "another name" if links == 1 else f"{links} other names"
    return f"{path} has lost this name and lives on under {names}"


def _too_large(path: str, size_bytes: int, plan: Plan) -> str:
    return f"{path}, which is deleted and takes {units.format_size(size_bytes)}, more than {units.format_size(plan.ghost_limit_bytes)}"


def _mapped(
    scene: Scene, plan: Plan, member: Member, told: set[tuple[int, int]], remote: dict[str, tuple[Mount, Member, str]]
) -> Iterator[Finding]:
    for mapping in member.mappings:
        if not mapping.is_file or mapping.path.startswith("/[aio]"):
            continue
        key = (mapping.device, mapping.inode)
        mount = all_mounts.covering(mapping.path, scene.mounts)
        if mapping.deleted and key not in told and key in scene.deleted:
            told.add(key)
            deleted = scene.deleted[key]
            if deleted.links and (mount is None or mount.kind not in _MEMORY_KINDS):
                yield about.process("file-deleted-linked", member, f"maps {_linked(mapping.path, deleted.links)}", path=mapping.path)
            elif not deleted.links and deleted.allocated_bytes > plan.ghost_limit_bytes:
                message = f"maps {_too_large(mapping.path, deleted.allocated_bytes, plan)}"
                yield about.process("file-deleted-large", member, message, path=mapping.path)
        elif not mapping.deleted and mount is not None and is_remote(mount.kind):
            remote.setdefault(mount.point, (mount, member, mapping.path))


def _watches(scene: Scene) -> Iterator[Finding]:
    by_pid = {member.pid: member for member in scene.members}
    for pid, fd, watch in scene.unreachable_watches:
        member = by_pid[pid]
        opened = next(opened for opened in member.descriptors if opened.number == fd)
        where = f"on {watch.mount_point} ({watch.kind})" if watch.kind else "on a mount that is not seen"
        yield about.descriptor(
            "file-watch", member, opened, f"watches inode {watch.inode} {where}, which the kernel does not find by its handle"
        )


class _Written:
    """A file that is written in place, by all who have it open for writing or mapped."""

    def __init__(self, path: str, weight_bytes: int) -> None:
        self.path = path
        self.weight_bytes = weight_bytes
        self.opened: list[tuple[Member, Descriptor]] = []
        self.mapped: list[Member] = []

    def candidate(self, key: int) -> rules.Candidate:
        return rules.Candidate(
            key=key,
            group=self.path,
            is_append_only=not self.mapped and all(opened.is_append for _, opened in self.opened),
            is_read_write=bool(self.mapped) or any(opened.info.flags & os.O_ACCMODE == os.O_RDWR for _, opened in self.opened),
            weight_bytes=self.weight_bytes,
            path=self.path,
        )

    def unsaved(self) -> Finding:
        size = units.format_size(self.weight_bytes)
        if self.opened:
            member, opened = self.opened[0]
            message = f"writes in {self.path} ({size}), which is too large to go along"
            return about.descriptor("file-overwrite-unsaved", member, opened, message)
        message = f"maps {self.path} ({size}) to write in it, which is too large to go along"
        return about.process("file-overwrite-unsaved", self.mapped[0], message, path=self.path)


def _overwritten(scene: Scene, plan: Plan) -> Iterator[Finding]:
    """Yield files that are written in place and that the checkpoint records without their content."""
    groups = [each for each in _written(scene) if not _goes_along(each.path, plan)]
    candidates = [each.candidate(number) for number, each in enumerate(groups)]
    chosen = rules.choose(candidates, rules.Limits())
    for candidate in candidates:
        if candidate.key not in chosen and not candidate.is_append_only:
            yield groups[candidate.key].unsaved()


def _written(scene: Scene) -> list[_Written]:
    """Return the files that are open for writing, or mapped so, and that do not go along as temporary ones."""
    found: dict[str, _Written] = {}
    for member in scene.members:
        for opened in member.descriptors:
            is_there = opened.is_regular and not opened.deleted and bool(opened.info.mount)
            if is_there and _is_file(member, opened) and opened.is_writable and not carried.is_carried(opened.target, written=True):
                weight_bytes = scene.allocated.get((opened.device, opened.inode), opened.size_bytes)
                found.setdefault(opened.target, _Written(opened.target, weight_bytes)).opened.append((member, opened))
    for member in scene.members:
        for mapping in member.mappings:
            key = (mapping.device, mapping.inode)
            if mapping.deleted or not mapping.is_file or not mapping.is_shared_writable or key not in scene.allocated:
                continue
            is_device = mapping.start in member.mapped_devices
            if not is_device and not carried.is_carried(mapping.path, written=mapping.path in found):
                found.setdefault(mapping.path, _Written(mapping.path, scene.allocated[key])).mapped.append(member)
    return list(found.values())


def _goes_along(path: str, plan: Plan) -> bool:
    return any(path == chosen or path.startswith(chosen.rstrip("/") + "/") for chosen in plan.outputs)
