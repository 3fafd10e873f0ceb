"""What the workload itself says of its progress, read the same way in both arms. Called by `conduct`; the readers of text are pure.

The counter comes from the lines that the command prints, from a log file that it writes, from a file that holds a number, or over HTTP as
a number in an answer or a value among metrics. A counter that was there before a life began says nothing about that life: files are
compared with what they were when it began.
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Protocol

from perdure.evaluation.plan_workload import OwnCheckpoint, Progress

LONGEST_LINE_BYTES = 64 << 10
"""More than this without a line end is no line of a log: it is cut there."""
_LONGEST_FILE_BYTES = 1 << 20
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_LINE_END = re.compile(rb"[\r\n]")


class Lines:
    """Cuts a stream of bytes into lines; a carriage return ends one too, as progress bars use it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, content: bytes) -> Iterator[str]:
        """Yield the lines that `content` completes."""
        *whole, self._rest = _LINE_END.split(self._rest + content)
        if len(self._rest) > LONGEST_LINE_BYTES:
            whole.append(self._rest)
            self._rest = b""
        for line in whole:
            if line:
                yield line.decode("utf-8", "replace")


def number_in(line: str, pattern: re.Pattern[str] | None) -> float | None:
    """Return the number in the last match of `pattern` (its only group) in `line`, without a pattern the first number; None: no number."""
    if pattern is None:
        found = _NUMBER.search(line)
        return float(found[0]) if found and math.isfinite(float(found[0])) else None
    number = None
    for match in pattern.finditer(line):
        with contextlib.suppress(ValueError, TypeError):  # a group may match no number, or take no part in the match
            found_number = float(match[1].replace("_", "").replace(",", ""))
            number = found_number if math.isfinite(found_number) else number
    return number


def metric_in(text: str, metric: str) -> float | None:
    """Return the value of `metric` in Prometheus text: of the series with just these labels, else the sum of all series of that name."""
    total: float | None = None
    for line in text.splitlines():
        series, brace, rest = line.strip().partition("}")
        name, value = (series + brace, rest) if brace else (line.strip().partition(" ")[0], line.strip().partition(" ")[2])
        if line.startswith("#") or not value.split():
            continue
        with contextlib.suppress(ValueError):
            number = float(value.split()[0])
            if not math.isfinite(number):
                continue
            if name == metric:
                return number
            if name.partition("{")[0] == metric:
                total = number + (total or 0.0)
    return total


class Polled(Protocol):
    """A source that is looked at again and again."""

    def rearm(self, *, is_restored: bool) -> None:
        """A life begins, or Perdure has just brought one back: what is there now is not its progress."""
        ...

    def poll(self) -> Iterator[float]:
        """Yield the counters that were signalled since the last look."""
        ...

    def close(self) -> None:
        """Let go of what is open."""
        ...


class File:
    """A file that holds the counter. It signals when the file was written, even with the same number."""

    def __init__(self, path: str, pattern: re.Pattern[str] | None) -> None:
        self._path = path
        self._pattern = pattern
        self._seen: tuple[int, int, int, bytes] | None = None

    def rearm(self, *, is_restored: bool) -> None:  # noqa: ARG002
        """Remember the file as it is."""
        self._seen = self._look()

    def poll(self) -> Iterator[float]:
        """Yield the number in the file if the file changed."""
        found = self._look()
        if found is None or found == self._seen:
            return
        number = number_in(found[3].decode("utf-8", "replace"), self._pattern)
        if number is not None:  # a file that is being written is read again
            self._seen = found
            yield number

    def close(self) -> None:
        """Nothing is open."""

    def _look(self) -> tuple[int, int, int, bytes] | None:
        try:
            with open(self._path, "rb") as handle:
                there = os.fstat(handle.fileno())
                return there.st_ino, there.st_mtime_ns, there.st_size, handle.read(_LONGEST_FILE_BYTES)
        except OSError:
            return None


class LogFile:
    """A log file that the workload writes, followed from the end that it had when a life began.

    A file that got shorter was emptied by a new start, or brought back by Perdure to its state at a checkpoint. What is then read is what
    differs from the bytes that were read before, which are kept in the file `copy`.
    """

    def __init__(self, path: str, pattern: re.Pattern[str], copy: str) -> None:
        self._path = path
        self._pattern = pattern
        self._copy = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._lines = Lines()
        self._inode = -1
        self._offset = 0

    def rearm(self, *, is_restored: bool) -> None:
        """Begin at the end of the file as it is. What a restore brought back shows by itself, as a file that got shorter."""
        if is_restored:
            return
        self._lines = Lines()
        for _ in self.poll():
            pass

    def poll(self) -> Iterator[float]:
        """Yield the counters in the lines that were added."""
        with contextlib.suppress(FileNotFoundError, PermissionError), open(self._path, "rb") as handle:
            there = os.fstat(handle.fileno())
            if there.st_ino != self._inode:
                self._inode, self._offset, self._lines = there.st_ino, 0, Lines()
            elif there.st_size < self._offset:
                self._offset, self._lines = self._common(handle.fileno(), there.st_size), Lines()
            handle.seek(self._offset)
            while content := handle.read(1 << 20):
                os.pwrite(self._copy, content, self._offset)
                self._offset += len(content)
                for line in self._lines.feed(content):
                    number = number_in(line, self._pattern)
                    if number is not None:
                        yield number

    def close(self) -> None:
        """Close the copy."""
        os.close(self._copy)

    def _common(self, descriptor: int, size_bytes: int) -> int:
        """Return how many bytes the file still shares with what was read."""
        at = 0
        while at < size_bytes:
            ours = os.pread(self._copy, min(1 << 20, size_bytes - at), at)
            theirs = os.pread(descriptor, len(ours), at)
            if not ours or ours != theirs:
                return at + next((index for index, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), len(theirs))
            at += len(ours)
        return at


class OwnCheckpointLines:
    """Counters that survive a fault without Perdure, as the workload prints them."""

    def __init__(self, own: OwnCheckpoint) -> None:
        self._pattern = re.compile(own.pattern or "")

    def counter(self, line: str) -> float | None:
        """Return the counter that `line` says was saved, None when it says nothing of that."""
        return number_in(line, self._pattern)


class Saved:
    """Counters that survive a fault without Perdure, as names of files tell them."""

    def __init__(self, own: OwnCheckpoint, working_directory: str, expand: Callable[[str], str]) -> None:
        self._pattern = re.compile(own.pattern or "")
        self._glob = os.path.join(working_directory, expand(own.glob or ""))
        self._seen: set[str] = set()

    def poll(self) -> Iterator[tuple[float, float]]:
        """Yield the counters of checkpoints that appeared since the last look, each with the time at which it was last written (UTC)."""
        for path in sorted(set(glob.glob(self._glob, recursive=True)) - self._seen):
            number = number_in(os.path.basename(path), self._pattern)
            with contextlib.suppress(OSError):
                there = os.stat(path)
                if number is not None and there.st_size > 0:
                    self._seen.add(path)
                    yield number, there.st_mtime


def pattern_of(progress: Progress) -> re.Pattern[str] | None:
    """Return the compiled pattern of a progress signal."""
    return re.compile(progress.pattern) if progress.pattern else None
