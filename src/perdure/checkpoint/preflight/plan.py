"""How a checkpoint would be made, as far as what prevents it depends on that."""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.checkpoint.criu.run import Criu

GHOST_LIMIT_BYTES = 1 << 30
"""Largest deleted file that goes into the images, as the dump asks CRIU for it."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a save would do.

    `keepers` are processes outside, such as the supervisor, whose ends of pipes and terminals are handed over again at a restore;
    `external` names more of those, as CRIU calls them: ``pipe:[123]``, ``tty[8801:1a]``. `outputs` are the files and folders whose
    content goes along (``--outputs``).
    """

    keepers: frozenset[int] = frozenset()
    external: frozenset[str] = frozenset()
    outputs: tuple[str, ...] = ()
    tcp: Literal["close", "keep"] = "close"
    criu: Criu | None = None
    """None: there is none that works; then `criu_refusal` says why, and `criu_remedy` what to do."""
    criu_refusal: str | None = None
    criu_remedy: str | None = None
    staging: str | None = None
    """Folder where images wait; None: memory or the usual disks."""
    ghost_limit_bytes: int = GHOST_LIMIT_BYTES
    own_session: bool = True
    """The root has to lead its session; false where a save brings the session along (``--shell-job``)."""
