"""A view of this machine in which nothing that is written stays, and without a network. Called by `supervisor.trial`, in its own process.

Every file system that is mounted appears at its place under an overlay whose upper layer lies in memory; those that the kernel makes up
(/proc, /sys, devices) appear as they are. Files and folders mounted one by one that cannot be overlaid are there for reading only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import stat
import struct
from pathlib import Path

from perdure import errors
from perdure.base.proc import mounts
from perdure.base.proc.mounts import Mount

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_MADE_UP = frozenset(
    {
        *("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "securityfs", "debugfs", "tracefs", "bpf", "hugetlbfs"),
        *("fusectl", "configfs", "pstore", "efivarfs", "binfmt_misc", "nsfs", "rpc_pipefs", "autofs", "selinuxfs", "fuse.lxcfs"),
    }
)

_libc = ctypes.CDLL(None, use_errno=True)


def enter(scratch: Path) -> None:
    """Move this process, which has one thread, into such a view. `scratch` is an empty private folder; a file system in memory covers it.

    Paths mean what they meant before. Raises `errors.EnvironmentUnfit` without the privileges, or where the kernel has no overlays.
    """
    try:
        _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET))
        _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
        before = mounts.of(os.getpid())
        _mount("tmpfs", str(scratch), "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0700")
        _cover(scratch, before)
        _pivot(scratch / "root")
        _raise_loopback()
    except OSError as error:
        raise errors.EnvironmentUnfit(
            f"cannot make a view of this machine to try in: {error.strerror}",
            hint="run this as root, on a kernel with overlay file systems",
        ) from error


def _cover(scratch: Path, before: tuple[Mount, ...]) -> None:
    for name in ("root", "lower", "layers"):
        (scratch / name).mkdir()
    # Relative paths, as options of a mount are parted by commas and colons, which a path may hold.
    os.chdir(scratch)
    visible = {mount.point: mount for mount in before}  # of those at one point the last is on top
    for number, point in enumerate(sorted(visible, key=lambda point: (point.count("/") if point != "/" else 0, point))):
        if _is_hidden(point, visible):
            continue
        target = "root" + (point if point != "/" else "")
        if visible[point].kind in _MADE_UP:
            _mount(point, target, None, _MS_BIND)
        elif not stat.S_ISDIR(os.stat(point).st_mode) or not _overlay(number, point, target):
            _mount(point, target, None, _MS_BIND)
            _mount(None, target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _is_hidden(point: str, visible: dict[str, Mount]) -> bool:
    """Tell whether what is mounted at `point` cannot be reached, since something was mounted above it later."""
    try:
        return os.stat(point).st_dev != visible[point].device and visible[point].kind not in {"btrfs", "overlay", *_MADE_UP}
    except OSError:
        return True


def _overlay(number: int, point: str, target: str) -> bool:
    lower, upper, work = f"lower/{number}", f"layers/{number}", f"layers/{number}.work"
    for folder in (lower, upper, work):
        os.mkdir(folder)
    _mount(point, lower, None, _MS_BIND)
    there = os.stat(lower)
    os.chmod(upper, stat.S_IMODE(there.st_mode))
    os.chown(upper, there.st_uid, there.st_gid)
    try:
        _mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")
    except OSError:
        return False
    return True


def _pivot(root: Path) -> None:
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise errors.EnvironmentUnfit(f"a trial has not been built for {platform.machine()}", hint="use an x86-64 or arm64 machine")
    os.chdir(root)
    _check(_libc.syscall(number, b".", b"."))
    _check(_libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def _raise_loopback() -> None:
    """Let addresses inside the machine work, and let sockets be bound to those that it has outside, where nobody hears them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
    for name in ("ipv4", "ipv6"):
        path = Path("/proc/sys/net", name, "ip_nonlocal_bind")
        if path.exists():
            path.write_text("1", encoding="ascii")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    _check(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
