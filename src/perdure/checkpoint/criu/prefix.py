"""A private prefix: Debian's newest CRIU with the libraries it needs and a static init, in one folder, the system left alone.

Called by `perdure doctor --bring-criu` and by `scripts/setup`; `locate` reads the record. A prefix appears whole or not at all:
it is unpacked beside its place and renamed into it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import files
from perdure.checkpoint.criu import apt, prlimit

RECORD = "perdure-prefix.json"
FORMAT = 1
MINIMUM = (4, 2, 1)
"""The first version that dumps a process with a socket on kernels from 6.16 on."""

SUITES = ("forky", "sid")
"""Debian suites to look in, in this order: the first release that has `MINIMUM`, then the one suite that never goes away."""

_INITS = ("tini-static", "tini")
"""Packages that have held /usr/bin/tini-static, the newer first."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class BroughtPackage(msgspec.Struct, frozen=True):
    """A package that was unpacked, with the digest of the file that apt verified."""

    name: str
    version: str
    sha256: str


class Prefix(msgspec.Struct, frozen=True):
    """What a prefix holds. Paths are relative to it."""

    format: int
    criu: str
    criu_version: str
    loader: str
    libraries: tuple[str, ...]
    init: str
    suite: str
    made_ns: int
    size_bytes: int
    packages: tuple[BroughtPackage, ...]

    def argv(self, root: Path) -> tuple[str, ...]:
        """Return how to start CRIU from the prefix at `root`: through its own loader, with its own libraries."""
        path = ":".join(str(root / folder) for folder in self.libraries)
        return (str(root / self.loader), "--library-path", path, str(root / self.criu))


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers that a version such as ``2:4.2.1-1`` or ``4.2.1`` begins with, epoch and revision left out."""
    match = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def read(root: Path) -> Prefix | None:
    """Return what the prefix at `root` says of itself, or None when it is none, is not whole, or is of another format."""
    try:
        record = msgspec.json.decode((root / RECORD).read_bytes(), type=Prefix)
    except (OSError, msgspec.DecodeError):
        return None
    relative = (record.criu, record.loader, record.init, *record.libraries)
    inside = all(not name.startswith("/") and ".." not in name.split("/") for name in relative)
    return record if record.format == FORMAT and inside and all((root / name).exists() for name in relative) else None


def bring(root: Path, *, environ: Mapping[str, str], now_ns: int, mirror: str | None, say: Callable[[str], None]) -> Prefix:
    """Make the prefix at `root`; one that is there is replaced when the new one is whole.

    `mirror` is the address of a Debian archive; None: the system's own. `say` is told, in words, what is going on.

    Raises `errors.UsageError` for a bad `mirror`, `errors.EnvironmentUnfit` when the packages cannot be had or verified,
    `errors.OutputError` when `root` cannot be written.
    """
    if mirror is not None and not re.fullmatch(r"[a-z][a-z0-9+]*:[^\s\[\]\"]+", mirror):
        raise errors.UsageError(f"{mirror!r} is not the address of a mirror", hint="such as http://HOST/debian")
    apt.require_apt()
    _require_writable(root)
    # apt downloads as _apt when this is root, so the folder can be entered by others; nothing in it is private.
    with tempfile.TemporaryDirectory(prefix="perdure-criu-") as scratch:
        os.chmod(scratch, 0o755)  # noqa: S103
        archive, packages = _find(Path(scratch), environ=environ, mirror=mirror, say=say)
        say(f"downloading {len(packages)} packages of Debian's {archive.suite}")
        downloads = archive.download(packages)
        return _build(root, downloads, packages, suite=archive.suite, now_ns=now_ns)


def _find(
    scratch: Path, *, environ: Mapping[str, str], mirror: str | None, say: Callable[[str], None]
) -> tuple[apt.Archive, list[apt.Package]]:
    mirrors = [mirror] if mirror else apt.system_mirrors()
    if not mirrors:
        raise errors.EnvironmentUnfit(
            "this system's package sources name no mirror of Debian or a relative",
            hint="name one: perdure doctor --bring-criu --mirror URL",
        )
    wanted = ".".join(map(str, MINIMUM))
    refusals: list[errors.EnvironmentUnfit] = []
    for number, (address, suite) in enumerate((address, suite) for address in mirrors for suite in SUITES):
        folder = scratch / str(number)
        folder.mkdir()
        archive = apt.Archive(folder, mirror=address, suite=suite, environ=environ)
        say(f"reading the package index of Debian's {suite}")
        try:
            archive.update()
            criu = archive.candidate("criu")
            if criu is None or version_of(criu.version) < MINIMUM:
                found = f"has criu {criu.version}" if criu else "has no criu"
                raise errors.EnvironmentUnfit(
                    f"Debian's {suite} {found}; {wanted} or newer is needed", hint="name a newer mirror with --mirror"
                )
            init = next((name for name in _INITS if archive.candidate(name)), _INITS[0])
            return archive, archive.closure(("criu", init))
        except errors.EnvironmentUnfit as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _require_writable(root: Path) -> None:
    """See, before anything is downloaded, that a folder can be made beside `root`. Raises `errors.OutputError`."""
    _fresh(root).rmdir()


def _fresh(root: Path) -> Path:
    """Return a new folder beside `root`, in which a prefix is made. Raises `errors.OutputError`."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{root.name}.", suffix=".tmp", dir=root.parent))
    except OSError as error:
        raise errors.OutputError(f"cannot write {root}: {error.strerror}", hint="choose another folder with --prefix") from error


def _build(root: Path, downloads: list[Path], packages: list[apt.Package], *, suite: str, now_ns: int) -> Prefix:
    fresh = _fresh(root)
    try:
        for package in downloads:
            _unpack(package, fresh)
        _trim(fresh)
        record = _describe(fresh, downloads, packages, suite=suite, now_ns=now_ns)
        if prlimit.is_needed() and prlimit.compiler() is not None:
            prlimit.build(fresh)
        files.write_bytes(fresh / RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1), mode=files.PUBLIC_MODE)
        os.chmod(fresh, 0o755)  # noqa: S103
        _sync_tree(fresh)
        put_in_place(fresh, root)
    except OSError as error:
        raise errors.OutputError(f"cannot write {root}: {error.strerror}", hint="free some space, or choose another --prefix") from error
    finally:
        # After an exchange this is the old prefix.
        shutil.rmtree(fresh, ignore_errors=True)
    return record


def _unpack(package: Path, target: Path) -> None:
    done = subprocess.run(["dpkg-deb", "-x", str(package), str(target)], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise errors.OutputError(f"cannot unpack {package.name}: {reason[0]}", hint="free some space, or choose another --prefix")


def _trim(root: Path) -> None:
    """Remove what CRIU never reads: character sets, headers, static libraries, manuals. Licences stay."""
    for path in sorted(root.rglob("*"), reverse=True):
        relative = path.relative_to(root).as_posix()
        unneeded = re.search(r"\.a$|^usr/(?:include|bin)/|/(?:gconv|compel)(?:/|$)|^etc/", relative) is not None
        if relative.startswith("usr/share/"):
            unneeded = not relative.endswith("/copyright")
        if relative.endswith("/tini-static"):
            continue
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.rmdir()  # only those that became empty
        elif unneeded:
            path.unlink()


def _describe(root: Path, downloads: list[Path], packages: list[apt.Package], *, suite: str, now_ns: int) -> Prefix:
    digests = {}
    for path in downloads:
        with open(path, "rb") as handle:
            digests[path.name.partition("_")[0]] = hashlib.file_digest(handle, "sha256").hexdigest()
    by_name = {package.name: package.version for package in packages}
    libraries = sorted({path.parent.relative_to(root).as_posix() for path in root.rglob("*.so.*") if "ld-linux" not in path.name})
    return Prefix(
        format=FORMAT,
        criu=_one(root, "usr/sbin/criu", "sbin/criu"),
        criu_version=".".join(map(str, version_of(by_name["criu"]))),
        loader=_one(root, "lib*/ld-linux*.so.*", "usr/lib*/ld-linux*.so.*", "usr/lib/*/ld-linux*.so.*"),
        libraries=tuple(libraries),
        init=_one(root, "usr/bin/tini-static"),
        suite=suite,
        made_ns=now_ns,
        size_bytes=sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir()),
        packages=tuple(BroughtPackage(name, by_name[name], digests[name]) for name in sorted(by_name)),
    )


def _one(root: Path, *patterns: str) -> str:
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            return path.relative_to(root).as_posix()
    raise errors.EnvironmentUnfit(
        f"the packages do not hold {patterns[0]} where it was expected", hint="name a CRIU that works: PERDURE_CRIU=/path/to/criu"
    )


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root, topdown=False):
        for name in [*names, "."]:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)


def put_in_place(fresh: Path, root: Path) -> None:
    """Rename `fresh` to `root`; what was there is afterwards at `fresh`. At no instant is there nothing at `root`."""
    if root.is_symlink() or (root.exists() and not root.is_dir()):
        raise errors.OutputError(f"cannot write {root}: it is not a folder", hint="choose another folder with --prefix")
    try:
        os.rename(fresh, root)
    except OSError:
        if not root.is_dir():
            raise
        if read(root) is None and not _was_prefix(root):
            raise errors.OutputError(f"{root} holds something else", hint="choose another folder with --prefix") from None
        _exchange(fresh, root)
    descriptor = os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _was_prefix(root: Path) -> bool:
    """Tell whether `root` is a prefix that is damaged or of another format: that may be replaced, other people's folders may not."""
    return (root / RECORD).is_file()


def _exchange(first: Path, second: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(second))
