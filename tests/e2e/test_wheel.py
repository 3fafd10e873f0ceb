"""The wheel, as a user gets it: built, installed into an empty environment with its runtime dependencies only, started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    """An environment with the wheel and its core dependencies, at the locked versions."""
    folder = tmp_path_factory.mktemp("core")
    lock = (ROOT / "requirements.lock.txt").read_text()
    pins = folder / "pins.txt"
    pins.write_text("\n".join(line.removesuffix(" \\") for line in lock.splitlines() if re.match(r"[a-z0-9]", line)))
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv/bin/python", "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "-c", pins, wheel], check=True)
    return folder / "venv"


def _run(environment: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    bare = {"PATH": f"{environment}/bin:{os.environ['PATH']}", "HOME": str(cwd), "LC_ALL": "C.UTF-8"}
    return subprocess.run(arguments, env=bare, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "perdure/cli/help.txt" in names
    assert "perdure/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.startswith("perdure/report/templates/") for name in names)
    assert any(name.startswith("perdure/history/maps/") for name in names)
    assert not [name for name in names if not name.startswith(("perdure/", "perdure-"))]


def test_the_core_starts_alone_and_names_the_extra(core, tmp_path):
    helped = _run(core, "perdure", "--help", cwd=tmp_path)
    assert (helped.returncode, "decide" in helped.stdout) == (0, True)
    assert _run(core, "perdure", "--version", cwd=tmp_path).stdout.startswith("perdure 0.")
    assert _run(core, "perdure", "config", "show", cwd=tmp_path).returncode == 0
    history = tmp_path / "sacct.txt"
    history.write_text("JobIDRaw|State|ElapsedRaw\n1|COMPLETED|60\n")
    advised = _run(core, "perdure", "advise", str(history), cwd=tmp_path)
    assert advised.returncode == 20
    assert "pip install 'perdure[advise]'" in advised.stderr
    assert "Traceback" not in advised.stderr


def test_the_core_says_what_a_bucket_needs(core, tmp_path):
    listed = _run(core, "perdure", "store", "ls", "--store", "s3://bucket/prefix", cwd=tmp_path)
    assert listed.returncode == 20
    assert "pip install 'perdure[s3]'" in listed.stderr


_OF_THE_ENVIRONMENT = frozenset({"pip", "setuptools", "pkg_resources", "_distutils_hack"})
"""What `python -m venv` puts there before anything is installed; from Python 3.12 on, pip alone."""


def test_the_core_stays_small(core):
    """A compute node installs the core alone: about 50 MB, pip and the environment's own files aside."""
    (packages,) = core.glob("lib/python3*/site-packages")
    size = sum(
        path.stat().st_size
        for path in packages.rglob("*")
        if path.is_file() and path.relative_to(packages).parts[0].partition("-")[0] not in _OF_THE_ENVIRONMENT
    )
    assert size < 50e6
