"""Where packages are asked for, and how a prefix appears: whole or not at all, and never over something else."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.checkpoint.criu import apt, prefix

DEB822 = """\
Types: deb
# http://archive.example/20250520T000000Z
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEY865UxYJKwYBBAHaRw8BAQdAd7Z0srwuhlB6JKFkcf4HU4SSS/xcRfwEQWzr
 -----END PGP PUBLIC KEY BLOCK-----

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://sources.example/debian
Suites: bookworm
Components: main

Types: deb deb-src
URIs: http://first.example/debian
 http://second.example/debian
Suites: stable
Components: main contrib
"""


def test_paragraphs_of_sources_are_read_as_apt_reads_them():
    sources = apt.parse_paragraphs(DEB822)
    assert [source.uris for source in sources] == [
        ("http://mirror.example/debian",),
        ("http://mirror.example/debian-security",),
        ("http://first.example/debian", "http://second.example/debian"),
    ]
    assert sources[0].suites == ("bookworm", "bookworm-updates")


def test_lines_of_sources_are_read_as_apt_reads_them():
    sources = apt.parse_lines(
        "# deb http://no.example/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] https://mirror.example/debian bookworm main contrib # why\n"
        "deb-src http://no.example/debian bookworm main\n"
        "  deb mirror+file:/etc/apt/mirrors.txt bookworm main\n"
        "deb https://packages.example/apt cloud-bookworm main\n"
    )
    assert [source.uris[0] for source in sources] == [
        "https://mirror.example/debian",
        "mirror+file:/etc/apt/mirrors.txt",
        "https://packages.example/apt",
    ]
    assert sources[0].components == ("main", "contrib")


def test_the_mirror_of_the_system_s_own_suite_comes_first_and_others_packages_never():
    sources = [
        *apt.parse_lines("deb https://packages.example/apt cloud-bookworm main\ndeb http://old.example/debian stable main\n"),
        *apt.parse_lines("deb cdrom:[Debian]/ bookworm main\ndeb http://vendor.example/linux bookworm stable\n"),
        *apt.parse_paragraphs(DEB822),
    ]
    assert apt.choose_mirrors(sources, "bookworm") == [
        "http://mirror.example/debian",
        "http://old.example/debian",
        "http://first.example/debian",
        "http://second.example/debian",
    ]


@given(st.text())
def test_any_text_of_sources_is_read_or_passed_over(text):
    for source in [*apt.parse_lines(text), *apt.parse_paragraphs(text)]:
        assert isinstance(source.uris, tuple)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("4.2.1-1", (4, 2, 1)), ("2:4.2.1+dfsg-3~bpo12", (4, 2, 1)), ("4.2.1", (4, 2, 1)), ("4.10", (4, 10)), ("", ()), ("git-1", ())],
)
def test_versions_are_compared_as_numbers(text, numbers):
    assert prefix.version_of(text) == numbers


def _prefix_at(root, *, made_ns: int = 1) -> prefix.Prefix:
    for name in ("sbin/criu", "lib/ld.so", "bin/tini-static"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    record = prefix.Prefix(
        format=prefix.FORMAT,
        criu="sbin/criu",
        criu_version="4.2.1",
        loader="lib/ld.so",
        libraries=("lib",),
        init="bin/tini-static",
        suite="forky",
        made_ns=made_ns,
        size_bytes=0,
        packages=(prefix.BroughtPackage("criu", "4.2.1-1", "ab"),),
    )
    (root / prefix.RECORD).write_bytes(msgspec.json.encode(record))
    return record


def test_a_prefix_says_how_its_criu_is_started(tmp_path):
    record = _prefix_at(tmp_path)
    assert prefix.read(tmp_path) == record
    assert record.argv(tmp_path) == (str(tmp_path / "lib/ld.so"), "--library-path", str(tmp_path / "lib"), str(tmp_path / "sbin/criu"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda root: (root / prefix.RECORD).unlink(),
        lambda root: (root / prefix.RECORD).write_text("{"),
        lambda root: (root / "sbin/criu").unlink(),
        lambda root: (root / prefix.RECORD).write_bytes((root / prefix.RECORD).read_bytes().replace(b'"format":1', b'"format":2')),
        lambda root: (root / prefix.RECORD).write_bytes((root / prefix.RECORD).read_bytes().replace(b'"sbin/criu"', b'"/bin/sh"')),
        lambda root: (root / prefix.RECORD).write_bytes((root / prefix.RECORD).read_bytes().replace(b'"sbin/criu"', b'"lib/../../x"')),
    ],
    ids=["no record", "half a record", "no criu", "a newer format", "a path outside", "a path that climbs"],
)
def test_what_is_no_whole_prefix_is_not_used(tmp_path, damage):
    _prefix_at(tmp_path)
    damage(tmp_path)
    assert prefix.read(tmp_path) is None


def test_a_newer_prefix_takes_the_place_of_the_old_one(tmp_path):
    root, fresh = tmp_path / "criu", tmp_path / "fresh"
    _prefix_at(root, made_ns=1)
    _prefix_at(fresh, made_ns=2)
    prefix.put_in_place(fresh, root)
    found = prefix.read(root)
    assert found is not None
    assert found.made_ns == 2
    old = prefix.read(fresh)
    assert old is not None
    assert old.made_ns == 1


def test_a_damaged_prefix_is_replaced(tmp_path):
    root, fresh = tmp_path / "criu", tmp_path / "fresh"
    _prefix_at(root)
    (root / "sbin/criu").unlink()
    _prefix_at(fresh)
    prefix.put_in_place(fresh, root)
    assert prefix.read(root) is not None


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_something_else_at_its_place_stays(tmp_path, kind):
    root, fresh, other = tmp_path / "criu", tmp_path / "fresh", tmp_path / "other"
    _prefix_at(fresh)
    if kind == "folder":
        root.mkdir()
        (root / "precious").write_text("mine")
    elif kind == "file":
        root.write_text("mine")
    else:
        other.mkdir()
        root.symlink_to(other)
    with pytest.raises(errors.OutputError):
        prefix.put_in_place(fresh, root)
    assert prefix.read(fresh) is not None
    assert os.listdir(root) == ["precious"] if kind == "folder" else root.is_symlink() or root.read_text() == "mine"
