"""Links that a dump rests on: made again to the very file, with the checkpoint's content, and never through somebody else's."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec
import pytest

from perdure import errors
from perdure.checkpoint import links
from perdure.checkpoint.images import container, wire
from perdure.checkpoint.links import Link


def regular(name: Path) -> bytes:
    def field(number: int, value: int | bytes) -> bytes:
        kind = 0 if isinstance(value, int) else 2
        body = wire.encode_varint(value) if isinstance(value, int) else wire.encode_varint(len(value)) + value
        return wire.encode_varint(number << 3 | kind) + body

    inner = field(1, 1) + field(2, 0) + field(3, 0) + field(6, str(name).lstrip("/").encode())
    return field(1, 1) + field(2, 1) + field(3, inner)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def dump_of(images: Path, *paths: Path) -> None:
    head = struct.pack("<II", container.COMMON, container.FILES)
    (images / "files.img").write_bytes(container.assemble(head, [regular(path) for path in paths]))


def listed(images: Path, *told: Link) -> None:
    (images / links.FILE).write_bytes(msgspec.json.encode(told))


def test_a_dump_without_links_lists_none(images: Path, place: Path):
    dump_of(images, place / "file", place / "link_remapped")
    assert links.keep(images) == ()
    assert links.put_back(images) == ()
    assert not (images / links.FILE).exists()


def test_a_link_is_made_again_to_the_living_file(images: Path, place: Path):
    (place / "alive").write_text("content")
    os.link(place / "alive", place / "link_remap.3")
    (place / "other").write_text("content")
    dump_of(images, place / "file", place / "link_remap.3")
    (kept,) = links.keep(images)
    assert (kept.path, kept.names) == (str(place / "link_remap.3"), ("alive",))
    (place / "link_remap.3").unlink()
    assert links.put_back(images) == (kept,)
    assert os.path.samefile(place / "alive", place / "link_remap.3")
    links.remove((kept,))
    assert not (place / "link_remap.3").exists()


def test_one_that_is_there_already_as_the_same_file_is_taken(images: Path, place: Path):
    (place / "alive").write_text("content")
    os.link(place / "alive", place / "link_remap.3")
    dump_of(images, place / "link_remap.3")
    links.keep(images)
    links.put_back(images)
    assert os.path.samefile(place / "alive", place / "link_remap.3")


def test_content_in_memory_is_put_back_into_the_same_file_or_a_new_one(images: Path, place: Path):
    (images / "perdure-link-0").write_bytes(b"then")
    told = Link(str(place / "link_remap.1"), ("sem.a", "sem.b"), 0o640, os.getuid(), os.getgid(), "perdure-link-0")
    listed(images, told)
    (place / "sem.a").write_bytes(b"a longer content of now")
    inode = (place / "sem.a").stat().st_ino
    links.put_back(images)
    assert (place / "sem.a").read_bytes() == b"then"
    assert {(place / name).stat().st_ino for name in ("sem.a", "sem.b", "link_remap.1")} == {inode}
    for path in place.iterdir():
        path.unlink()
    links.put_back(images)
    assert len({(place / name).stat().st_ino for name in ("sem.a", "sem.b", "link_remap.1")}) == 1
    assert (place / "sem.b").read_bytes() == b"then"
    assert (place / "sem.a").stat().st_mode & 0o777 == 0o640


def test_a_file_on_a_disk_that_is_gone_is_told_by_name(images: Path, place: Path):
    listed(images, Link(str(place / "link_remap.1"), ("data",), 0o600, os.getuid(), os.getgid(), None))
    with pytest.raises(errors.RestoreFailed, match=r"gone from .*place \(data\)"):
        links.put_back(images)


def test_somebody_elses_file_or_link_is_never_used(images: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(links, "_PATIENCE_S", 0.3)  # it might be another workload's for a moment
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (images / "perdure-link-0").write_bytes(b"x")
    told = Link(str(place / "link_remap.1"), ("sem.a",), 0o600, os.getuid(), os.getgid(), "perdure-link-0")
    listed(images, told)
    (place / "sem.a").symlink_to(victim)
    with pytest.raises(errors.RestoreFailed, match="is not the checkpoint's file"):
        links.put_back(images)
    (place / "sem.a").unlink()
    (place / "link_remap.1").symlink_to(victim)
    with pytest.raises(errors.RestoreFailed):
        links.put_back(images)
    (place / "link_remap.1").unlink()
    (place / "sem.a").write_text("mine")
    (place / "link_remap.1").write_text("another file")
    with pytest.raises(errors.RestoreFailed, match="another file lies at"):
        links.put_back(images)
    assert victim.read_text() == "precious"
    assert (place / "link_remap.1").read_text() == "another file"


@pytest.mark.parametrize(
    "told",
    [
        Link("/etc/passwd", ("x",), 0o600, 0, 0, None),
        Link("link_remap.1", ("x",), 0o600, 0, 0, None),
        Link("/tmp/link_remap.1", ("../etc/passwd",), 0o600, 0, 0, None),
        Link("/tmp/link_remap.1", ("x",), 0o600, 0, 0, "../../etc/passwd"),
        Link("/tmp/link_remap.1", ("x",), 0o600, 0, 0, "perdure-link-/../../etc/passwd"),
    ],
)
def test_a_list_that_names_what_it_may_not_is_refused(images: Path, told: Link):
    listed(images, told)
    with pytest.raises(errors.InputFormat):
        links.put_back(images)


def test_a_list_that_cannot_be_read_is_refused(images: Path):
    (images / links.FILE).write_bytes(b"[{")
    with pytest.raises(errors.InputFormat):
        links.put_back(images)
