"""Files that hold a history: open, decompress, and tell what they are. Called by `importer`.

Compressed and streamed inputs are first written out to a temporary file of this user, since reading needs to go back to bad
lines; plain files are read where they are.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from perdure import errors

Format = Literal["attempts", "json", "swf", "text"]
HEAD_BYTES = 1 << 16
_CHUNK = 1 << 20

_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive or an office document"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\x7fELF", "a program"),
    (b"\x89PNG", "an image"),
    (b"<!DOCTYPE", "a web page"),
    (b"<html", "a web page"),
)


class Source(msgspec.Struct, frozen=True):
    """One input, ready to be read: `path` is a plain, seekable file; `name` is what the caller called it."""

    name: str
    path: Path
    size_bytes: int
    head: bytes
    """The first `HEAD_BYTES` bytes."""


@contextlib.contextmanager
def opened(name: str | os.PathLike[str], *, progress: Callable[[int], None] | None = None) -> Iterator[Source]:
    """Open one input and yield it decompressed. `progress` is told the bytes that decompression has read.

    Raises `errors.InputMissing`, `errors.InputDenied`, `errors.InputEmpty`, `errors.InputFormat` (damaged compression) or
    `errors.OutputError` (no room for the decompressed copy).
    """
    label = os.fspath(name)
    with contextlib.ExitStack() as stack:
        path = Path(label)
        if not stat.S_ISREG(_mode(path, label)):
            # A pipe, as /dev/stdin or `<(zcat …)` is one, can be read once only.
            with _opening(label, path) as stream:
                path = _copied(stack, stream, label, progress)
        with _opening(label, path) as stream:
            head = stream.read(HEAD_BYTES)
            reader = _decompressor(head)
            if reader is not None:
                stream.seek(0)
                path = _copied(stack, reader(stream), label, progress)
        if path != Path(label):
            with path.open("rb") as stream:
                head = stream.read(HEAD_BYTES)
        if not head.strip():
            raise errors.InputEmpty(
                f"{label}: the file is empty", hint="did the command that wrote it fail? run it again and look at its messages"
            )
        yield Source(label, path, path.stat().st_size, head)


def detect(source: Source) -> Format:
    """Tell a source's format from its first bytes. Raises `errors.InputFormat` for what is no text at all."""
    head = source.head
    if head.startswith(b"PAR1"):
        return "attempts"
    for magic, what in _FOREIGN:
        if head.lstrip().startswith(magic):
            raise errors.InputFormat(
                f"{source.name}: this is {what}, not accounting data", hint="give the output of sacct -P, of sacct --json, SWF or CSV"
            )
    # A stray NUL further down is a damaged cell of a text; in the first line it is none.
    if b"\0" in head.lstrip().split(b"\n", 1)[0] or head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise errors.InputFormat(
            f"{source.name}: this is binary data, not accounting text", hint="give the output of sacct -P, of sacct --json, SWF or CSV"
        )
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] in (b"{", b"["):
        return "json"
    return "swf" if _is_swf(head) else "text"


def _is_swf(head: bytes) -> bool:
    """SWF: comments that begin with ``;``, then lines of 18 numbers."""
    lines = [line.split() for line in head.split(b"\n")[:-1] or [head] if line.strip() and not line.lstrip().startswith(b";")]
    if not lines:
        return head.lstrip().startswith(b";")
    return all(len(words) == 18 and all(_is_number(word) for word in words) for word_list in (lines[:20],) for words in word_list)


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _mode(path: Path, label: str) -> int:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise errors.InputMissing(f"{label}: no such file", hint="check the name") from None
    except PermissionError:
        raise errors.InputDenied(
            f"{label}: no permission to look into its folder", hint="ask its owner, or copy the file to where you may read it"
        ) from None
    except OSError as error:
        raise errors.InputMissing(f"{label}: {error.strerror}", hint="check the name") from error
    if stat.S_ISDIR(mode):
        raise errors.InputMissing(
            f"{label}: this is a directory, not a file", hint=f"name the files in it, such as {label.rstrip('/')}/*.txt"
        )
    return mode


@contextlib.contextmanager
def _opening(label: str, path: Path) -> Iterator[IO[bytes]]:
    try:
        stream = path.open("rb")
    except PermissionError:
        raise errors.InputDenied(
            f"{label}: no permission to read it", hint="ask its owner, or copy the file to where you may read it"
        ) from None
    except OSError as error:
        raise errors.InputMissing(f"{label}: {error.strerror}", hint="check the name") from error
    with stream:
        yield stream


def _decompressor(head: bytes) -> Callable[[IO[bytes]], Any] | None:
    if head.startswith(b"\x1f\x8b"):
        return lambda stream: gzip.GzipFile(fileobj=stream)
    if head.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile
    if head.startswith(b"BZh"):
        return bz2.BZ2File
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd
    return None


class _ZstdStream:
    """A zstd stream that reports damage as the other decompressors do; the library's own error is known only once it is loaded."""

    def __init__(self, stream: Any, damage: type[Exception]) -> None:
        self._stream = stream
        self._damage = damage

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes. Raises ValueError for damaged data."""
        try:
            chunk: bytes = self._stream.read(size)
        except self._damage as error:
            raise ValueError(str(error)) from error
        return chunk


def _zstd(stream: IO[bytes]) -> Any:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError as error:
        raise errors.MissingExtra(
            "reading .zst files needs backports.zstd, which is not installed", hint="pip install 'perdure[advise]'"
        ) from error
    return _ZstdStream(zstd.ZstdFile(stream), zstd.ZstdError)


def _copied(stack: contextlib.ExitStack, stream: Any, label: str, progress: Callable[[int], None] | None) -> Path:
    """Write a stream to a temporary file that goes when `stack` closes."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-")))
    target = folder / "input"
    done = 0
    try:
        with target.open("wb") as out:
            while chunk := _read(stream, label):
                out.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done)
    except OSError as error:
        free = shutil.disk_usage(folder).free
        raise errors.OutputError(
            f"{label}: cannot write its decompressed copy to {folder.parent}: {error.strerror}",
            hint=f"{free / 2**30:.1f} GiB are free there; set TMPDIR to a folder with more room",
        ) from error
    return target


def _read(stream: Any, label: str) -> bytes:
    try:
        chunk: bytes = stream.read(_CHUNK)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError) as error:
        raise errors.InputFormat(f"{label}: its compressed data is damaged: {error}", hint="copy or pull it again") from error
    except OSError as error:
        raise errors.InputFormat(f"{label}: cannot be read to its end: {error}", hint="copy or pull it again") from error
    return chunk
