"""Make and unmake one path of an installation. Called by `install` and `uninstall`.

Both can be cut off at any instant and done again: a file appears whole, by a rename from a name that the manifest's entry implies, and what
is unmade is only what is still as it was made.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from pathlib import Path

from perdure import errors
from perdure.slurm import policy
from perdure.slurm.manifest import KEPT, NEW, OLD, Entry

_REPOSITORY = "perdure.json"
"""A folder with this file is a store of checkpoints."""


def digest(path: str) -> str | None:
    """Return the SHA-256 of the regular file `path`; None when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def make(entry: Entry, content: bytes | None, *, was: Entry | None) -> bool:
    """Make what `entry` says, with `content` for a file, and tell whether anything changed.

    `was` is the entry of an installation before. Raises `errors.OutputError`.
    """
    try:
        match entry.kind:
            case "folder" | "store":
                return _make_folder(entry)
            case "file":
                return _make_file(entry, content or b"", was)
            case "link":
                return _make_link(entry)
            case "line":
                return _make_line(entry)
            case "cache" | "grown":
                return False
    except OSError as error:
        raise errors.OutputError(f"cannot make {entry.path}: {error.strerror}", hint="free some space, or look at its folder") from error


def _make_folder(entry: Entry) -> bool:
    try:
        os.mkdir(entry.path, entry.mode)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(entry.path).st_mode):
            raise
        return False
    os.chmod(entry.path, entry.mode)  # mkdir takes the umask off
    return True


def _make_file(entry: Entry, content: bytes, was: Entry | None) -> bool:
    present = digest(entry.path)
    if present == entry.sha256:
        if stat.S_IMODE(os.lstat(entry.path).st_mode) == entry.mode:
            return False
    elif present is not None and present == entry.before and was is None:
        os.rename(entry.path, entry.path + OLD)
    elif entry.config and present is not None and (was is None or present != was.sha256):
        return False  # the admin's
    temporary = entry.path + NEW
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as handle:
        handle.write(content)
        os.fchmod(descriptor, entry.mode)
    os.rename(temporary, entry.path)
    return True


def _make_link(entry: Entry) -> bool:
    with contextlib.suppress(OSError):
        if os.readlink(entry.path) == entry.target:
            return False
    temporary = entry.path + NEW
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(entry.target, temporary)
    os.rename(temporary, entry.path)
    return True


def _make_line(entry: Entry) -> bool:
    if entry.text.strip() in Path(entry.path).read_text("utf-8", "surrogateescape").splitlines():
        return False
    # One write at the end: the file keeps its number, owner, mode and lists of access.
    descriptor = os.open(entry.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(descriptor, entry.text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def unmake(entry: Entry) -> str:
    """Take away what `entry` says, where it is still as it was made; return what a person should know, or an empty text.

    Raises `errors.OutputError` for a disk or folder that refuses.
    """
    try:
        match entry.kind:
            case "folder" | "store":
                return _unmake_folder(entry.path)
            case "file":
                return _unmake_file(entry)
            case "link":
                return _unmake_link(entry)
            case "line":
                return _unmake_line(entry)
            case "cache":
                return _unmake_cache(entry.path)
            case "grown":
                return _unmake_grown(entry.path)
    except OSError as error:
        raise errors.OutputError(f"cannot remove {entry.path}: {error.strerror}", hint="uninstall again when it can be") from error


def _unmake_folder(path: str) -> str:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY):
            raise
        names = sorted(os.listdir(path))[:3] if os.path.isdir(path) else []
        return f"{path} stays: it holds {', '.join(names)}" if names else f"{path} stays"
    return ""


def _unmake_file(entry: Entry) -> str:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(entry.path + NEW)
    said = ""
    present = digest(entry.path)
    if present is not None and present != entry.before:
        if present == entry.sha256 or (entry.derived and _is_derived(entry.path)):
            os.unlink(entry.path)
        elif entry.config:
            os.rename(entry.path, entry.path + KEPT)
            said = f"{entry.path} was changed: it is kept as {entry.path}{KEPT}"
        else:
            return f"{entry.path} stays: it was changed since it was installed"
    if os.path.lexists(entry.path + OLD) and not os.path.lexists(entry.path):
        os.rename(entry.path + OLD, entry.path)
    return said


def _is_derived(path: str) -> bool:
    """Tell whether `path` is a file of the shim, made by `perdure slurm policy apply` since."""
    try:
        policy.parse_shim(Path(path).read_bytes())
    except (errors.InputFormat, OSError):
        return False
    return True


def _unmake_link(entry: Entry) -> str:
    for path in (entry.path + NEW, entry.path):
        try:
            target = os.readlink(path)
        except FileNotFoundError:
            continue
        except OSError:
            return f"{path} stays: it is no link any more"
        if target != entry.target:
            return f"{path} stays: it leads to {target} now"
        os.unlink(path)
    return ""


def _unmake_line(entry: Entry) -> str:
    try:
        content = Path(entry.path).read_bytes()
    except FileNotFoundError:
        return ""
    added = entry.text.encode()
    if content.endswith(added):
        os.truncate(entry.path, len(content) - len(added))
        return ""
    kept = [line for line in content.splitlines(keepends=True) if line.strip() != added.strip()]
    if len(kept) == len(content.splitlines()):
        return ""
    temporary = entry.path + NEW
    found = os.stat(entry.path)
    with open(temporary, "wb") as handle:
        handle.write(b"".join(kept))
    shutil.copystat(entry.path, temporary)
    os.chown(temporary, found.st_uid, found.st_gid)
    os.rename(temporary, entry.path)
    return ""


def _unmake_cache(path: str) -> str:
    try:
        names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    for name in names:
        if ".pyc" in name:
            os.unlink(os.path.join(path, name))
    return _unmake_folder(path)


def _unmake_grown(path: str) -> str:
    if digest(path) is None:
        return remove_tree(path)
    os.unlink(path)
    return ""


def remove_tree(path: str, *, stores: bool = False) -> str:
    """Remove the folder `path` and what is in it; stores of checkpoints only with `stores`. Return what stays, or an empty text."""
    if not os.path.isdir(path) or os.path.islink(path):
        return f"{path} stays: it is no folder any more" if os.path.lexists(path) else ""
    spared = [] if stores else [folder for folder, _, names in os.walk(path) if _REPOSITORY in names]
    if not spared:
        shutil.rmtree(path)
        return ""
    for folder, below, names in os.walk(path, topdown=False):
        if any(folder == kept or folder.startswith(f"{kept}/") for kept in spared):
            continue
        for name in [*names, *(name for name in below if os.path.islink(os.path.join(folder, name)))]:
            os.unlink(os.path.join(folder, name))
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return f"checkpoints stay in {', '.join(spared)}"
