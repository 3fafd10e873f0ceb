"""Read a history for a test: text in, rows and summary out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure.history import importer, table
from perdure.history.summary import ImportSummary


def read(*paths: Path, **request: Any) -> tuple[list[dict[str, Any]], ImportSummary]:
    """Import files; return their attempts, as dictionaries in order of submission and id, and the summary, every line accounted for."""
    connection = table.connect(threads=2)
    summary = importer.import_files(connection, list(paths), importer.Request(**request))
    assert summary.unaccounted == 0, summary
    assert summary.attempts == sum(file.attempts for file in summary.files) - summary.skipped.get("duplicate", 0)
    found = connection.execute("SELECT * FROM attempts ORDER BY submit, start, raw_id, name, elapsed_s")
    names = [column[0] for column in found.description]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    assert len(rows) == summary.attempts
    return rows, summary


def read_text(folder: Path, content: str | bytes, **request: Any) -> tuple[list[dict[str, Any]], ImportSummary]:
    """Import one text."""
    path = folder / "sacct.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read(path, **request)
