"""Whose rights tasks have and what they reach by path, read from images that are made up, right and wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.checkpoint import identity
from perdure.checkpoint.images import container, credentials, paths, wire
from perdure.checkpoint.images.credentials import Credentials
from perdure.model.checkpoint import Owner

OWNER = Owner(uid=1000, gid=1001, groups=(1001, 1002))
IDS, FS, REMAP = 0x54432030, 0x51403912, 0x59133954


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A message with these fields, in this order, repeated ones too."""
    parts: list[bytes] = []
    for number, value in fields:
        parts.append(wire.replaced((), number, value)[0].raw)
    return b"".join(parts)


def image(folder: Path, name: str, kind: int, *entries: bytes) -> None:
    head = container.COMMON.to_bytes(4, "little") + kind.to_bytes(4, "little")
    (folder / name).write_bytes(container.assemble(head, entries))


def rights(*, uid: int = 1000, gid: int = 1001, more: tuple[tuple[int, int | bytes], ...] = ()) -> bytes:
    return message(*((number, uid) for number in (1, 3, 5, 7)), *((number, gid) for number in (2, 4, 6, 8)), *more)


def core(creds: bytes | None, *, state: int = 1) -> bytes:
    thread = message((1, 0), *([(10, creds)] if creds is not None else []))
    return message((1, 1), (3, message((1, state))), (5, thread))


@pytest.fixture
def images(tmp_path):
    """An init of root's and a process of the owner's with two threads."""
    image(tmp_path, "pstree.img", container.PSTREE, message((1, 1), (2, 0), (5, 1)), message((1, 7), (2, 1), (5, 7), (5, 8)))
    image(tmp_path, "core-1.img", container.CORE, core(rights(uid=0, gid=0, more=((10, 511), (10, 7)))))
    image(tmp_path, "core-7.img", container.CORE, core(rights(more=((14, 1001), (14, 1002)))))
    image(tmp_path, "core-8.img", container.CORE, core(rights()))
    return tmp_path


def test_each_task_is_told(images):
    init, first, second = credentials.of(images)
    assert init == Credentials(process=1, thread=1, uids=(0,) * 4, gids=(0,) * 4, groups=frozenset(), has_capabilities=True, secure_bits=0)
    assert (first.process, first.thread, first.groups, first.has_capabilities) == (7, 7, {1001, 1002}, False)
    assert (second.process, second.thread) == (7, 8)
    assert identity.check_images(images, OWNER) == ()


@pytest.mark.parametrize(
    ("creds", "told"),
    [
        (rights(uid=0), "user 0"),
        (rights(gid=4), "group 4"),
        (rights(more=((14, 1002), (14, 27))), "group 27"),
        (rights(more=((9, 1),)), "capabilities"),
        (rights(more=((10, 0), (10, 1))), "capabilities"),
        (rights(more=((11, 1),)), "capabilities"),
        (rights(more=((19, 1),)), "capabilities"),
        (rights(more=((13, 1),)), "secure bits"),
        (message((1, 1000), (2, 1001)), "user -1"),
        (rights(more=((7, 0),)), "user 0"),
    ],
)
def test_a_thread_with_more_is_named(images, creds, told):
    image(images, "core-8.img", container.CORE, core(creds))
    (found,) = identity.check_images(images, OWNER)
    assert found.code == "process-other-user"
    assert found.subject == "thread 8 of process 7"
    assert told in found.message


def test_a_dead_process_needs_no_rights_and_a_living_one_does(images):
    image(images, "core-7.img", container.CORE, core(None, state=2))
    assert [task.thread for task in credentials.of(images)] == [1, 8]
    image(images, "core-7.img", container.CORE, core(None, state=1))
    with pytest.raises(errors.InputFormat, match="whose rights"):
        credentials.of(images)


def test_images_that_do_not_tell_are_refused(images):
    (images / "core-8.img").rename(images / "core-9.img")
    with pytest.raises(errors.InputFormat, match="no process of the tree"):
        credentials.of(images)
    (images / "core-9.img").unlink()
    (images / "core-7.img").unlink()
    with pytest.raises(errors.InputFormat, match="no state of process 7"):
        credentials.of(images)
    image(images, "core-7.img", container.CORE, core(rights()), core(rights(uid=0)))
    with pytest.raises(errors.InputFormat, match="one task"):
        credentials.of(images)
    (images / "pstree.img").unlink()
    with pytest.raises(errors.InputMissing):
        credentials.of(images)


@pytest.mark.parametrize("part", ["thread", "rights"])
def test_rights_that_stand_twice_are_refused(images, part):
    """Other readers merge the two: lists of capabilities are then those of both."""
    more, less = (message((1, 0), (10, rights(more=extra))) for extra in (((10, 511),), ()))
    if part == "thread":
        twice = message((1, 1), (3, message((1, 1))), (5, more), (5, less))
    else:
        twice = message((1, 1), (3, message((1, 1))), (5, message((1, 0), (10, rights(more=((10, 511),))), (10, rights()))))
    image(images, "core-8.img", container.CORE, twice)
    with pytest.raises(errors.InputFormat, match="twice"):
        credentials.of(images)


@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else_happens(tmp_path_factory, noise):
    folder = tmp_path_factory.mktemp("noise")
    image(folder, "pstree.img", container.PSTREE, message((1, 7), (5, 7)))
    image(folder, "core-7.img", container.CORE, noise)
    try:
        told = credentials.of(folder)
    except errors.InputError:
        return
    assert [task.process for task in told] == [7]


def test_what_is_reached_by_path(tmp_path):
    regular = [
        (1, b"/home/u/out", 0o2001),
        (2, b"/home/u", 0),
        (3, b"/", 0),
        (4, b"/home/u/gone", 2),
        (5, b"/home/u/fifo", 1),
        (6, b"/dev/shm/lost", 2),
    ]
    files = [message((1, 1), (2, number), (3, message((1, number), (2, flags), (6, name)))) for number, name, flags in regular]
    files.append(message((1, 3), (2, 9), (17, message((1, 9), (5, 5)))))
    files.append(message((1, 5), (2, 10), (16, message((1, 10), (11, b"sock\0"), (14, b"/home/u")))))
    files.append(message((1, 5), (2, 11), (16, message((1, 11), (11, b"\0abstract")))))
    files.append(message((1, 5), (2, 12), (16, message((1, 12), (11, b"")))))
    image(tmp_path, "files.img", container.FILES, *files)
    image(tmp_path, "ids-7.img", IDS, message((1, 3), (2, 5)))
    opened = [
        message((1, 1), (3, 1), (4, 3)),
        message((1, 4), (3, 1), (4, 4)),
        message((1, 9), (3, 3), (4, 5)),
        message((1, 10), (3, 5), (4, 6)),
    ]
    image(tmp_path, "fdinfo-5.img", container.FDINFO, *opened)
    image(tmp_path, "fs-7.img", FS, message((1, 2), (2, 3)))
    image(tmp_path, "remap-fpath.img", REMAP, message((1, 4), (2, 1), (3, 1)), message((1, 6), (2, 1)))
    told = paths.Paths(tmp_path)
    assert told.names == {"/home/u/out", "/home/u", "/", "/home/u/fifo"}
    assert [(one.way, one.name, one.flags, one.is_nameless) for one in told.of(7)] == [
        ("fd/3", "/home/u/out", 0o2001, False),
        ("fd/4", "/home/u/gone", 2, True),
        ("fd/5", "/home/u/fifo", 1, False),
        ("cwd", "/home/u", 0, False),
        ("root", "/", 0, False),
    ]
    assert paths.unix_names(tmp_path) == ("/home/u/sock",)
    assert paths.linked(tmp_path) == ("/dev/shm/lost",)
    assert not paths.has_fanotify(tmp_path)
    with pytest.raises(errors.InputMissing):
        told.of(8)
    image(tmp_path, "fdinfo-5.img", container.FDINFO, message((1, 77), (3, 1), (4, 3)))
    with pytest.raises(errors.InputFormat, match="what fd/3 of a process is"):
        told.of(7)
