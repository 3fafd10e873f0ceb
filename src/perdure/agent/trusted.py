"""What root tells a seat about the workload it is to keep. Called by `seat`, the agent and the scheduler's adapters.

It never comes from the user: the owner is who the kernel says is asking, or whom the scheduler started the job for.
"""

from __future__ import annotations

import msgspec


class Trusted(msgspec.Struct, frozen=True, kw_only=True):
    """Beside the owner, everything that a user's request may not decide."""

    name: str | None = None
    """The workload's name, where the scheduler gives it; None: as the request says, or made from the command."""
    fresh: bool | None = None
    """Start over, or go on where there is something to go on from; None: as the request says."""
    end_ns: int | None = None
    """When the allotted time ends, UTC; None: as the request says."""
    options: tuple[tuple[str, str], ...] = ()
    """The admin's options, in the words of a request's; the user's own count more."""
    job: str = ""
    """Which job of which scheduler, for the audit log."""
    caller_pid: int | None = None
    """Who asked, by the host, for the audit log."""
    is_script: bool = False
    """The command is a script of the scheduler's keeping, which it writes anew for each attempt of the job, with the same content."""
    limits: tuple[tuple[int, int, int], ...] = ()
    """Resource, soft and hard limit of what the workload may use; where none is named, this process's."""
