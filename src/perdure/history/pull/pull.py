"""Pull a history: for each day not yet there, ask sacct, split what is too wide, ask again what failed. For the command line."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import files
from perdure.history.pull import fields, sacct, state, windows

LONGEST_WAIT_S = 60.0


class Request(msgspec.Struct, frozen=True):
    """What to pull, and how gently."""

    span: windows.Window
    folder: Path
    """Where the days' files and the manifest are kept."""
    cluster: str | None = None
    afresh: bool = False
    pause_s: float = 0.0
    """Rest between two questions, for the database's sake."""
    retries: int = 5
    """How often a failed question is asked again, after 2, 4, 8 … 60 seconds."""


class Surroundings(msgspec.Struct, frozen=True):
    """What the outside world gives: the time, rest, and a place to tell of progress."""

    now: Callable[[], datetime.datetime]
    """Naive UTC."""
    sleep: Callable[[float], None]
    progress: Callable[[int, windows.Window], None]
    """Called with the number of days done and the day that comes next."""
    note: Callable[[str], None]
    """Called with a sentence on something that was mended or is worth knowing."""


class Pulled(msgspec.Struct, frozen=True):
    """What a pull got."""

    span: windows.Window
    sacct: str
    fields: tuple[str, ...]
    missing_fields: tuple[str, ...]
    files: tuple[str, ...]
    """Paths of the days' texts, oldest first."""
    days: int
    asked_days: int
    """Days asked for now; the others were there."""
    split_days: tuple[str, ...]
    empty_days: tuple[str, ...]
    """Days without a record that are suspicious, for other days have many."""
    lines: int
    notes: tuple[str, ...]
    """What sacct said beside its answers."""


def pull(command: sacct.Sacct, request: Request, around: Surroundings) -> Pulled:
    """Pull all days of `request.span` and return what is there afterwards.

    It may be stopped at any time; the same request then goes on with the first day that is not there.

    Raises `errors.SchedulerUnavailable` when sacct keeps failing (the days until then are kept), and what `sacct` and
    `state` raise.
    """
    version, listed = command.probe()
    chosen = fields.choose(fields.parse_helpformat(listed))
    wanted = state.Manifest(state.FORMAT, chosen.names, sacct.DELIMITER, request.cluster, version, {})
    days = windows.cut_into_days(request.span)
    got: list[state.Day] = []
    asked = 0
    with state.opened(request.folder, wanted, afresh=request.afresh) as kept:
        run = _Run(command, request, around, kept)
        for number, window in enumerate(days):
            around.progress(number, window)
            day = kept.done(window)
            if day is None:
                if asked:
                    around.sleep(request.pause_s)
                day = run.pull_day(window)
                asked += 1
            got.append(day)
        paths = tuple(str(kept.file(window)) for window in days)
    around.progress(len(days), days[-1])
    return Pulled(
        span=request.span,
        sacct=version,
        fields=chosen.names,
        missing_fields=chosen.missing,
        files=paths,
        days=len(days),
        asked_days=asked,
        split_days=tuple(window.name for window, day in zip(days, got, strict=True) if day.questions > 1),
        empty_days=_suspiciously_empty(days, got),
        lines=sum(day.lines for day in got),
        notes=tuple(dict.fromkeys(note for day in got for note in day.notes)),
    )


class _Run(msgspec.Struct, frozen=True):
    """What stays the same from one day to the next."""

    command: sacct.Sacct
    request: Request
    around: Surroundings
    kept: state.State

    def pull_day(self, window: windows.Window) -> state.Day:
        """Ask for one day, in as many windows as it takes, into one file with one header; remember it."""
        asked = self.around.now()
        pending, questions, notes = [window], 0, dict[str, None]()
        with files.replacing(self.kept.file(window)) as whole, _scratch(self.kept.folder) as part:
            while pending:
                piece = pending.pop(0)
                result = self._ask_patiently(piece, part)
                if result.answer is sacct.Answer.TOO_WIDE:
                    pending[:0] = self._split(piece, result)
                    continue
                _append(part, whole, with_header=questions == 0)
                questions += 1
                notes.update(dict.fromkeys(result.said))
                if pending:
                    self.around.sleep(self.request.pause_s)
            day = state.Day(window.start, window.end, asked, _count_lines(whole) - 1, whole.stat().st_size, questions, tuple(notes))
        self.kept.record(window, day)
        return day

    def _split(self, window: windows.Window, result: sacct.Result) -> tuple[windows.Window, windows.Window]:
        halves = windows.split(window)
        if halves is None:
            raise _gave_up(window, result)
        self.around.note(f"{window.start.isoformat()}: {result.said[-1]}; asking for two halves of {halves[0].seconds // 60} minutes")
        return halves

    def _ask_patiently(self, window: windows.Window, target: Path) -> sacct.Result:
        """Ask; on a transient failure, wait and ask again, up to `request.retries` times."""
        for attempt in range(self.request.retries + 1):
            result = self.command.ask(window, self.kept.manifest.fields, target)
            if result.answer is not sacct.Answer.TRANSIENT:
                return result
            if attempt < self.request.retries:
                wait_s = min(2.0 ** (attempt + 1), LONGEST_WAIT_S)
                self.around.note(f"{window.start.isoformat()}: {result.said[-1]}; asking again in {wait_s:g} s")
                self.around.sleep(wait_s)
        raise _gave_up(window, result)


def _gave_up(window: windows.Window, result: sacct.Result) -> errors.SchedulerUnavailable:
    return errors.SchedulerUnavailable(
        f"sacct has no answer for {window.start.isoformat()} to {window.end.isoformat()}: {'; '.join(result.said)}",
        hint="the days until then are kept: give the same command again to go on",
    )


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".part.", suffix=".tmp") as handle:
            yield Path(handle.name)
    except OSError as error:
        raise errors.OutputError(
            f"cannot write in {folder}: {error.strerror}", hint="free some space, or choose another --raw-dir"
        ) from error


def _append(part: Path, whole: Path, *, with_header: bool) -> None:
    with open(part, "rb") as source, open(whole, "ab") as target:
        if not with_header:
            source.readline()
        shutil.copyfileobj(source, target, 1024 * 1024)


def _count_lines(path: Path) -> int:
    with open(path, "rb") as handle:
        return sum(block.count(b"\n") for block in iter(lambda: handle.read(1024 * 1024), b""))


def _suspiciously_empty(days: list[windows.Window], got: list[state.Day]) -> tuple[str, ...]:
    """Whole days without any record although half of all days have ten or more: the database was down, purged or elsewhere."""
    if statistics.median(day.lines for day in got) < 10:
        return ()
    return tuple(window.name for window, day in zip(days, got, strict=True) if day.lines == 0 and window.seconds == 86400)
