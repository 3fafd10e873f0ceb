"""Bringing CRIU with the real apt: refused without a signature, and, where the network is there, brought and proved."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import criu_tree
import msgspec
import pytest

from perdure import errors
from perdure.checkpoint.criu import apt, locate, prefix

pytestmark = pytest.mark.skipif(
    shutil.which("apt-get") is None or not any(Path(path).is_file() for path in apt.KEYRINGS),
    reason="no apt, or no keys of Debian's archive",
)


def _bring(root: Path, mirror: str | None) -> prefix.Prefix:
    return prefix.bring(root, environ=os.environ, now_ns=time.time_ns(), mirror=mirror, say=lambda _: None)


def test_an_archive_without_debian_s_signature_is_refused_and_nothing_is_left(tmp_path):
    # As anybody could set up: every suite, with a package called criu, signed by nobody.
    archive = tmp_path / "archive"
    architecture = subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()
    for suite in prefix.SUITES:
        index = archive / "dists" / suite / "main" / f"binary-{architecture}"
        index.mkdir(parents=True)
        (index / "Packages").write_text(f"Package: criu\nVersion: 9.9\nArchitecture: {architecture}\nFilename: criu.deb\nSize: 1\n")
        (archive / "dists" / suite / "Release").write_text(f"Origin: Debian\nSuite: {suite}\nCodename: {suite}\nComponents: main\n")
    for folder in [tmp_path, *archive.rglob("*")]:
        folder.chmod(0o755)
    root = tmp_path / "prefix" / "criu"
    with pytest.raises(errors.EnvironmentUnfit) as caught:
        _bring(root, f"file:{archive}")
    assert "signed" in str(caught.value)
    assert "debian-archive-keyring" in caught.value.hint
    assert not root.exists()


def test_a_mirror_that_does_not_answer_is_named(tmp_path):
    with pytest.raises(errors.EnvironmentUnfit) as caught:
        _bring(tmp_path / "criu", "http://127.0.0.1:9/debian")
    assert "127.0.0.1:9" in str(caught.value)
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told_before_anything_is_asked_for(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(errors.OutputError, match="cannot write"):
        _bring(tmp_path / "file" / "criu", "http://127.0.0.1:9/debian")


@pytest.mark.parametrize("mirror", ["http://host/debian forky main\ndeb http://evil/", "[trusted=yes] http://host/debian", "host"])
def test_what_is_no_address_is_no_mirror(tmp_path, mirror):
    with pytest.raises(errors.UsageError):
        _bring(tmp_path / "criu", mirror)


@pytest.mark.slow
@pytest.mark.criu
def test_a_criu_is_brought_twice_and_works(tmp_path):
    # Slow: reads a package index over the network. The system's own state is the same before and after.
    watched = [Path("/var/lib/apt/lists"), Path("/var/cache/apt"), Path("/var/lib/dpkg/status")]
    before = [path.stat().st_mtime_ns for path in watched]
    root = tmp_path / "criu"
    first = _bring(root, None)
    assert [path.stat().st_mtime_ns for path in watched] == before
    assert prefix.version_of(first.criu_version) >= prefix.MINIMUM
    assert first.size_bytes < 32 << 20
    assert not list(root.rglob("*python*"))
    second = _bring(root, None)
    assert second.made_ns > first.made_ns
    assert os.listdir(tmp_path) == ["criu"]
    where = msgspec.structs.replace(criu_tree.places(), named=str(root), named_by="the test", cache=str(tmp_path / "cache"))
    found = locate.find(where)
    assert found.prefix == str(root)
    assert found.version == first.criu_version
    assert locate.find_init(msgspec.structs.replace(where, search_path="", prefixes=())).path == str(root / first.init)


def test_a_mirror_that_is_out_of_date_is_told_from_one_that_does_not_answer(tmp_path):
    # An apt-get that says what a real one said; an archive that is old and yet signed cannot be made here.
    programs, folder = tmp_path / "bin", tmp_path / "archive"
    programs.mkdir()
    folder.mkdir()
    program = programs / "apt-get"
    program.write_text(
        "#!/bin/sh\necho 'E: Release file for http://host/debian/dists/forky/InRelease is expired (invalid since 25d 3h 50min 57s)."
        " Updates for this repository will not be applied.'\nexit 100\n"
    )
    program.chmod(0o755)
    environ = {"PATH": f"{programs}:{os.environ['PATH']}"}
    archive = apt.Archive(folder, mirror="http://host/debian", suite="forky", environ=environ)
    with pytest.raises(errors.EnvironmentUnfit, match="is expired") as caught:
        archive.update()
    assert "Check-Valid-Until" in caught.value.hint
