"""Lines of sacct text that do not fit their header, put together again. Called by `sacct_text` for the few that need it.

sacct escapes nothing: a line break or the delimiter inside a job name, a comment or a submit line breaks its record. The rules:

- A line whose job id and state stand where they should *starts a record*. Only other lines can be continuations.
- A record that is too short takes the following lines until it is whole; one that stays short lacks its last fields.
- A record that is too long has the delimiter inside a free-text field: the last one with which every other field is valid.
- A line that neither starts a record nor completes one continues the last field of the record before it, if that is free text.
- Bytes that are not UTF-8 become private characters, U+EF80 to U+EFFF, one for each byte, so that nothing is lost.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from perdure.history import fields
from perdure.history.summary import Tally

JOIN_LIMIT = 1000
"""Lines that one record may be spread over: a job script given with --wrap is the longest seen."""

_PRIVATE = 0xEF00


def _keep_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(chr(_PRIVATE + byte) for byte in error.object[error.start : error.end]), error.end


KEEP_BYTES = "perdure.keep-bytes"
"""Name of the error handler that `decode` uses."""
codecs.register_error(KEEP_BYTES, _keep_bytes)


def decode(raw: bytes) -> str:
    """Decode UTF-8; each byte 0xNN that is not part of it becomes U+EFNN. `encode` is the inverse."""
    return raw.decode("utf-8", KEEP_BYTES)


def encode(text: str) -> bytes:
    """Bytes of a text from `decode`, the undecodable ones as they were."""
    return b"".join(bytes([ord(char) - _PRIVATE]) if _PRIVATE + 0x80 <= ord(char) <= _PRIVATE + 0xFF else char.encode() for char in text)


_TIME = rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|\d*|Unknown|None"
_COUNT = rb"[\d.]*[KMGT]?"
_DURATION = rb"[\d:.-]*|INVALID|UNLIMITED|Partition_Limit"
_PATTERNS: dict[str, bytes] = {
    **dict.fromkeys(("jobid", "jobidraw"), rb"\d+(?:[_+.]\S*)?"),
    "state": rb"[A-Z][A-Z_]*(?: by .*)?",
    **dict.fromkeys(("submit", "eligible", "start", "end"), _TIME),
    **dict.fromkeys(("dbindex", "uid", "gid", "elapsedraw", "restarts", "cputimeraw", "priority"), rb"\d*"),
    **dict.fromkeys(("nnodes", "allocnodes", "alloccpus", "ncpus", "reqcpus", "reqnodes", "ntasks"), _COUNT),
    **dict.fromkeys(("exitcode", "derivedexitcode"), rb"(?:\d+:\d+)?"),
    **dict.fromkeys(("elapsed", "suspended", "timelimit", "timelimitraw", "planned", "cputime", "totalcpu"), _DURATION),
    "alloctres": rb"(?:[^=,]+=[^,]*(?:,|$))*",
    "reqtres": rb"(?:[^=,]+=[^,]*(?:,|$))*",
}
_NEEDED = ("jobid", "jobidraw", "state", "submit", "start", "end", "elapsedraw", "elapsed")


class Layout(msgspec.Struct, frozen=True):
    """How a file's lines are made: its fields in order, their delimiter, and whether each line ends with one more."""

    names: tuple[str, ...]
    """Canonical names."""
    delimiter: bytes
    trailing: bool
    heading: bytes | None
    """The header line, which may come again where pulls were concatenated."""
    quoted: bool = False
    """Whether cells may stand in double quotes, as exports to CSV have them; sacct itself never quotes."""

    def split(self, text: bytes) -> list[bytes]:
        """Split a line into its pieces."""
        if not self.quoted or b'"' not in text:
            return text.split(self.delimiter)
        decoded = text.decode("utf-8", "surrogateescape")
        rows = csv.reader([decoded], delimiter=self.delimiter.decode())
        return [cell.encode("utf-8", "surrogateescape") for cell in next(rows)]

    @property
    def width(self) -> int:
        """Pieces of a whole line."""
        return len(self.names) + self.trailing


class Record(msgspec.Struct, frozen=True):
    """A record and the line it begins in, 0 where that is not known. `replaces`: the cells of the record read before that it continues."""

    line: int
    cells: tuple[bytes, ...]
    replaces: tuple[bytes, ...] | None = None


class Assembler:
    """Turns lines into records, counting everything in `tally`. A batch is a run of lines that follow each other."""

    def __init__(self, layout: Layout, tally: Tally) -> None:
        self._layout = layout
        self._tally = tally
        self._checks = [(index, re.compile(_PATTERNS[name])) for index, name in enumerate(layout.names) if name in _PATTERNS]
        self._starts = [(index, re.compile(_PATTERNS[name])) for index, name in enumerate(layout.names) if name in _STARTERS]
        self._free = [index for index, name in enumerate(layout.names) if name in fields.FREE_TEXT or name not in fields.KNOWN][::-1]
        self._needed = max(index for index, name in enumerate(layout.names) if name in _NEEDED)
        self._last_is_free = not layout.trailing and len(layout.names) - 1 in self._free
        self.lines_seen = 0
        self.blank_lines_seen = 0

    def records(self, lines: Iterable[tuple[int, bytes]], before: bytes | None = None) -> Iterator[Record]:
        """Yield the records in `lines`, (number, text without its line end). `before` is the line before the first one."""
        queue: deque[tuple[int, bytes]] = deque()
        source = self._counted(lines)
        # The newest record waits here: the next line may belong to its last field.
        waiting = self._previous(before)
        while True:
            if not queue:
                item = next(source, None)
                if item is None:
                    break
                queue.append(item)
            refused = self._tally.unreadable
            made, continues = self._next(queue, source, waiting)
            if made is None and self._tally.unreadable == refused:
                continue
            if waiting is not None and not continues and _is_ours(waiting):
                yield waiting
            waiting = made
        if waiting is not None and _is_ours(waiting):
            yield waiting

    def mend(self, cells: Sequence[bytes]) -> Record | None:
        """Put a row together that was split at a delimiter within a field and lost the empty piece at its end."""
        mended, ambiguous = self._rejoin([*cells, b""])
        if mended is None:
            return None
        self._tally.repaired["delimiter in a field, place uncertain" if ambiguous else "delimiter in a field"] += 1
        return self._record(0, mended)

    def _counted(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for item in lines:
            self.lines_seen += 1
            yield item

    def _previous(self, before: bytes | None) -> Record | None:
        if before is None:
            return None
        pieces = self._layout.split(before)
        whole = len(pieces) == self._layout.width and self._starts_record(pieces)
        return Record(0, tuple(pieces[: len(self._layout.names)])) if whole else None

    def _next(
        self, queue: deque[tuple[int, bytes]], source: Iterator[tuple[int, bytes]], previous: Record | None
    ) -> tuple[Record | None, bool]:
        """Take the next record or line off the queue. Returns the record, if it is one, and whether it is `previous`, continued."""
        layout, tally = self._layout, self._tally
        number, text = queue.popleft()
        if not text.strip():
            tally.blank += 1
            self.blank_lines_seen += 1
            return None, False
        pieces = layout.split(text)
        if self._is_whole(pieces) or (len(pieces) == layout.width and self._starts_record(pieces)):
            return self._record(number, pieces), False
        if text == layout.heading:
            tally.header += 1
        elif text.startswith(b"#"):
            tally.comment += 1
        elif len(pieces) > layout.width:
            return self._too_long(number, text, pieces), False
        else:
            made = self._too_short(number, text, pieces, queue, source)
            return (made, False) if made is not None else self._continued(number, text, pieces, previous)
        return None, False

    def _too_long(self, number: int, text: bytes, pieces: list[bytes]) -> Record | None:
        mended, ambiguous = self._rejoin(pieces)
        if mended is None:
            self._tally.refuse(number, decode(text), f"{len(pieces)} fields where the header has {self._layout.width}")
            return None
        self._tally.repaired["delimiter in a field, place uncertain" if ambiguous else "delimiter in a field"] += 1
        return self._record(number, mended)

    def _too_short(
        self,
        number: int,
        text: bytes,
        pieces: list[bytes],
        queue: deque[tuple[int, bytes]],
        source: Iterator[tuple[int, bytes]],
    ) -> Record | None:
        layout, tally = self._layout, self._tally
        followers = self._followers(pieces, queue, source)
        joined = layout.split(b"\n".join([text, *(line for _, line in followers)]))
        if followers and len(joined) >= layout.width:
            mended = joined if self._is_whole(joined) else self._rejoin(joined)[0] if len(joined) > layout.width else None
            if mended is not None:
                tally.merged += len(followers)
                self.blank_lines_seen += sum(not line.strip() for _, line in followers)
                tally.repaired["line break in a field"] += 1
                return self._record(number, mended)
        queue.extendleft(reversed(followers))
        reached = len(pieces) - self._needed - 1
        # Fields that no analysis can do without must be there; the last one that is may have been cut in the middle.
        if self._starts_record(pieces) and (reached > 0 or (reached == 0 and self._is_valid(pieces))):
            tally.repaired["last fields missing"] += 1
            return self._record(number, [*pieces, *[b""] * (layout.width - len(pieces))])
        return None

    def _continued(self, number: int, text: bytes, pieces: list[bytes], previous: Record | None) -> tuple[Record | None, bool]:
        """A line that is no record of its own: the rest of the one before, or unreadable."""
        starts = self._starts_record(pieces)
        if previous is None or starts or not self._last_is_free:
            why = "cut off after {} of {} fields" if starts else "{} fields where the header has {}"
            self._tally.refuse(number, decode(text), why.format(len(pieces), self._layout.width))
            return None, False
        self._tally.merged += 1
        self._tally.repaired["line break in the last field"] += 1
        cells = (*previous.cells[:-1], previous.cells[-1] + b"\n" + text)
        replaces = previous.replaces if _is_ours(previous) else previous.cells
        return Record(previous.line, cells, replaces), True

    def _followers(
        self, pieces: list[bytes], queue: deque[tuple[int, bytes]], source: Iterator[tuple[int, bytes]]
    ) -> list[tuple[int, bytes]]:
        """Take the lines after a short one that may complete it: as many as are needed, none that starts a record itself."""
        found: list[tuple[int, bytes]] = []
        width = len(pieces)
        while width < self._layout.width and len(found) < JOIN_LIMIT:
            if not queue:
                item = next(source, None)
                if item is None:
                    break
                queue.append(item)
            following = self._layout.split(queue[0][1])
            if queue[0][1] == self._layout.heading or self._starts_record(following):
                break
            found.append(queue.popleft())
            width += len(following) - 1
        return found

    def _rejoin(self, pieces: list[bytes]) -> tuple[list[bytes] | None, bool]:
        """Put the surplus pieces into one free-text field such that all others are valid. Returns them, and whether others would do."""
        surplus = len(pieces) - self._layout.width
        found: list[list[bytes]] = []
        for index in self._free:
            cells = [*pieces[:index], self._layout.delimiter.join(pieces[index : index + surplus + 1]), *pieces[index + surplus + 1 :]]
            if self._is_whole(cells):
                found.append(cells)
                if len(found) > 1:
                    break
        return (found[0], len(found) > 1) if found else (None, False)

    def _record(self, number: int, pieces: list[bytes]) -> Record:
        cells = tuple(pieces[: len(self._layout.names)])
        if not all(map(bytes.isascii, cells)):
            try:
                b"".join(cells).decode()
            except UnicodeDecodeError:
                self._tally.bad_utf8 += 1
        return Record(number, cells)

    def _is_whole(self, pieces: list[bytes]) -> bool:
        return len(pieces) == self._layout.width and (not self._layout.trailing or not pieces[-1]) and self._is_valid(pieces)

    def _is_valid(self, pieces: list[bytes]) -> bool:
        return all(index >= len(pieces) or pattern.fullmatch(pieces[index]) for index, pattern in self._checks)

    def _starts_record(self, pieces: list[bytes]) -> bool:
        """Whether job id and state, as far as the line reaches, are where they should be; one of them must be."""
        reached = [(index, pattern) for index, pattern in self._starts if index < len(pieces)]
        return bool(reached) and all(pattern.fullmatch(pieces[index]) for index, pattern in reached)


def _is_ours(record: Record) -> bool:
    """Whether a record is to be yielded: all but the one before the batch, unless it was continued."""
    return record.line > 0 or record.replaces is not None


_STARTERS = ("jobid", "jobidraw", "state")
