"""Files that a tree holds under a name that is gone while another name of theirs lives on. Called by `dump` and `restore`.

A semaphore of multiprocessing is such a file: one process maps it under the name it was made with, others under the one it was given.
CRIU makes a hard link beside it (``link_remap.N``) and wants it there at the restore, as the same file that the living name leads to: a
copy would be another semaphore. It removes the link when the tree runs on, so that it has to be made again. The content of those in
memory goes along, since a reboot empties /dev/shm, and since the tree that ran on has changed it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import acting
from perdure.base.proc import mounts
from perdure.checkpoint.images import openfiles
from perdure.model.checkpoint import Owner

FILE = "perdure-links.json"
"""Where the links of a dump are listed, beside CRIU's images."""

_CONTENT = "perdure-link-"
_PREFIX = "link_remap."
_MAX_BYTES = 16 << 20
_IN_MEMORY = ("tmpfs", "ramfs")
_PATIENCE_S = 20.0
_PAUSE_S = 0.1


class Link(msgspec.Struct, frozen=True):
    """A link that CRIU wants at a restore."""

    path: str
    names: tuple[str, ...]
    """Living names of the same file in the same folder."""
    mode: int
    uid: int
    gid: int
    content: str | None
    """Name of its content among the images; None: the file lies on a disk, and is there or is not."""


def keep(images: Path, owner: Owner | None = None) -> tuple[Link, ...]:
    """List the links that the dump in the folder `images` rests on, with what is needed to make them again; returns them.

    `owner` is whose workload it is: then nothing is read that this user may not read. Called while the tree stands still and the links are
    there. Raises `errors.CheckpointFailed`, `errors.InputFormat`, `OSError`.
    """
    found: list[Link] = []
    for path in sorted({opened.name for opened in openfiles.of(images) if isinstance(opened, openfiles.RegularFile)}):
        if os.path.basename(path).startswith(_PREFIX):
            found.append(_describe(path, images, len(found), owner))
    if found:
        (images / FILE).write_bytes(msgspec.json.encode(found))
    return tuple(found)


def _describe(path: str, images: Path, number: int, owner: Owner | None) -> Link:
    with acting.as_owner(owner), _folder(path) as root:
        there = os.stat(os.path.basename(path), dir_fd=root, follow_symlinks=False)
        names = []
        for name in sorted(os.listdir(root)):
            with contextlib.suppress(FileNotFoundError):
                other = os.stat(name, dir_fd=root, follow_symlinks=False)
                if (other.st_dev, other.st_ino) == (there.st_dev, there.st_ino) and not name.startswith(_PREFIX):
                    names.append(name)
        content = None
        if _is_in_memory(path):
            content = f"{_CONTENT}{number}"
            descriptor = os.open(os.path.basename(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
            with open(descriptor, "rb") as source, acting.as_self(), open(images / content, "xb") as target:
                shutil.copyfileobj(source, target)
    return Link(path, tuple(names), stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid, content)


def put_back(images: Path, owner: Owner | None = None) -> tuple[Link, ...]:
    """Make the links again that the images in the folder `images` rest on, with the content of the checkpoint; returns them.

    `owner` is whose workload it is: then all is done with this user's rights. Raises `errors.RestoreFailed` when the file itself is gone,
    or a stranger's lies there.
    """
    links = _listed(images)
    made: list[Link] = []
    try:
        with acting.as_owner(owner):
            for link in links:
                _put_back_patiently(link, images)
                made.append(link)
    except BaseException:
        remove(tuple(made), owner)
        raise
    return links


def remove(links: tuple[Link, ...], owner: Owner | None = None) -> None:
    """Remove the links of a restore that failed; one that succeeded has done so itself."""
    with acting.as_owner(owner):
        for link in links:
            with contextlib.suppress(OSError), _folder(link.path) as root:
                os.unlink(os.path.basename(link.path), dir_fd=root)


def _listed(images: Path) -> tuple[Link, ...]:
    try:
        descriptor = os.open(images / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ()
    with open(descriptor, "rb") as handle:
        try:
            return msgspec.json.decode(handle.read(_MAX_BYTES), type=tuple[Link, ...])
        except msgspec.DecodeError as error:
            raise errors.InputFormat(f"the checkpoint's list of links cannot be read: {error}") from error


def _put_back_patiently(link: Link, images: Path) -> None:
    """Make a link; where another workload, that is saved or brought back at this instant, has one of its name, a little later."""
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            _put_back(link, images)
        except FileExistsError:
            if time.monotonic() > end_s:
                raise errors.RestoreFailed(f"another file lies at {link.path} or beside it", hint="try again, or remove it") from None
            time.sleep(_PAUSE_S)
        else:
            return


def _put_back(link: Link, images: Path) -> None:
    name = os.path.basename(link.path)
    if not _is_sound(link):
        raise errors.InputFormat(f"the checkpoint's list of links names {link.path!r}, which is none")
    try:
        with _folder(link.path) as root:
            living = _living(link, root)
            if living is None:
                _create(link, root, images)
                living = link.names[0] if link.names else name
            else:
                _refill(link, root, images, living)
            for other in (*link.names, name):
                if other != living and not _is_same(root, living, other):
                    os.link(living, other, src_dir_fd=root, dst_dir_fd=root, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        raise errors.RestoreFailed(f"cannot bring back {link.path}: {error.strerror}", hint="see perdure check --restore") from error


def _is_sound(link: Link) -> bool:
    is_link = link.path.startswith("/") and os.path.basename(link.path).startswith(_PREFIX)
    has_content = link.content is None or (link.content.startswith(_CONTENT) and "/" not in link.content)
    return is_link and has_content and not any("/" in name for name in link.names)


def _living(link: Link, root: int) -> str | None:
    """Return a name under which the file is there."""
    for name in (*link.names, os.path.basename(link.path)):
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(name, dir_fd=root, follow_symlinks=False)
            if not stat.S_ISREG(there.st_mode) or there.st_uid != link.uid:
                folder = os.path.dirname(link.path)
                raise errors.RestoreFailed(f"{folder}/{name} is not the checkpoint's file", hint="move it away")
            return name
    return None


def _create(link: Link, root: int, images: Path) -> None:
    if link.content is None:
        names = ", ".join(link.names) or "no name that is known"
        raise errors.RestoreFailed(
            f"a file that the workload has open is gone from {os.path.dirname(link.path)} ({names})", hint="put it back, or go back further"
        )
    name = link.names[0] if link.names else os.path.basename(link.path)
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root)
    with open(descriptor, "wb") as target:
        os.fchown(descriptor, link.uid, link.gid)
        os.fchmod(descriptor, link.mode)
        _copy(images / link.content, target.fileno())


def _refill(link: Link, root: int, images: Path, name: str) -> None:
    if link.content is None:
        return
    descriptor = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    with open(descriptor, "wb"):
        os.ftruncate(descriptor, 0)
        _copy(images / link.content, descriptor)


def _copy(source: Path, target: int) -> None:
    with acting.as_self(), open(source, "rb") as handle, open(os.dup(target), "wb") as sink:
        shutil.copyfileobj(handle, sink)


def _is_same(root: int, living: str, other: str) -> bool:
    """Tell whether `other` is there as another name of `living`; a file of its own under that name is told when the link is made."""
    first = os.stat(living, dir_fd=root, follow_symlinks=False)
    with contextlib.suppress(FileNotFoundError):
        second = os.stat(other, dir_fd=root, follow_symlinks=False)
        return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
    return False


def _is_in_memory(path: str) -> bool:
    mount = mounts.covering(os.path.dirname(path), mounts.of(os.getpid()))
    return mount is not None and mount.kind in _IN_MEMORY


@contextlib.contextmanager
def _folder(path: str) -> Iterator[int]:
    root = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield root
    finally:
        os.close(root)
