"""What is brought to a node: Perdure, the libraries of its core, CRIU, objects of the shim. Called by install and `perdure slurm payload`.

It is taken from the environment that runs, file by file as its packages list them, so that nothing has to be fetched: neither here nor on
the node. Packed, it is one file: a tar archive that begins with the list of its files and their digests.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import os
import platform
import re
import stat
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure._version import __version__
from perdure.base import files
from perdure.checkpoint.criu import prefix

FORMAT = 1
RECORD = "payload.json"
TREE = "tree"

CORE = ("cyclopts", "rich", "msgspec", "blake3", "backports-zstd", "cryptography")
"""What Perdure needs everywhere, as in pyproject.toml."""
_UNTIL_314 = "backports-zstd"
"""Part of Python itself from 3.14 on."""
EXTRAS = {"gpu": ("cuda-bindings",), "s3": ("obstore",)}
"""What some nodes need, as in pyproject.toml."""

_LARGEST_RECORD_BYTES = 32 << 20
_OF_THE_INSTALLER = frozenset({"INSTALLER", "REQUESTED", "direct_url.json"})


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file or link. `path` is relative to the folder that the payload is put in."""

    path: str
    mode: int
    size_bytes: int = 0
    sha256: str = ""
    target: str = ""


class Payload(msgspec.Struct, frozen=True):
    """The list of what is brought, and where it lies now."""

    format: int
    version: str
    """Of Perdure."""
    python: str
    """The Python that the libraries are made for, such as ``3.11``."""
    machine: str
    """The processor's architecture, as uname(2) calls it."""
    prefix: str
    """Where the objects of the shim look for the rest."""
    items: tuple[Item, ...]
    sources: dict[str, str] = {}
    """Path of an item to the file that has its content; empty in the packed list."""

    @property
    def packages(self) -> str:
        """Folder of the libraries, relative like the items."""
        return f"lib/python{self.python}/site-packages"

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(item.size_bytes for item in self.items)

    def find(self, path: str) -> Item | None:
        """Return the item at `path`, or None."""
        return next((item for item in self.items if item.path == path), None)

    def content(self, item: Item) -> bytes:
        """Return the content of `item`, proved by its digest. Raises `errors.InputFormat` when it is not what the list says."""
        try:
            content = Path(self.sources[item.path]).read_bytes()
        except OSError as error:
            raise errors.InputMissing(f"{self.sources[item.path]}: {error.strerror}", hint="pack the payload again") from error
        if hashlib.sha256(content).hexdigest() != item.sha256:
            raise errors.InputFormat(f"{self.sources[item.path]} is not what the payload's list says", hint="pack the payload again")
        return content


def prebuilt(version: str, machine: str) -> tuple[str, str]:
    """Return where in a payload the shim's object and its program for Slurm `version` and `machine` lie."""
    return f"share/shim/slurm-{version}-{machine}.so", f"share/shim/slurm-{version}-{machine}.task"


def gather(place: str, *, extras: Iterable[str] = (), criu: Path | None = None, shims: Mapping[str, Path] | None = None) -> Payload:
    """Return the payload of the running environment, for installations at `place`.

    `criu` is a private prefix; `shims` are objects of the shim, by their paths in the payload.
    Raises `errors.UsageError` for an unknown extra, `errors.EnvironmentUnfit` when a library is not there or was changed.
    """
    wanted = [name for name in CORE if name != _UNTIL_314 or sys.version_info < (3, 14)]
    for extra in extras:
        if extra not in EXTRAS:
            raise errors.UsageError(f"there is no extra {extra!r} for nodes", hint=f"known: {', '.join(EXTRAS)}")
        wanted += EXTRAS[extra]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = f"lib/python{python}/site-packages"
    found = {f"{packages}/{path}": source for path, source in (_libraries(wanted) | _ourselves()).items()}
    if criu is not None:
        if prefix.read(criu) is None:
            raise errors.EnvironmentUnfit(f"{criu} is no folder with a CRIU in it", hint=f"perdure doctor --bring-criu --prefix {criu}")
        found |= {f"criu/{path}": source for path, source in _below(criu).items()}
    found |= dict(shims or {})
    items = tuple(_item(path, source) for path, source in sorted(found.items()))
    sources = {path: str(source) for path, source in found.items()}
    return Payload(FORMAT, __version__, python, platform.machine(), place, items, sources)


def _libraries(names: Iterable[str]) -> dict[str, Path]:
    """Return every file of the distributions `names` and of what they need."""
    seen: set[str] = set()
    waiting = [(name, False) for name in names]
    found: dict[str, Path] = {}
    while waiting:
        name, conditional = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen:
            continue
        seen.add(key)
        try:
            distribution = importlib.metadata.distribution(key)
        except importlib.metadata.PackageNotFoundError as error:
            if conditional:
                continue  # its marker says that this Python does not need it
            raise errors.EnvironmentUnfit(
                f"{name} is not installed here, and nodes need it", hint=f"install it where this runs: pip install {name}"
            ) from error
        found |= _files_of(distribution, key)
        for requirement in distribution.requires or []:
            needed, _, marker = requirement.partition(";")
            match = re.match(r"[A-Za-z0-9._-]+", needed.strip())
            if match is not None and "extra" not in marker:
                waiting.append((match[0], bool(marker)))
    return found


def _files_of(distribution: importlib.metadata.Distribution, name: str) -> dict[str, Path]:
    found = {}
    for path in distribution.files or []:
        if ".." in path.parts or "__pycache__" in path.parts or path.suffix == ".pyc" or path.name in _OF_THE_INSTALLER:
            continue
        source = Path(str(path.locate()))
        try:
            content = source.read_bytes()
        except OSError as error:
            raise errors.EnvironmentUnfit(f"{name} lacks {path}", hint=f"pip install --force-reinstall {name}") from error
        if path.hash is not None and path.hash.mode == "sha256":
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            if digest != path.hash.value:
                raise errors.EnvironmentUnfit(
                    f"{name}: {path} was changed since it was installed", hint=f"pip install --force-reinstall {name}"
                )
        found[path.as_posix()] = source
    if not found:
        raise errors.EnvironmentUnfit(f"{name} does not say which files it has", hint=f"install it with pip: pip install {name}")
    return found


def _ourselves() -> dict[str, Path]:
    root = Path(errors.__file__).parent
    return {f"perdure/{path}": source for path, source in _below(root).items()}


def _below(root: Path) -> dict[str, Path]:
    """Return the files and links below `root` by their relative paths, without what Python compiled."""
    found = {}
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name != "__pycache__")
        links = [name for name in below if os.path.islink(os.path.join(folder, name))]
        for name in [*names, *links]:
            if not name.endswith(".pyc"):
                path = Path(folder, name)
                found[path.relative_to(root).as_posix()] = path
    return found


def _item(path: str, source: Path) -> Item:
    found = source.lstat()
    if stat.S_ISLNK(found.st_mode) and path.startswith("criu/"):
        return Item(path, 0o777, target=os.readlink(source))
    content = source.read_bytes()
    mode = 0o755 if found.st_mode & 0o111 else 0o644
    return Item(path, mode, len(content), hashlib.sha256(content).hexdigest())


def pack(payload: Payload, target: Path) -> int:
    """Write `payload` as one file and return its size in bytes: the same bytes for the same payload. Raises `errors.OutputError`."""
    record = msgspec.json.encode(msgspec.structs.replace(payload, sources={}))
    with files.replacing(target, mode=files.PUBLIC_MODE) as temporary:
        with open(temporary, "wb") as handle, tarfile.open(fileobj=handle, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, RECORD, record, 0o644)
            for item in payload.items:
                if item.target:
                    link = tarfile.TarInfo(f"{TREE}/{item.path}")
                    link.type, link.linkname = tarfile.SYMTYPE, item.target
                    archive.addfile(link)
                else:
                    _add(archive, f"{TREE}/{item.path}", payload.content(item), item.mode)
        return temporary.stat().st_size


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def unpacked(folder: Path) -> Payload:
    """Return the payload that was unpacked into `folder`. Raises `errors.InputMissing` and `errors.InputFormat`."""
    hint = "make one: perdure slurm payload -o FILE"
    try:
        with open(folder / RECORD, "rb") as handle:
            payload = msgspec.json.decode(handle.read(_LARGEST_RECORD_BYTES), type=Payload)
    except OSError as error:
        raise errors.InputMissing(f"{folder} holds no payload: {error.strerror}", hint=hint) from error
    except msgspec.DecodeError as error:
        raise errors.InputFormat(f"{folder / RECORD} is damaged or of another format: {error}", hint=hint) from error
    if payload.format != FORMAT:
        raise errors.InputFormat(f"{folder} is a payload of format {payload.format}", hint=hint)
    for item in payload.items:
        if item.path.startswith("/") or ".." in item.path.split("/") or item.target.startswith("/"):
            raise errors.InputFormat(f"{folder / RECORD} names {item.path!r}", hint=hint)
    sources = {item.path: str(folder / TREE / item.path) for item in payload.items}
    return msgspec.structs.replace(payload, sources=sources)


def unpack(archive: Path, folder: Path) -> Payload:
    """Unpack the file `archive` into the empty `folder` and return the payload. Raises `errors.InputMissing`, `errors.InputFormat`."""
    hint = "make one: perdure slurm payload -o FILE"
    try:
        with tarfile.open(archive, mode="r:") as handle:
            for member in handle:
                _extract(handle, member, folder)
    except OSError as error:
        raise errors.InputMissing(f"{archive}: {error.strerror}", hint=hint) from error
    except (tarfile.TarError, ValueError) as error:
        raise errors.InputFormat(f"{archive} is no payload: {error}", hint=hint) from error
    return unpacked(folder)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write one member below `folder`. Raises `ValueError` for one that a payload does not have."""
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise ValueError(f"it names {member.name!r}")
    target = folder / member.name
    target.parent.mkdir(parents=True, exist_ok=True)
    content = archive.extractfile(member) if member.isreg() else None
    if member.issym():
        target.symlink_to(member.linkname)
    elif content is None:
        raise ValueError(f"{member.name!r} is neither a file nor a link")
    else:
        target.write_bytes(content.read())
        target.chmod(member.mode & 0o755)
