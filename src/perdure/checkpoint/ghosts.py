"""Where CRIU makes files again that had lost their name: in folders of root's, not in the user's. Called by `restore` for an owner.

CRIU makes such a file beside where it was, gives it owner and permissions by its path, opens it and removes it again, all as root. In a
folder that a user can change, a link put in its place at the right moment would get that owner. What becomes of the file is the same
anywhere: nobody reaches it but through a descriptor or mapping.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from perdure.base.proc import mounts
from perdure.checkpoint import staging
from perdure.checkpoint.images import container, paths, wire

_MEMORY_KINDS = ("tmpfs", "ramfs")
_DISK = Path("/var/tmp")  # noqa: S108 - a disk on every machine; what is made there is private
_TYPE, _ID, _REGULAR = 1, 2, 3
_IS_REGULAR = 1
_NAME = 6


@contextlib.contextmanager
def moved(images: Path) -> Iterator[None]:
    """Let the restore from the folder `images`, which is changed, make nameless files in private folders while the block runs.

    What was in memory stays in memory. Raises `errors.InputFormat`, `errors.OutputError`, and OSError without room.
    """
    ghosts = {one.file: one.ghost for one in paths.remaps(images) if one.ghost is not None}
    if not ghosts:
        yield
        return
    made: list[Path] = []
    try:
        image = container.read(images / "files.img", container.FILES)
        folders: dict[bool, Path] = {}
        places: dict[int, Path] = {}
        entries = []
        for entry in image.entries:
            fields = wire.parse(entry)
            number = wire.number(fields, _ID)
            if wire.number(fields, _TYPE) == _IS_REGULAR and number in ghosts:
                inner = wire.parse(wire.content(fields, _REGULAR) or b"")
                name = os.fsdecode(wire.content(inner, _NAME) or b"")
                in_memory = _is_in_memory("/" + name.lstrip("/"))
                if ghosts[number] not in places:
                    if in_memory not in folders:
                        folders[in_memory] = _private(staging.MEMORY if in_memory else _DISK)
                        made.append(folders[in_memory])
                    places[ghosts[number]] = folders[in_memory]
                path = os.fsencode(places[ghosts[number]] / str(number))
                changed = wire.assemble(wire.replaced(inner, _NAME, path))
                entries.append(wire.assemble(wire.replaced(fields, _REGULAR, changed)))
            else:
                entries.append(entry)
        container.write(images / "files.img", container.Image(image.head, tuple(entries)))
        yield
    finally:
        for folder in made:
            staging.remove(folder)


def _private(above: Path) -> Path:
    folder = above / f"{staging.PREFIX}{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    return folder


def _is_in_memory(path: str) -> bool:
    mount = mounts.covering(os.path.dirname(path), mounts.of(os.getpid()))
    return mount is not None and mount.kind in _MEMORY_KINDS
