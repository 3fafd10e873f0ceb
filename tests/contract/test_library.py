"""The library's public door: each name is there, and the examples of the documentation run as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure.model.rates import decode_rates

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A place with the files that the examples read."""
    there = tmp_path_factory.mktemp("library")
    for words in (
        ("history", "simulate", "--gpus", "64", "--days", "30", "--seed", "7", "-o", "fleet"),
        ("history", "import", "fleet/sacct.txt", "-o", "attempts.parquet"),
    ):
        subprocess.run([sys.executable, "-m", "perdure", *words], cwd=there, check=True, capture_output=True)
    (there / "policy.toml").write_text('[costs]\ncheckpoint_cost = "2m"\n')
    return there


def examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def test_every_public_name_is_there():
    assert [name for name in perdure.__all__ if getattr(perdure, name, None) is None] == []
    assert {"__version__", *perdure._PUBLIC} == set(perdure.__all__)


@pytest.mark.parametrize("page", ["README.md", "docs/reference/library.md"])
def test_the_examples_run_as_they_are_printed(folder, page):
    found = examples(page)
    assert found
    for code in found:
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), code
        assert done.stdout.strip()


def test_the_rates_that_the_example_writes_are_those_of_the_command_line(folder):
    (code,) = examples("docs/reference/library.md")
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    words = ("advise", "attempts.parquet", "--rates", "other.json")
    subprocess.run([sys.executable, "-m", "perdure", *words], cwd=folder, check=True, capture_output=True)
    written, other = (decode_rates((folder / name).read_bytes()) for name in ("rates.json", "other.json"))
    assert written == other
    assert written.gpu
