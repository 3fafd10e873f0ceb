"""How every command speaks: results on stdout, everything else on stderr, `--json` for programs.

Text that came from a history (job names, paths, users) is untrusted: it passes `printable` before it meets a terminal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
from cyclopts import Parameter
from rich.console import Console, ConsoleDimensions

from perdure.base import settings, text


@Parameter(name="*")
@dataclasses.dataclass(frozen=True)
class Common:
    """Options that every command takes."""

    json: Annotated[bool, Parameter(negative="", help="Print the result as one JSON document on stdout.")] = False
    quiet: Annotated[bool, Parameter(alias="-q", negative="", help="No progress and no notes on stderr.")] = False
    config: Annotated[Path | None, Parameter(help="Configuration file to use instead of the usual three.")] = None


printable = text.printable
"""For untrusted text; see `base.text`."""


def load_settings(common: Common, **flags: str | None) -> dict[str, settings.Value]:
    """Resolve the configuration for a command; `flags` with underscores for dashes. Raises `errors.SettingError`."""
    return settings.load(
        os.environ,
        working_directory=Path.cwd(),
        explicit_file=common.config,
        flags={key.replace("_", "-"): value for key, value in flags.items()},
    )


threads = settings.threads
"""The setting `threads` as a number."""


_LEAST_WIDTH = 20
"""Columns. In fewer, help and tables are not drawn at all, or never come to their end; the terminal itself may break the lines."""
_USUAL_WIDTH = 80


class Stream(Console):
    """rich's console, whose own answer to a reader that went away is exit status 1; ours is in `perdure.__main__`."""

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and lines to draw in, whatever the terminal or COLUMNS says; 0 columns are none that are known."""
        width, height = super().size
        return ConsoleDimensions(max(width or _USUAL_WIDTH, _LEAST_WIDTH), height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def on_broken_pipe(self) -> None:
        """Let the broken pipe reach the top."""
        raise BrokenPipeError


def out() -> Console:
    """Console for results. Plain and unwrapped when stdout is not a terminal, so that grep and awk see whole lines."""
    terminal = sys.stdout.isatty()
    return Stream(file=sys.stdout, highlight=False, emoji=False, markup=False, soft_wrap=not terminal, width=None if terminal else 200)


def err() -> Console:
    """Console for notes, progress and errors."""
    return Stream(file=sys.stderr, highlight=False, emoji=False, markup=False, soft_wrap=True)


def print_json(result: Any) -> None:
    """Print `result` (a record, or plain data) as one JSON document. Infinite and undefined numbers become null.

    Bytes of names that are no text are shown as ``\\xff``.
    """
    try:
        encoded = msgspec.json.encode(result)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_as_text(msgspec.to_builtins(result, str_keys=True)))
    write_json(sys.stdout, msgspec.json.format(encoded, indent=2))


def write_json(stream: TextIO, document: bytes) -> None:
    """Write `document` as a line, or lines. What `stream` cannot encode is escaped as JSON has it, and so the same when it is read."""
    text = document.decode("utf-8") + "\n"
    try:
        text.encode(stream.encoding)
    except UnicodeEncodeError:
        text = re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
    stream.write(text)


def _as_text(value: Any) -> Any:
    match value:
        case str():
            return text.visible(value)
        case dict():
            return {_as_text(key): _as_text(one) for key, one in value.items()}
        case list() | tuple():
            return [_as_text(one) for one in value]
        case _:
            return value


def note(common: Common, text: str) -> None:
    """Say something beside the result, on stderr, unless --quiet."""
    if not common.quiet:
        err().print(text)


@contextlib.contextmanager
def progress(common: Common, label: str, total: float | None, *, unit: str = "bytes") -> Iterator[Callable[[float], None]]:
    """Show progress of long work on stderr: amount, rate and ETA. Yields a function to call with the amount done so far.

    `unit` is ``bytes`` or a plural noun. Nothing is shown with --quiet or when stderr is not a terminal.
    """
    if common.quiet or not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich import progress as bars

    amount: list[bars.ProgressColumn] = (
        [bars.DownloadColumn(binary_units=True), bars.TransferSpeedColumn()]
        if unit == "bytes"
        else [bars.MofNCompleteColumn(), bars.TextColumn(unit)]
    )
    with bars.Progress(
        bars.TextColumn("{task.description}"), bars.BarColumn(), *amount, bars.TimeRemainingColumn(), console=err(), transient=True
    ) as display:
        task = display.add_task(label, total=total)
        yield lambda done: display.update(task, completed=done)
