"""inotify and fanotify watches, and whether the kernel still finds what they watch. CRIU asks it the same way. Called by `scene`."""

from __future__ import annotations

import ctypes
import os
import re

import msgspec

from perdure.base import privileges
from perdure.base.proc.descriptors import Descriptor
from perdure.base.proc.mounts import Mount

_LINE = re.compile(
    r"(?:inotify wd:[0-9a-f]+ |fanotify )ino:([0-9a-f]+) sdev:([0-9a-f]+) "
    r".*fhandle-bytes:([0-9a-f]+) fhandle-type:([0-9a-f]+) f_handle:([0-9a-f]+)"
)
_MAX_HANDLE_BYTES = 128  # MAX_HANDLE_SZ
_MINOR_BITS = 20  # of the kernel's own device numbers


class Watch(msgspec.Struct, frozen=True):
    """One watched file or folder. `kind` is the type of its file system, empty when it is on no mount that is seen."""

    inode: int
    kind: str
    mount_point: str


def unreachable(descriptor: Descriptor, mounts: tuple[Mount, ...]) -> tuple[Watch, ...]:
    """Return the watches of `descriptor` whose file is not found by its handle on the mounts that its process sees.

    Only root may ask for that: for others there are none.
    """
    if not privileges.is_root() or descriptor.target not in ("anon_inode:inotify", "anon_inode:[fanotify]"):
        return ()
    found = []
    for line in descriptor.info.rest.split("\n"):
        row = _LINE.match(line)
        if row is None:
            continue
        inode, device, size, kind = (int(row[number], 16) for number in (1, 2, 3, 4))
        handle = bytes.fromhex(row[5]) if len(row[5]) % 2 == 0 else b""
        on = [mount for mount in mounts if mount.device == os.makedev(device >> _MINOR_BITS, device & ((1 << _MINOR_BITS) - 1))]
        if len(handle) != size or size > _MAX_HANDLE_BYTES or not any(_opens(mount.point, kind, handle) for mount in on):
            found.append(Watch(inode, on[0].kind if on else "", on[0].point if on else ""))
    return tuple(found)


def _opens(mount_point: str, kind: int, handle: bytes) -> bool:
    class Handle(ctypes.Structure):
        _fields_ = (("size", ctypes.c_uint), ("kind", ctypes.c_int), ("bytes", ctypes.c_ubyte * _MAX_HANDLE_BYTES))

    wanted = Handle(len(handle), kind, (ctypes.c_ubyte * _MAX_HANDLE_BYTES)(*handle))
    try:
        mount = os.open(mount_point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        opened = ctypes.CDLL(None).open_by_handle_at(mount, ctypes.byref(wanted), os.O_PATH | os.O_CLOEXEC)
        if opened < 0:
            return False
        os.close(opened)
        return True
    finally:
        os.close(mount)
