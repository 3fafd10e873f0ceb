"""`perdure effects export`: every step as JSON lines, for an archive or another tool."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import IO, Annotated

import msgspec
from cyclopts import Parameter

from perdure.base import files
from perdure.cli import console
from perdure.cli.effects_ledger import LedgerOption, address, document, open_ledger
from perdure.effects import Ledger


def export(
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help="File to write, private to you. Default: stdout.")] = None,
    ledger: LedgerOption = None,
    common: console.Common = console.Common(),
) -> None:
    """Print every step, done or not, as one JSON document a line, ordered by key. With --json, as one document.

    For example:

      perdure effects export --ledger effects.db -o steps.jsonl
    """
    with open_ledger(common, ledger) as opened:
        opened.counts()  # an absent ledger is told before a file is made
        files.refuse_same(output, *(address(common, ledger) + suffix for suffix in ("", "-wal", "-shm", "-journal")))
        if output is None:
            _write(opened, sys.stdout, common)
            return
        with files.replacing(output) as temporary, open(temporary, "w", encoding="utf-8") as handle:
            number = _write(opened, handle, common)
    console.note(common, f"{number} written to {console.printable(str(output))}")


def _write(ledger: Ledger, handle: IO[str], common: console.Common) -> int:
    number = 0
    with contextlib.closing(ledger.rows()) as rows:
        if common.json:
            everything = [document(row, seen) for row, seen in rows]
            handle.write(msgspec.json.encode(everything).decode() + "\n")
            return len(everything)
        for row, seen in rows:
            handle.write(msgspec.json.encode(document(row, seen)).decode() + "\n")
            number += 1
    return number
