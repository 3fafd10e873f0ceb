"""The header of sacct text: which field stands where, and what is between them. Called by `sacct_text`."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from perdure import errors
from perdure.history import fields
from perdure.history.lines import Layout

_DELIMITERS = (b"^|^", b"|#", b"||", b"|", b"\t", b";", b"\x1f", b"~", b",")
"""Tried in this order where there is no header to learn from."""


def find(head: bytes, name: str) -> tuple[Layout, int]:
    """Find the header in a file's first bytes. Returns its layout and the number of lines up to and including it.

    Raises `errors.InputFormat`, with what to do, for sacct's table for people and for text without a header.
    """
    lines = head.removeprefix(b"\xef\xbb\xbf").splitlines()
    for index, line in enumerate(lines):
        if not line.strip() or line.startswith(b"#"):
            continue
        following = lines[index + 1] if index + 1 < len(lines) else b""
        return _layout(line, following, name), index + 1
    raise errors.InputEmpty(
        f"{name}: nothing but blank lines and comments",
        hint=f"pull the history with: {fields.pull_command('State', 'Start', 'End', 'ElapsedRaw')}",
    )


def given(names: Sequence[str], head: bytes, name: str) -> Layout:
    """Layout of a file without a header whose fields the caller names. Raises `errors.InputFormat` when nothing separates them."""
    canonical = tuple(fields.canonical(field) for field in names)
    lines = [line for line in head.splitlines() if line.strip() and not line.startswith(b"#")][:200]
    for delimiter in _DELIMITERS:
        widths = [line.count(delimiter) + 1 for line in lines]
        # Short lines are mended later; here it is enough that most lines have about as many fields as there are names.
        if widths and sorted(widths)[len(widths) // 2] >= max(2, len(canonical) - 2):
            trailing = sum(line.endswith(delimiter) and width == len(canonical) + 1 for line, width in zip(lines, widths, strict=True))
            layout = Layout(canonical, delimiter, trailing * 2 > len(lines), None, quoted=_is_quoted(lines[0], delimiter))
            _check(layout, name)
            return layout
    raise errors.InputFormat(
        f"{name}: its lines do not have the {len(canonical)} fields that were named",
        hint="name every field of a line, in order, with --fields",
    )


def _layout(line: bytes, following: bytes, name: str) -> Layout:
    match = re.match(rb'\s*"?[A-Za-z]\w*"?([^\w\s"]+|\t|\s+|$)', line)
    delimiter = match.group(1) if match else b""
    if not delimiter and _is_field(line.strip()):
        raise errors.InputFormat(
            f"{name}: only one field, {line.decode(errors='replace').strip()}",
            hint=f"pull the history with: {fields.pull_command('State', 'Start', 'End', 'ElapsedRaw')}",
        )
    if delimiter and delimiter != b"\t" and not delimiter.strip():
        _refuse_table(line, following, name)
    pieces = line.split(delimiter) if delimiter else [line]
    quoted = _is_quoted(line, delimiter)
    if quoted:
        pieces = [piece.encode() for piece in next(csv.reader([line.decode("utf-8", "replace")], delimiter=delimiter.decode()))]
    trailing = len(pieces) > 2 and not pieces[-1].strip()
    names = pieces[:-1] if trailing else pieces
    known = sum(_is_field(piece) for piece in names)
    if known < 2 or known * 2 < len(names):
        raise errors.InputFormat(
            f"{name}: its first line is no header of sacct fields",
            hint="for a file without header name the fields with --fields JobID,State,…; for other CSV give --map; or pull it again"
            " with sacct -P and without -n",
        )
    canonical = tuple(fields.canonical(piece.decode("utf-8", "replace")) for piece in names)
    layout = Layout(canonical, delimiter, trailing, line, quoted=quoted)
    _check(layout, name)
    return layout


def _is_quoted(line: bytes, delimiter: bytes) -> bool:
    """Tell whether the cells of a file that begins with `line` may stand in double quotes: with commas always, else when its first does.

    sacct never quotes, so that a quote within a cell means nothing there.
    """
    return delimiter == b"," or (len(delimiter) == 1 and delimiter.isascii() and line.lstrip().startswith(b'"'))


def _is_field(piece: bytes) -> bool:
    return fields.canonical(piece.decode("utf-8", "replace")) in fields.KNOWN


def _refuse_table(line: bytes, following: bytes, name: str) -> None:
    words = line.split()
    if sum(map(_is_field, words)) * 2 > len(words) or re.fullmatch(rb"[- ]+", following):
        raise errors.InputFormat(
            f"{name}: this is sacct's table for people, which cuts values off (OUT_OF_ME+)",
            hint=f"pull it again with -P: {fields.pull_command('State', 'Start', 'End', 'ElapsedRaw')}",
        )


def _check(layout: Layout, name: str) -> None:
    """Refuse a layout that cannot identify a record."""
    if not {"jobid", "jobidraw"} & set(layout.names):
        raise errors.InputFormat(
            f"{name}: a required field is missing: JobIDRaw (or JobID)",
            hint=f"pull the history with it: {fields.pull_command('State', 'Start', 'End', 'ElapsedRaw')}",
        )
    if not {"state", "elapsedraw", "elapsed", "start", "end", "submit", "nnodes"} & set(layout.names):
        raise errors.InputFormat(
            f"{name}: required fields are missing: State and ElapsedRaw",
            hint=f"pull the history with them: {fields.pull_command('State', 'Start', 'End', 'ElapsedRaw')}",
        )
