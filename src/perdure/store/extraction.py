"""The files that a restore makes: created below one folder, nothing followed, nothing replaced. Called by the repository.

Names come from a manifest: authentic, but perhaps made by somebody who has the store's key and not root. Folders are walked one part at
a time by descriptor and never through a link.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock

from perdure import errors
from perdure.model.checkpoint import StoredFile
from perdure.store import codec, names

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_OPEN_FILES = 128
_VECTORS = 1024
"""At most this many parts go into one system call (IOV_MAX)."""


def check_names(files: Sequence[StoredFile], key: str) -> None:
    """Raise `errors.StoreCorrupt` for the manifest at `key` unless all names are safe and each stands there once."""
    seen = set()
    for file in files:
        if not names.is_safe(file.name) or file.name in seen:
            raise codec.corrupt(key, f"{file.name!r} cannot be the name of a stored file")
        seen.add(file.name)


class Extraction:
    """Makes `files`, called by numbers, below the folder `into`. A context: after an error what was made is removed."""

    def __init__(self, into: int | Path, files: Mapping[int, StoredFile]) -> None:
        self._files = files
        self._lock = Lock()
        self._open: OrderedDict[int, int] = OrderedDict()
        self._busy: dict[int, int] = {}
        self._folders: dict[str, int] = {}
        self._made: list[Callable[[], None]] = []
        self._into = into

    def __enter__(self) -> Extraction:
        with _as_output_error("the folder to restore into"):
            folder = (
                os.open(self._into, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if isinstance(self._into, Path) else os.dup(self._into)
            )
        self._folders[""] = folder
        try:
            for file in self._files.values():
                self._make(file)
        except BaseException:
            self._remove()
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._set_modes()
            else:
                self._remove()
        finally:
            self._close()

    def write(self, file: int, offset: int, parts: Sequence[memoryview]) -> None:
        """Write `parts` at `offset` of a file. Called by several threads. Raises `errors.OutputError`."""
        with _as_output_error(self._files[file].name):
            descriptor = self._take(file)
            try:
                for start in range(0, len(parts), _VECTORS):
                    offset = _write(descriptor, offset, parts[start : start + _VECTORS])
            finally:
                self._give_back(file)

    def _make(self, file: StoredFile) -> None:
        with _as_output_error(file.name):
            folder, name = self._folder_of(file.name)
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE, dir_fd=folder)
            self._made.append(lambda: os.unlink(name, dir_fd=folder))
            try:
                os.ftruncate(descriptor, file.size_bytes)
            finally:
                os.close(descriptor)

    def _folder_of(self, name: str) -> tuple[int, str]:
        *parts, last = name.split("/")
        path, folder = "", self._folders[""]
        for part in parts:
            path = f"{path}{part}/"
            if path not in self._folders:
                parent = folder
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, _FOLDER_MODE, dir_fd=parent)
                    self._made.append(_remover(part, parent))
                self._folders[path] = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            folder = self._folders[path]
        return folder, last

    def _set_modes(self) -> None:
        # Last of all: a file that its owner may not write is written by its owner.
        for file in self._files.values():
            if file.mode & 0o777 != _FILE_MODE:
                with _as_output_error(file.name):
                    folder, name = self._folder_of(file.name)
                    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                    try:
                        os.fchmod(descriptor, file.mode & 0o777)
                    finally:
                        os.close(descriptor)

    def _take(self, file: int) -> int:
        with self._lock:
            self._busy[file] = self._busy.get(file, 0) + 1
            if file in self._open:
                self._open.move_to_end(file)
                return self._open[file]
            folder, name = self._folder_of(self._files[file].name)
            self._open[file] = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            return self._open[file]

    def _give_back(self, file: int) -> None:
        with self._lock:
            self._busy[file] -= 1
            for idle in [number for number in self._open if not self._busy.get(number)][: max(0, len(self._open) - _OPEN_FILES)]:
                os.close(self._open.pop(idle))

    def _remove(self) -> None:
        for remove in reversed(self._made):
            # What somebody put into a folder meanwhile stays, and the error that led here is told.
            with contextlib.suppress(OSError):
                remove()

    def _close(self) -> None:
        for descriptor in (*self._open.values(), *self._folders.values()):
            os.close(descriptor)
        self._open.clear()
        self._folders.clear()


def _remover(name: str, folder: int) -> Callable[[], None]:
    return lambda: os.rmdir(name, dir_fd=folder)


def _write(descriptor: int, offset: int, parts: Sequence[memoryview]) -> int:
    left = list(parts)
    while left:
        done = os.pwritev(descriptor, left, offset)
        offset += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if left and done:
            left[0] = left[0][done:]
    return offset


@contextlib.contextmanager
def _as_output_error(what: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise errors.OutputError(f"cannot restore {what}: it exists already", hint="restore into an empty folder") from None
    except OSError as error:
        hint = "free some space or choose another disk" if error.errno in (28, 122) else "choose a folder that you may write to"
        raise errors.OutputError(f"cannot restore {what}: {error.strerror}", hint=hint) from error
