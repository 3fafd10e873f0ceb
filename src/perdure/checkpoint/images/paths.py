"""What a dumped tree reaches by path, and who has it as which descriptor. Called by `guard` and `ghosts` around a restore for a user.

Source of the format: images/fdinfo.proto, regfile.proto, fifo.proto, fs.proto, sk-unix.proto and remap-file-path.proto of CRIU 4.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint.images import container, openfiles, wire

_REMAP = 0x59133954
_IDS = 0x54432030
_FS = 0x51403912
_REGULAR, _FIFO, _UNIX = 1, 3, 5
_FIFO_ENTRY, _UNIX_ENTRY = 17, 16
_FIFO_PATH = 5
_UNIX_NAME, _UNIX_FOLDER = 11, 14
_LINKED, _GHOST = 0, 1


class Opened(msgspec.Struct, frozen=True):
    """A descriptor or folder of a process that was reached by a path. `name` is that path, absolute and without links."""

    way: str
    """Where the process has it: ``fd/3``, ``cwd``, ``root``."""
    name: str
    flags: int
    """open(2) flags."""
    is_nameless: bool
    """The name was gone already: CRIU makes the file anew, or by another name of it."""


class Remap(msgspec.Struct, frozen=True):
    """A file whose name was gone. Files of one `ghost` are one file."""

    file: int
    """Its number among the open files."""
    ghost: int | None
    """Number of the image that holds the content; None: it lives on under another name."""


def remaps(images: Path) -> tuple[Remap, ...]:
    """Return the open files that had lost their name. Raises `errors.InputFormat`."""
    path = images / "remap-fpath.img"
    if not path.exists():
        return ()
    found = []
    for entry in container.read(path, _REMAP).entries:
        fields = wire.parse(entry)
        kind = wire.number(fields, 3, _LINKED)
        found.append(Remap(wire.number(fields, 1), wire.number(fields, 2) if kind == _GHOST else None))
    return tuple(found)


class Paths:
    """Everything that the tree in a folder of images reaches by path."""

    def __init__(self, images: Path) -> None:
        """Read the images. Raises `errors.InputMissing` and `errors.InputFormat`."""
        self._images = images
        self._files = {one.id: one for one in openfiles.of(images) if isinstance(one, openfiles.RegularFile)}
        self._fifos = dict(_fifos(images))
        self._nameless = {one.file for one in remaps(images)}
        self.names = frozenset(file.name for number, file in self._files.items() if number not in self._nameless)
        """Names that were there, of everything that is open, mapped, executed or worked in."""

    def of(self, process: int) -> tuple[Opened, ...]:
        """Return what `process`, by its number inside, has open by path. Raises `errors.InputMissing` and `errors.InputFormat`."""
        table = wire.number(wire.parse(_only(self._images / f"ids-{process}.img", _IDS)), 2)
        found = []
        for entry in container.read(self._images / f"fdinfo-{table}.img", container.FDINFO).entries:
            fields = wire.parse(entry)
            kind, number = wire.number(fields, 3), wire.number(fields, 1)
            if kind in (_REGULAR, _FIFO):
                found.append(self._opened(f"fd/{wire.number(fields, 4)}", number if kind == _REGULAR else self._fifos.get(number, 0)))
        folders = wire.parse(_only(self._images / f"fs-{process}.img", _FS))
        return (*found, *(self._opened(way, wire.number(folders, field)) for field, way in ((1, "cwd"), (2, "root"))))

    def _opened(self, way: str, number: int) -> Opened:
        file = self._files.get(number)
        if file is None:
            raise errors.InputFormat(f"the images do not say what {way} of a process is")
        return Opened(way, file.name, file.flags, number in self._nameless)


def unix_names(images: Path) -> tuple[str, ...]:
    """Return the names in folders that Unix sockets of the tree have or are connected to, absolute. Raises `errors.InputFormat`."""
    found = []
    for fields in _of_kind(images, _UNIX, _UNIX_ENTRY):
        name = (wire.content(fields, _UNIX_NAME) or b"").rstrip(b"\0")
        if name and not (wire.content(fields, _UNIX_NAME) or b"").startswith(b"\0"):
            folder = wire.content(fields, _UNIX_FOLDER) or b"/"
            found.append(os.fsdecode(os.path.normpath(os.path.join(folder, name))))
    return tuple(dict.fromkeys(found))


def linked(images: Path) -> tuple[str, ...]:
    """Return the lost names of open files that live on under another one: CRIU gives them that name for an instant."""
    names = {one.id: one.name for one in openfiles.of(images) if isinstance(one, openfiles.RegularFile)}
    return tuple(names[one.file] for one in remaps(images) if one.ghost is None and one.file in names)


def has_fanotify(images: Path) -> bool:
    """Tell whether the tree watches files with fanotify."""
    return any(isinstance(one, openfiles.Other) and one.kind == "fanotify" for one in openfiles.of(images))


def _fifos(images: Path) -> Iterator[tuple[int, int]]:
    for fields in _of_kind(images, _FIFO, _FIFO_ENTRY):
        yield wire.number(fields, 1), wire.number(fields, _FIFO_PATH)


def _of_kind(images: Path, kind: int, field: int) -> Iterator[tuple[wire.Field, ...]]:
    for entry in container.read(images / "files.img", container.FILES).entries:
        fields = wire.parse(entry)
        inner = wire.content(fields, field)
        if wire.number(fields, 1) == kind and inner is not None:
            yield wire.parse(inner)


def _only(path: Path, kind: int) -> bytes:
    entries = container.read(path, kind).entries
    if len(entries) != 1:
        raise errors.InputFormat(f"{path.name} does not hold one entry")
    return entries[0]
