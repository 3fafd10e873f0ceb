"""Did a workload that was brought back leave what an undisturbed one leaves? Lines of output, bytes of files. Called by `matrix`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def of_output(printed: bytes, expected: bytes, ignore: Sequence[str]) -> str | None:
    """Return from which line on two outputs differ and how, None when they are the same. Lines that match one of `ignore` do not count."""
    ours, theirs = (_shown(text, ignore) for text in (printed, expected))
    if ours == theirs:
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((place for place, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
    return f"its output differs from line {at + 1} on: {_line(ours, at)} instead of {_line(theirs, at)}"


def of_files(folder: Path, expected: Path, names: Sequence[str]) -> str | None:
    """Return which of the files `names` is not the same in both folders, None when all are; one that is in neither is the same."""
    return next((f"{name} differs" for name in names if not _is_same(folder / name, expected / name)), None)


def _shown(text: bytes, ignore: Sequence[str]) -> list[bytes]:
    patterns = [re.compile(pattern.encode()) for pattern in ignore]
    return [line for line in text.split(b"\n") if not any(pattern.search(line) for pattern in patterns)]


def _line(lines: Sequence[bytes], at: int) -> str:
    return repr(lines[at].decode("utf-8", "replace")[:80]) if at < len(lines) else "nothing"


def _is_same(one: Path, other: Path) -> bool:
    if not one.is_file() or not other.is_file():
        return not one.exists() and not other.exists()
    with open(one, "rb") as ours, open(other, "rb") as theirs:
        while content := ours.read(_CHUNK_BYTES):
            if content != theirs.read(_CHUNK_BYTES):
                return False
        return not theirs.read(1)
