"""The image about the dump itself: which namespaces CRIU was in. Called by `dump`.

Unlike the others it begins with one number, and holds one message.
"""

from __future__ import annotations

import stat
import struct
from pathlib import Path

from perdure import errors
from perdure.base import files
from perdure.checkpoint.images import container, wire

_NAME = "inventory.img"
_HEAD = struct.Struct("<II")
_MAGIC = 0x58313116
_ROOT_IDS, _PID_NAMESPACE = 3, 5
"""Fields of `inventory_entry` (images/inventory.proto) and `task_kobj_ids_entry` (images/core.proto) of CRIU."""

_ANOTHER = 0x7FFF_FFFF
"""Of no namespace: CRIU counts them from 1."""


def part_pid_namespace(images: Path) -> None:
    """Let the images say that CRIU was in another PID namespace than the tree, which it shared: a restore then makes one.

    Raises `errors.InputMissing`, `errors.InputFormat`, `errors.OutputError`.
    """
    path = images / _NAME
    text = container.content(path)
    if len(text) < _HEAD.size or _HEAD.unpack_from(text) != (_MAGIC, len(text) - _HEAD.size):
        raise errors.InputFormat(f"{_NAME} is not CRIU's inventory")
    fields = wire.parse(text[_HEAD.size :])
    own = wire.content(fields, _ROOT_IDS)
    if own is None:
        raise errors.InputFormat(f"{_NAME} does not say in which namespaces CRIU was")
    ids = wire.assemble(wire.replaced(wire.parse(own), _PID_NAMESPACE, _ANOTHER))
    message = wire.assemble(wire.replaced(fields, _ROOT_IDS, ids))
    files.write_bytes(path, _HEAD.pack(_MAGIC, len(message)) + message, mode=stat.S_IMODE(path.stat().st_mode))
