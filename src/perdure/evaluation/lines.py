"""Files of lines that only grow: one JSON object a line, appended with an fsync, never rewritten. Called by `folder` and `amend`.

A writer that dies in the middle leaves a torn last line. Readers leave it out and count it; the next writer moves it to `NAME.torn` beside
the file, after its offset, and then cuts it off, in this order, so that a crash between the two loses nothing and counts it once. The
file's own lock (flock) keeps a reader from taking a line that is being written for a torn one.

A last line that is a whole JSON object and only lacks its line end is kept: no proper beginning of an object is one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from perdure import errors
from perdure.base import linkless

LONGEST_LINE_BYTES = 64 << 20
"""A run with a million events takes about 60 MB; longer lines are no runs."""
TORN = ".torn"


class Lines(msgspec.Struct, frozen=True):
    """The whole lines of a file, and how many torn ones were ever met in it."""

    lines: tuple[bytes, ...] = ()
    torn: int = 0


def read(folder: Path, name: str) -> Lines:
    """Return the lines of file `name` in `folder`, none when it is not there. Nothing is written.

    Raises `errors.LinkInPath` when it is no regular file, `errors.InputDenied`, and `errors.InputFormat` for a line longer than
    `LONGEST_LINE_BYTES`.
    """
    with entered(folder) as place:
        try:
            descriptor = linkless.open_regular(place, name)
        except errors.InputMissing:
            return Lines()
        with open(descriptor, "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH)
            lines = tuple(_lines(handle, folder / name))
            aside = _moved_aside(place, name)
    torn = aside.count(b"\n")
    if lines and not _is_whole(lines[-1]):
        torn += _last_whole(aside) != _entry(sum(map(len, lines[:-1])), lines[-1])
        lines = lines[:-1]
    return Lines(tuple(line.removesuffix(b"\n") for line in lines), torn)


def append(folder: Path, name: str, line: bytes) -> None:
    """Add `line`, a JSON object without line ends, to file `name` in `folder` and wait until the disk has it.

    The file is made with mode 0600 when it is not there. A torn last line is moved aside first. When the disk is full, the file is left as
    it was. Raises `errors.OutputError`, `errors.LinkInPath` and `errors.InputDenied`.
    """
    if b"\n" in line or len(line) >= LONGEST_LINE_BYTES:
        raise errors.OutputError(f"{name}: a line of {len(line)} bytes cannot be added", hint="record fewer events in a run")
    with entered(folder) as place, _writing(place, name, folder) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _repair(place, name, descriptor, folder)
        size_bytes = os.fstat(descriptor).st_size
        try:
            _write(descriptor, line + b"\n")
        except OSError:
            os.ftruncate(descriptor, size_bytes)
            raise
        os.fsync(descriptor)
        os.fsync(place)


def _repair(place: int, name: str, descriptor: int, folder: Path) -> None:
    """Leave the file empty or ending with a line end; a torn last line goes aside."""
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes == 0 or os.pread(descriptor, 1, size_bytes - 1) == b"\n":
        return
    content = _content(descriptor)
    last = content[content.rfind(b"\n") + 1 :]
    if _is_whole(last):
        _write(descriptor, b"\n")
        return
    with _writing(place, name + TORN, folder) as aside:
        kept = _content(aside)
        whole = kept[: kept.rfind(b"\n") + 1]
        # What a crash left half-written there is still in the file itself.
        os.ftruncate(aside, len(whole))
        entry = _entry(size_bytes - len(last), last)
        if _last_whole(whole) != entry:
            _write(aside, entry + b"\n")
        os.fsync(aside)
    os.fsync(place)
    os.ftruncate(descriptor, size_bytes - len(last))
    os.fsync(descriptor)


def _entry(offset: int, fragment: bytes) -> bytes:
    """Return how a torn line is kept: after the offset at which it stood, by which a repair that was broken off knows its own work."""
    return b"%d %b" % (offset, fragment)


def _moved_aside(place: int, name: str) -> bytes:
    """Return what lies in the file of torn lines, up to its last line end."""
    try:
        descriptor = linkless.open_regular(place, name + TORN)
    except errors.InputMissing:
        return b""
    with open(descriptor, "rb") as handle:
        content = handle.read()
    return content[: content.rfind(b"\n") + 1]


def _is_whole(line: bytes) -> bool:
    if line.endswith(b"\n"):
        return True
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _last_whole(content: bytes) -> bytes:
    """Return the last of lines that all have their line end, b'' when there is none."""
    return content.removesuffix(b"\n").rpartition(b"\n")[2]


def _lines(handle: BinaryIO, path: Path) -> Iterator[bytes]:
    while line := handle.readline(LONGEST_LINE_BYTES + 1):
        if len(line) > LONGEST_LINE_BYTES:
            raise errors.InputFormat(f"{path} has a line of more than {LONGEST_LINE_BYTES} bytes", hint="it is not what perdure wrote")
        yield line


def _content(descriptor: int) -> bytes:
    with open(os.dup(descriptor), "rb") as handle:
        handle.seek(0)
        return handle.read()


def _write(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


@contextlib.contextmanager
def entered(folder: Path) -> Iterator[int]:
    """Yield a descriptor of the folder, which a person named and which may lie behind links; what is in it may not."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise errors.InputMissing(f"{folder}: {error.strerror}", hint="name the folder of an evaluation with --dir") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _writing(place: int, name: str, folder: Path) -> Iterator[int]:
    """Yield a descriptor that appends to `name`, made when it is not there; failures to write become `errors.OutputError`."""
    try:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=place))
        descriptor = linkless.open_regular(place, name, os.O_RDWR | os.O_APPEND)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        hint = "free some space or choose another disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise errors.OutputError(f"cannot write {folder / name}: {error.strerror}", hint=hint) from error
