"""The supervisor of one ordinary user's workload: root, with that user's process at the other end of a socket.

Called by the agent, in a process of its own, and by the scheduler's adapters, as a descendant of the job. The user's process sends one
request (`request`) and then signals, a byte each; it is told lines of JSON (`replies`). When it goes away, the workload ends.
"""

from __future__ import annotations

import socket

from perdure.agent.trusted import Trusted
from perdure.model.checkpoint import Owner
from perdure.supervisor.scheduler import Scheduler


def serve(channel: socket.socket, owner: Owner, trusted: Trusted, *, scheduler: Scheduler | None = None) -> int:
    """Do what the user's process at the other end of `channel` asks for, as the workload of `owner`, until that ends.

    This process becomes the supervisor: its descriptors 0, 1 and 2 become the user's. Returns the workload's exit status, or an error's.
    """
    raise NotImplementedError
