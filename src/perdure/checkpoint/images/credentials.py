"""Whose rights each task of a dumped tree has, from ``core-*.img``. Called before a restore and at the freeze, by `identity`.

Source of the format: images/core.proto, images/creds.proto and images/pstree.proto of CRIU 4.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint.images import container, wire

_CORE = re.compile(r"core-(\d{1,10})\.img")
_TASK, _THREAD, _STATE, _CREDENTIALS = 3, 5, 1, 10
_GROUPS, _SECURE_BITS = 14, 13
_PID, _THREADS = 1, 5
_DEAD = frozenset({2, 6})
"""States of a task that only waits to be reaped: nothing of it runs again, and its rights are not saved."""


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of one task. `process` and `thread` are numbers inside the PID namespace."""

    process: int
    thread: int
    uids: tuple[int, int, int, int]
    """Real, effective, saved, file system."""
    gids: tuple[int, int, int, int]
    groups: frozenset[int]
    has_capabilities: bool
    """In the inheritable, permitted, effective or ambient set."""
    secure_bits: int


def of(images: Path) -> tuple[Credentials, ...]:
    """Return the rights of every task in the folder `images` that will run again, by process and thread.

    Raises `errors.InputMissing` and `errors.InputFormat`, also for a task whose rights or process are not told.
    """
    processes = _processes(images)
    found = []
    for path in images.iterdir():
        name = _CORE.fullmatch(path.name)
        if name is None:
            continue
        thread = int(name[1])
        if thread not in processes:
            raise errors.InputFormat(f"{path.name} is of no process of the tree")
        told = _of_core(path, processes[thread], thread)
        if told is not None:
            found.append(told)
    missing = {process for process in processes.values() if not (images / f"core-{process}.img").exists()}
    if missing or not found:
        raise errors.InputFormat(f"the images hold no state of process {min(missing, default=1)}")
    return tuple(sorted(found, key=lambda one: (one.process, one.thread)))


def _processes(images: Path) -> dict[int, int]:
    """Return the process of each thread of the tree."""
    found: dict[int, int] = {}
    for entry in container.read(images / "pstree.img", container.PSTREE).entries:
        fields = wire.parse(entry)
        process = wire.number(fields, _PID)
        for thread in (process, *wire.numbers(fields, _THREADS)):
            found[thread] = process
    return found


def _of_core(path: Path, process: int, thread: int) -> Credentials | None:
    entries = container.read(path, container.CORE).entries
    if len(entries) != 1:
        raise errors.InputFormat(f"{path.name} does not hold one task")
    core = wire.parse(entries[0])
    task = _once(core, _TASK)
    state = wire.number(wire.parse(task), _STATE) if task is not None else 0
    inner = _once(core, _THREAD)
    told = _once(wire.parse(inner), _CREDENTIALS) if inner is not None else None
    if told is None:
        if state in _DEAD:
            return None
        raise errors.InputFormat(f"{path.name} does not say whose rights its task has")
    fields = wire.parse(told)
    return Credentials(
        process=process,
        thread=thread,
        uids=_four(fields, 1),
        gids=_four(fields, 2),
        groups=frozenset(wire.numbers(fields, _GROUPS)),
        has_capabilities=any(any(wire.numbers(fields, number)) for number in (9, 10, 11, 19)),
        secure_bits=wire.number(fields, _SECURE_BITS),
    )


def _once(fields: tuple[wire.Field, ...], number: int) -> bytes | None:
    """Return a message within another. One that stands there twice would be put together of both by whoever reads it next: refused."""
    if sum(field.number == number for field in fields) > 1:
        raise errors.InputFormat("the rights of a task stand twice in its image")
    return wire.content(fields, number)


def _four(fields: tuple[wire.Field, ...], first: int) -> tuple[int, int, int, int]:
    """Return real, effective, saved and file system id: every second field from `first` on. One that is not told is nobody's."""
    real, effective, saved, files = (wire.number(fields, number, -1) for number in range(first, first + 8, 2))
    return real, effective, saved, files
