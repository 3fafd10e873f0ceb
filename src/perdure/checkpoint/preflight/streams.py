"""Rules about what connects a tree to others by streams: pipes and terminals. Pure."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from perdure.base.proc.descriptors import Descriptor
from perdure.checkpoint.preflight import about, devices
from perdure.checkpoint.preflight.plan import Plan
from perdure.checkpoint.preflight.scene import Member, Scene
from perdure.model.finding import Finding

_LAST_STANDARD = 2


def check(scene: Scene, plan: Plan) -> Iterator[Finding]:
    """Yield what is wrong with pipes and terminals."""
    external = plan.external | given_again(scene.first)
    yield from _pipes(scene, external)
    yield from _terminals(scene, external)


def given_again(root: Member) -> frozenset[str]:
    """Return CRIU's names of the standard streams of `root`: each life gives it new ones, whoever in the tree has them."""
    found = set()
    for opened in root.descriptors:
        if opened.number <= _LAST_STANDARD:
            if opened.target.startswith("pipe:"):
                found.add(opened.target)
            elif opened.number in root.device_numbers:
                found.add(devices.external_name(root.device_numbers[opened.number], opened.device))
    return frozenset(found)


def _ends(opened: Descriptor) -> tuple[bool, bool]:
    """Return whether `opened` reads and whether it writes."""
    how = opened.info.flags & os.O_ACCMODE
    return how in (os.O_RDONLY, os.O_RDWR), how in (os.O_WRONLY, os.O_RDWR)


def _pipes(scene: Scene, external: frozenset[str]) -> Iterator[Finding]:
    held: dict[str, list[tuple[Member, Descriptor]]] = {}
    for member in scene.members:
        for opened in member.descriptors:
            if stat.S_ISFIFO(opened.mode):
                if opened.info.flags & os.O_DIRECT and opened.target.startswith("pipe:"):
                    yield about.descriptor("file-packet-pipe", member, opened, "is a pipe in packet mode")
                held.setdefault(opened.target, []).append((member, opened))
    for target, users in held.items():
        if target.startswith("pipe:") and target not in external:
            yield from _half(scene, target, users)


def _half(scene: Scene, target: str, users: list[tuple[Member, Descriptor]]) -> Iterator[Finding]:
    reads = any(_ends(opened)[0] for _, opened in users)
    writes = any(_ends(opened)[1] for _, opened in users)
    others = scene.outside.get(target, ())
    if (reads and writes) or not others:
        return
    whom = f"process {others[0].pid}" + (f" and {len(others) - 1} more" if len(others) > 1 else "")
    # One finding a pipe, about the process that matters most: a standard stream, if it is one.
    member, opened = min(users, key=lambda user: (user[1].number > _LAST_STANDARD, user[0].pid, user[1].number))
    if writes and opened.number <= _LAST_STANDARD:
        yield about.descriptor("file-pipe-outside", member, opened, f"writes into {target}, which {whom} outside reads")
    else:
        what = f"writes into {target}, which {whom} outside reads" if writes else f"reads {target}, which {whom} outside writes"
        yield about.descriptor("file-pipe-leaked", member, opened, what)


def _terminals(scene: Scene, external: frozenset[str]) -> Iterator[Finding]:
    masters = {
        int(told_index)
        for member in scene.members
        for opened in member.descriptors
        if member.device_numbers.get(opened.number) == devices.PTMX and (told_index := about.line(opened, "tty-index")) is not None
    }
    given = {int(name[4:].partition(":")[0], 16) for name in external if name.startswith("tty[")}
    told: set[int] = set()
    for member in scene.members:
        for opened in member.descriptors:
            number = member.device_numbers.get(opened.number)
            index = devices.terminal_index(number) if number is not None else None
            if number is None or index is None or index in masters or number in told:
                continue
            told.add(number)
            if devices.external_name(number, opened.device) not in external:
                yield about.descriptor("file-tty-outside", member, opened, f"is the terminal {opened.target}, whose other side is outside")
        controlling = member.stat.tty
        index = devices.terminal_index(controlling)
        if index is not None and index not in masters and controlling not in told and controlling not in given:
            told.add(controlling)
            yield about.process("process-terminal", member, f"its session is controlled by /dev/pts/{index}, whose other side is outside")
