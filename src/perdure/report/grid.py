"""Aligned columns, sentences and lists: on a terminal they fit its width, down a pipe they are whole. Called by `terminal`.

On a terminal the columns that are least needed go first, then the first column is abridged with an ellipsis. Down a pipe
nothing is dropped or abridged and a row is a line, so that grep and awk can be used.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

Row = Sequence[str | Text]

_SHORTEST_NAME = 12  # what is left of a name must still tell it from its neighbours
_GAP = "  "


class Column(msgspec.Struct, frozen=True):
    """A column: the higher `rank`, the earlier it is dropped, with all others of its rank; 0 always stays. `left` is for text."""

    header: str
    rank: int = 0
    left: bool = False


def print_grid(columns: Sequence[Column], rows: Sequence[Row], console: Console, *, footers: Sequence[Row] = ()) -> None:
    """Print `rows` under the headers, then `footers` in bold. Every row has a cell for every column."""
    every = [[column.header for column in columns], *rows, *footers]
    widths = [max(cell_len(str(row[index])) for row in every) for index in range(len(columns))]
    kept = _fitting(columns, widths, console.width) if console.is_terminal else list(range(len(columns)))
    lines = [_line([Text(column.header, style="dim") for column in columns], columns, widths, kept)]
    lines.extend(_line(row, columns, widths, kept) for row in rows)
    for footer in footers:
        line = _line(footer, columns, widths, kept)
        line.stylize("bold")
        lines.append(line)
    for line in lines:
        console.print(line, soft_wrap=True)


def bullets(title: str, lines: Sequence[str], console: Console) -> None:
    """Print a titled list, or nothing when it is empty."""
    if not lines:
        return
    heading(title, console)
    for line in lines:
        say(f"- {line}", console)


def say(line: str, console: Console) -> None:
    """Print a sentence: wrapped on a terminal, one line down a pipe."""
    console.print(Text(line), soft_wrap=not console.is_terminal)


def heading(title: str, console: Console) -> None:
    """Print a heading after an empty line."""
    console.print()
    console.print(Text(title, style="bold"))


def _line(row: Row, columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int]) -> Text:
    line = Text()
    for place, index in enumerate(kept):
        cell = row[index]
        text = cell.copy() if isinstance(cell, Text) else Text(cell)
        text.truncate(widths[index], overflow="ellipsis")
        padding = " " * (widths[index] - text.cell_len)
        line.append(_GAP if place else "")
        line.append_text(text if columns[index].left else Text(padding).append_text(text))
        line.append(padding if columns[index].left else "")
    line.rstrip()
    return line


def _fitting(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """Choose the columns to keep, and set the first one's width to what they leave of `room`."""
    kept = list(range(len(columns)))

    def others() -> int:
        return sum(widths[index] + len(_GAP) for index in kept[1:])

    shortest = min(widths[0], _SHORTEST_NAME)
    while shortest + others() > room:
        rank = max(columns[index].rank for index in kept)
        if rank == 0:
            break
        kept = [index for index in kept if columns[index].rank < rank]
    widths[0] = min(widths[0], max(shortest, room - others()))
    return kept
