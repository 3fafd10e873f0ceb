"""Files that a workload opens, adds to and closes again: a checkpoint that does not meet them open does not know where they ended.

Called by the supervisor. The workload's mounts are its own (`views`), so that the kernel can be asked (fanotify(7)) to tell of each file
that is closed on them after it was open for writing, and of nobody else's. A file that was closed twice, and the second time holds what it
held and more, was added to. One that is written anew each time is another matter: whoever goes back does that again.

Best effort: what happens before the watch begins, or faster than it looks, is missed; where the kernel or a container forbids to ask,
nothing is known.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import hashlib
import os
import select
import signal
import stat
import struct
import threading
import time

import msgspec

from perdure import errors
from perdure.base import text
from perdure.base.proc import mounts
from perdure.checkpoint import views
from perdure.checkpoint.outputs import rules
from perdure.model.finding import Finding, Severity

CODE = "file-reopened"

_CLOEXEC, _NONBLOCK = 0x1, 0x2
_MARK_ADD, _MARK_MOUNT = 0x1, 0x10
_CLOSE_WRITE = 0x8
_EVENT = struct.Struct("=IBBHQii")
"""struct fanotify_event_metadata: length, version, reserved, its own length, mask, descriptor, PID."""
_READ_BYTES = 24 * 512
_READS = 1000
"""More than the kernel keeps events for, each of a file that cannot be opened."""
_PAUSE_S = 0.25
_LOOKED_AT = 200
"""Files that are looked at in each pause at most: a workload that writes thousands a second is not to cost a processor."""
_TAIL_BYTES = 4096
_LEAST_BYTES = 16
"""A shorter content may begin the next one by chance: a file that holds the number of a step."""
_MOST_FILES = 10_000
_NOT_FILES = frozenset(
    {"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "mqueue", "proc", "pstore"}
    | {"securityfs", "sysfs", "tracefs"}
)

_libc = ctypes.CDLL(None, use_errno=True)


class _Known(msgspec.Struct):
    path: str
    size_bytes: int
    digest: bytes
    is_added_to: bool = False


class Reopened:
    """Watches one workload from `watch` until `close`."""

    def __init__(self) -> None:
        self._known: collections.OrderedDict[tuple[int, int], _Known] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._leave: int | None = None

    def watch(self, pid: int) -> bool:
        """Begin with the tree whose first process is `pid`, and end what was watched before; False where it cannot be watched."""
        self.close()
        try:
            if not views.is_own(pid):
                return False
            descriptor = _asked(pid, [mount.point for mount in mounts.of(pid) if _is_watched(mount)])
        except (OSError, errors.PerdureError):
            return False
        left, self._leave = os.pipe2(os.O_CLOEXEC)
        threading.Thread(target=self._follow, args=(descriptor, left), name="reopened", daemon=True).start()
        return True

    def close(self) -> None:
        """End the watch. What was seen stays known."""
        if self._leave is not None:
            os.close(self._leave)
            self._leave = None

    def warnings(self, besides: frozenset[str] = frozenset(), included: tuple[str, ...] = ()) -> tuple[Finding, ...]:
        """Return a warning for each file that is added to, but for the paths `besides` and what lies in `included`."""
        with self._lock:
            paths = [known.path for known in self._known.values() if known.is_added_to]
        return tuple(
            rules.finding(
                CODE,
                Severity.WARNING,
                path,
                "is opened, added to and closed again, and no part of checkpoints: after a restore it holds twice what was added since",
                remedy=f"include it, or its folder: --outputs {text.printable(path)}",
            )
            for path in paths
            if path not in besides and not _lies_in(path, included) and os.path.lexists(path)
        )

    def _follow(self, descriptor: int, left: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        ready.register(left, select.POLLHUP)
        try:
            while not any(number == left for number, _ in ready.poll()):
                self._take(descriptor)
                time.sleep(_PAUSE_S)
        finally:
            os.close(descriptor)
            os.close(left)

    def _take(self, descriptor: int) -> None:
        """Take all that is to be told: events hold files, and the room of those that are deleted, until then."""
        left = _LOOKED_AT
        for _ in range(_READS):
            try:
                told = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                continue  # of one file that cannot be opened: it is told of no more
            for at in range(0, len(told), _EVENT.size):
                _, _, _, _, _, file, _ = _EVENT.unpack_from(told, at)
                if file < 0:
                    continue
                try:
                    if left > 0:
                        self._look(file)
                finally:
                    os.close(file)
                left -= 1

    def _look(self, file: int) -> None:
        with contextlib.suppress(OSError):
            there = os.fstat(file)
            if not stat.S_ISREG(there.st_mode) or not there.st_nlink:
                return
            key = (there.st_dev, there.st_ino)
            before = self._known.get(key)
            if before is not None and (before.is_added_to or before.size_bytes == there.st_size):
                return
            added_to = (
                before is not None and there.st_size > before.size_bytes >= _LEAST_BYTES and _tail(file, before.size_bytes) == before.digest
            )
            known = _Known(os.readlink(f"/proc/self/fd/{file}"), there.st_size, _tail(file, there.st_size), added_to)
            with self._lock:
                self._known[key] = known
                self._known.move_to_end(key)
                if len(self._known) > _MOST_FILES:
                    self._known.popitem(last=False)


def _is_watched(mount: mounts.Mount) -> bool:
    # The kernel opens each file for us that it tells of: what a user's own program answers for could keep us waiting for ever.
    is_users = mount.kind.partition(".")[0] in ("fuse", "fuseblk") and "user_id=0" not in mount.super_options
    return mount.kind not in _NOT_FILES and not is_users


def _asked(pid: int, points: list[str]) -> int:
    descriptor = _libc.fanotify_init(_CLOEXEC | _NONBLOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_LARGEFILE)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    marked = [
        _libc.fanotify_mark(
            descriptor,
            _MARK_ADD | _MARK_MOUNT,
            ctypes.c_uint64(_CLOSE_WRITE),
            -100,
            os.fsencode(f"/proc/{pid}/root{point}"),
        )
        for point in points
    ]
    if 0 not in marked:
        os.close(descriptor)
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(descriptor)


def _tail(file: int, size_bytes: int) -> bytes:
    begin = max(0, size_bytes - _TAIL_BYTES)
    return hashlib.blake2b(os.pread(file, size_bytes - begin, begin), digest_size=16).digest()


def _lies_in(path: str, included: tuple[str, ...]) -> bool:
    return any(path == one or path.startswith(one.rstrip("/") + "/") for one in included)
