"""How a checkpoint would be made, as far as what prevents it depends on that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from perdure.checkpoint.criu.run import Criu
from perdure.checkpoint.cuda.contract import CudaProcess, State
from perdure.model.checkpoint import Owner

DISKS = ("/var/tmp",)  # noqa: S108 - a disk to look at, which every Linux has
"""Where images wait when memory has no room, besides the state folder."""

GHOST_LIMIT_BYTES = 1 << 40
"""Largest deleted file that goes into the images, as the dump asks CRIU for it at its second try."""


AskStates = Callable[[Iterable[CudaProcess]], Mapping[int, State | None]]
"""Asks the driver for the state of processes, by PID; None for one that has no CUDA of its own. Who it does not tell of is left out."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a save would do.

    `external` names what is handed over again at a restore besides the root's standard streams, as CRIU calls it: ``pipe:[123]``,
    ``tty[8801:1a]``, ``unix[123]``. `outputs` are the files and folders whose content goes along (``--outputs``).
    """

    external: frozenset[str] = frozenset()
    outputs: tuple[str, ...] = ()
    tcp: Literal["close", "keep"] = "close"
    criu: Criu | None = None
    """None: there is none that works; then `criu_refusal` says why, and `criu_remedy` what to do."""
    criu_refusal: str | None = None
    criu_remedy: str | None = None
    staging: str | None = None
    """Folder where images wait; None: memory, or one of `disks`."""
    disks: tuple[str, ...] = DISKS
    store: str | None = None
    """Where the checkpoint would go: a folder, or ``s3://…``. None: not looked at, for whoever has it open."""
    ghost_limit_bytes: int = GHOST_LIMIT_BYTES
    owner: Owner | None = None
    """The ordinary user that all of the tree but its init runs as; None: it may be anybody's."""
    own_session: bool = True
    """The root has to lead its session; false where a save brings the session along (``--shell-job``)."""
    ask_gpu: AskStates | None = None
    """None: the driver is not asked, and what has CUDA is told by what it holds and by NVML."""
    is_suspended: bool = False
    """GPU state was moved into the workload's memory on purpose (``perdure suspend``)."""
