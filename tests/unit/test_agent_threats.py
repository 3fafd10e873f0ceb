"""The threat model names tests: they have to be there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_test_that_the_threat_model_names_is_there_and_every_threat_names_one():
    text = (_ROOT / "docs/explanation/threat-model.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    for path, name in named:
        tree = ast.parse((_ROOT / path).read_text())
        assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, f"{path}::{name}"
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) > 25
    assert all("::test_" in row for row in rows)
