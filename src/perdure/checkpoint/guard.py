"""Whether a tree that was brought back for an ordinary user has open what that user had open, and no more. Called by `restore`.

CRIU opens every file of a tree by its path, as root. A user who could put a link in the place of a file, or of a folder on the way, would
get a descriptor of root's choosing power: to write to what only root may write. So two looks are taken. `look_before`, as the user: no
path leads through a link, or to where it did not lead before. `look_at`, at the moment when everything is open and no task has run yet:
each descriptor, folder and mapping is the thing of its path, and the user may open it so. Nothing can be exchanged after that one.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from perdure import errors
from perdure.base import acting, linkless, text
from perdure.base.proc import mappings, mounts, process
from perdure.checkpoint import of_process, views
from perdure.checkpoint.images import openfiles, paths
from perdure.checkpoint.images.paths import Opened
from perdure.checkpoint.preflight.codes import finding
from perdure.model.checkpoint import Owner
from perdure.model.finding import Finding

_KERNELS = frozenset({"proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "configfs", "securityfs", "bpf", "pstore", "binfmt_misc"})
"""File systems that ask who opened a file, not who uses it: what root opened for writing there stays root's power."""
_WRITTEN = "is the kernel's and was open for writing"
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_READ, _WRITE = 4, 2
_ASYNCHRONOUS = "/[aio]"
"""Memory that the kernel shares with a program; it has this in the place of a name."""


def look_before(images: Path, owner: Owner) -> tuple[Finding, ...]:
    """Return a problem for each path in the folder `images` that `owner` cannot follow without a link, and for each named Unix socket.

    A file that is missing is CRIU's to tell. Raises `errors.InputMissing` and `errors.InputFormat`.
    """
    # Where root alone decides what a name leads to there is nothing to fear; the init's own program lies so, too.
    # Which files of processes come back is told by `of_process`; here their numbers are those of others.
    names = [name for name in sorted(paths.Paths(images).names) if of_process.number(name) is None and can_change(name, owner)]
    with acting.as_owner(owner):
        walked = [(name, _walked(name)) for name in names]
    return (*(_elsewhere(name, problem) for name, problem in walked if problem), *unsafe(images, owner))


def unsafe(images: Path, owner: Owner) -> tuple[Finding, ...]:
    """Return a problem for each thing in the folder `images` that CRIU would make again in a way that `owner` could turn to more."""
    found = [
        finding("network-unix-named", text.printable(name), "is the name of a Unix socket, in a folder that the user can change", path=name)
        for name in paths.unix_names(images)
        if can_change(name, owner)
    ]
    for name in paths.linked(images):
        if can_change(os.path.dirname(name), owner):
            message = "has lost this name and lives on under another, in a folder that the user can change"
            found.append(finding("file-linked-changeable", text.printable(name), message, path=name))
    kinds = mounts.of(os.getpid())
    for one in openfiles.of(images):
        if not isinstance(one, openfiles.RegularFile) or of_process.number(one.name) is not None:
            continue
        if openfiles.is_written(one) and _is_kernels(one.name, kinds):
            found.append(finding("file-kernel-object", text.printable(one.name), _WRITTEN, path=one.name))
    if paths.has_fanotify(images):
        found.append(finding("file-kernel-object", "fanotify", "watches files; made again by root, it would see more than the user may"))
    return tuple(found)


def look_at(root: int, images: Path, owner: Owner) -> tuple[Finding, ...]:
    """Return a problem for each thing that the tree of the init `root` has open, works in or maps, and `owner` could not open now.

    The tree stands still before its first step. The init, which is root's, is left out. Raises `errors.ProcessGone`,
    `errors.InputMissing` and `errors.InputFormat`.
    """
    look = _Look(root, paths.Paths(images), owner)
    for pid in process.descendants(root):
        if not process.stat(pid).is_dead:
            look.at(pid)
    return tuple(look.found)


class _Look:
    def __init__(self, root: int, told: paths.Paths, owner: Owner) -> None:
        self._told = told
        self._owner = owner
        self._mounts = mounts.of(os.getpid())
        self._proc = _own_proc(root)
        self._own = {process.status(pid).inner_pid for pid in process.descendants(root)}
        self._allowed: set[tuple[int, int, int]] = set()
        self.found: list[Finding] = []

    def at(self, pid: int) -> None:
        inner = process.status(pid).inner_pid
        for opened in self._told.of(inner):
            self._one(f"/proc/{pid}/{opened.way}", opened)
        program, _ = process.executable(pid)
        if program not in self._told.names:
            self.found.append(_elsewhere(program, "is executed and was not at the checkpoint"))
        for mapping in mappings.of(pid):
            if mapping.is_file and not mapping.path.startswith(_ASYNCHRONOUS):
                needs = _READ | (_WRITE if mapping.is_shared_writable else 0)
                way = f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"
                if not mapping.deleted and mapping.path not in self._told.names:
                    self.found.append(_elsewhere(mapping.path, "is mapped and was not at the checkpoint"))
                elif not self._may(way, needs, is_code="x" in mapping.permissions):
                    self.found.append(_elsewhere(mapping.path, f"may not be mapped by user {self._owner.uid}"))

    def _one(self, way: str, opened: Opened) -> None:
        leads = os.readlink(way)
        name = opened.name
        problem = None
        if leads != name and not (opened.is_nameless and leads.endswith(" (deleted)")):
            problem = f"leads to {text.printable(leads)} now"
        elif not opened.is_nameless:
            problem = self._forbidden(way, opened)
        # A file of the user's own process was the user's to read, and is the same; whose it is to be is told a moment later.
        if problem is None and not opened.flags & os.O_PATH and of_process.number(name) is None:
            if opened.way in ("cwd", "root"):
                may = self._may_enter(way)
            else:
                needs = {os.O_RDONLY: _READ, os.O_WRONLY: _WRITE}.get(opened.flags & os.O_ACCMODE, _READ | _WRITE)
                may = self._may(way, needs, is_code=False)
            if not may:
                problem = f"may not be opened so by user {self._owner.uid}"
        if problem:
            self.found.append(_elsewhere(name, problem))

    def _forbidden(self, way: str, opened: Opened) -> str | None:
        """Return why what root opened by its name may not be handed to the user."""
        if not _is_kernels(opened.name, self._mounts):
            return None
        if opened.flags & os.O_ACCMODE:
            return _WRITTEN
        number = of_process.number(opened.name)
        if number is not None and (number not in self._own or os.stat(way).st_dev != self._proc):
            return "is of a process that is none of the user's"
        return None

    def _may(self, way: str, needs: int, *, is_code: bool) -> bool:
        """Tell whether the owner may open the very thing at `way`, a link below /proc, for `needs`."""
        held = os.open(way, os.O_PATH | os.O_CLOEXEC)
        try:
            there = os.fstat(held)
            key = (there.st_dev, there.st_ino, needs)
            if there.st_uid == self._owner.uid or key in self._allowed or (is_code and self._may_execute(there)):
                return True
            flags = {_READ: os.O_RDONLY, _WRITE: os.O_WRONLY}.get(needs, os.O_RDWR)
            if stat.S_ISDIR(there.st_mode):
                flags = os.O_RDONLY | os.O_DIRECTORY
            if self._opens(held, flags):
                self._allowed.add(key)
                return True
            return False
        finally:
            os.close(held)

    def _opens(self, held: int, flags: int) -> bool:
        with acting.as_owner(self._owner):
            try:
                descriptor = os.open(f"/proc/self/fd/{held}", flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            except OSError as error:
                # What else can be wrong, a FIFO without a reader, a program that runs, comes after the rights.
                return error.errno not in _DENIED
        os.close(descriptor)
        return True

    def _may_execute(self, there: os.stat_result) -> bool:
        if there.st_gid in {self._owner.gid, *self._owner.groups}:
            return bool(there.st_mode & stat.S_IXGRP)
        return bool(there.st_mode & stat.S_IXOTH)

    def _may_enter(self, way: str) -> bool:
        held = os.open(way, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.fstat(held).st_uid == self._owner.uid:
                return True
            with acting.as_owner(self._owner):
                try:
                    os.stat(".", dir_fd=held)
                except PermissionError:
                    return False
            return True
        finally:
            os.close(held)


def _walked(name: str) -> str | None:
    """Return what is wrong with the way to `name` for whom this thread acts."""
    try:
        with linkless.parent(name if name != "/" else "/.root") as (folder, last):
            there = linkless.status(folder, last)
    except errors.InputMissing:
        return None
    except errors.InputError as error:
        return str(error)
    if there is not None and stat.S_ISLNK(there.st_mode):
        return "is a link now"
    if there is not None and (stat.S_ISCHR(there.st_mode) or stat.S_ISBLK(there.st_mode)) and not name.startswith("/dev/"):
        return "is a device now"
    return None


def _is_kernels(name: str, kinds: tuple[mounts.Mount, ...]) -> bool:
    mount = mounts.covering(name, kinds)
    return mount is not None and mount.kind in _KERNELS


def _own_proc(root: int) -> int | None:
    """Return the device number of the /proc of the PID namespace whose first process is `root`, where its tree sees that one."""
    return os.stat(f"/proc/{root}/root/proc").st_dev if views.is_own(root) else None


def can_change(name: str, owner: Owner) -> bool:
    """Tell whether `owner` could change what the absolute `name` leads to: some folder on the way is not root's alone."""
    descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        parts = [part for part in name.split("/") if part]
        for part in parts[:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            is_changeable = _is_changeable(os.fstat(descriptor), os.fstat(below), owner)
            os.close(descriptor)
            descriptor = below
            if is_changeable:
                return True
        last = os.stat(parts[-1], dir_fd=descriptor, follow_symlinks=False) if parts else os.fstat(descriptor)
        return _is_changeable(os.fstat(descriptor), last, owner)
    except OSError:
        return True
    finally:
        os.close(descriptor)


def _is_changeable(folder: os.stat_result, entry: os.stat_result, owner: Owner) -> bool:
    """Tell whether `owner` could put something else in the place of `entry` in `folder`."""
    if folder.st_uid != 0:
        return True
    in_group = folder.st_gid in {owner.gid, *owner.groups} and bool(folder.st_mode & stat.S_IWGRP)
    may_write = in_group or bool(folder.st_mode & stat.S_IWOTH)
    # In a sticky folder names are removed by whom the file belongs to, or the folder.
    return may_write and not (folder.st_mode & stat.S_ISVTX and entry.st_uid == 0)


def _elsewhere(name: str, problem: str) -> Finding:
    return finding("restore-path-elsewhere", text.printable(name), problem, path=name)
