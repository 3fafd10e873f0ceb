"""The console's log: everything a workload wrote to its standard streams, in order, and which stream each part came from.

Beside the log lies ``log.streams``: wherever the stream changes, one byte (1 stdout, 2 stderr) and the offset in the log from which it
holds, in eight bytes, little-endian, written before the part itself. It is what lets the output of one stream be given back to a file
that the shell emptied. Called by `console`, `resume` and `perdure logs`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from perdure.base import files

_CHANGE = struct.Struct("<BQ")
_COPY_BYTES = 1 << 20


class Log:
    """The log at `path`, open for appending. A write that returns has reached the kernel: it survives the death of the supervisor."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._log = os.open(path, flags, 0o600)
        self._streams = os.open(streams_path(path), flags, 0o600)
        self._stream = 0
        self.size_bytes = os.fstat(self._log).st_size

    def write(self, stream: int, content: bytes) -> str:
        """Append `content` from `stream` (1 or 2). Returns an empty text, or why a part is lost: the workload must not stop for it."""
        try:
            if stream != self._stream:
                os.write(self._streams, _CHANGE.pack(stream, self.size_bytes))
                self._stream = stream
            rest = memoryview(content)
            while rest:
                written = os.write(self._log, rest)
                self.size_bytes += written
                rest = rest[written:]
        except OSError as error:
            return error.strerror or "it cannot be written"
        return ""

    def close(self) -> None:
        """Let go of the files."""
        os.close(self._log)
        os.close(self._streams)


def streams_path(log: Path) -> Path:
    """Where it is told which stream each part of `log` came from."""
    return log.with_name(log.name + ".streams")


def stretches(log: Path, limit_bytes: int) -> list[tuple[int, int, int]]:
    """Return (stream, start, length) of the first `limit_bytes` of `log`, in order. What nobody tells of counts as stdout."""
    changes = [(stream, start) for stream, start in _changes(log) if start < limit_bytes]
    if not changes or changes[0][1] > 0:
        changes.insert(0, (1, 0))
    ends = [start for _, start in changes[1:]] + [limit_bytes]
    return [(stream, start, end - start) for (stream, start), end in zip(changes, ends, strict=True) if end > start]


def encode(told: list[tuple[int, int, int]]) -> bytes:
    """Return what ``log.streams`` holds for the stretches `told`."""
    return b"".join(_CHANGE.pack(stream, start) for stream, start, _ in told)


def _changes(log: Path) -> list[tuple[int, int]]:
    try:
        content = streams_path(log).read_bytes()
    except FileNotFoundError:
        return []
    found = _CHANGE.iter_unpack(content[: len(content) // _CHANGE.size * _CHANGE.size])
    rising: list[tuple[int, int]] = []
    for stream, start in found:
        # A crash between the two writes leaves a change at which nothing was written; the next one there holds.
        while rising and rising[-1][1] >= start:
            rising.pop()
        rising.append((stream, start))
    return rising


def cut(log: Path, size_bytes: int, *, aside: Path) -> int:
    """Cut `log` to `size_bytes` and keep what was behind it in the file `aside`. Returns the bytes cut off."""
    descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        tail_bytes = os.fstat(descriptor).st_size - size_bytes
        if tail_bytes > 0:
            _copy(descriptor, size_bytes, tail_bytes, aside)
            told = encode(stretches(log, size_bytes))
            os.ftruncate(descriptor, size_bytes)
            files.write_bytes(streams_path(log), told)
    finally:
        os.close(descriptor)
    return max(tail_bytes, 0)


def chunks_of_streams(log: Path, size_bytes: int, wanted: frozenset[int], *, skip_bytes: int = 0) -> Iterator[bytes]:
    """Yield what the streams `wanted` said in the first `size_bytes` of `log`, in pieces, but for the first `skip_bytes` of it."""
    with open(log, "rb", buffering=0) as source:
        for stream, start, length in stretches(log, size_bytes):
            if stream in wanted:
                skipped = min(skip_bytes, length)
                skip_bytes -= skipped
                yield from _chunks(source.fileno(), start + skipped, length - skipped)


def write_pieces(pieces: Iterator[bytes], into: int) -> int:
    """Write all of `pieces` to the descriptor `into`. Returns the bytes written. Raises OSError."""
    done = 0
    for piece in pieces:
        _write_all(into, piece)
        done += len(piece)
    return done


def _copy(source: int, start: int, length: int, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for chunk in _chunks(source, start, length):
            _write_all(descriptor, chunk)
    finally:
        os.close(descriptor)


def _chunks(source: int, start: int, length: int) -> Iterator[bytes]:
    while length > 0:
        chunk = os.pread(source, min(length, _COPY_BYTES), start)
        if not chunk:
            return
        yield chunk
        start += len(chunk)
        length -= len(chunk)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
