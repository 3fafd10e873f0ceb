"""Ports on loopback that are kept for a server of a test: from their choice until it listens, and while it is away. For tests."""

from __future__ import annotations

import socket


def reserve() -> socket.socket:
    """Take a free port and return what keeps it: a socket that is bound and never listens, to be closed when the server has ended.

    The system gives the port to nobody else, neither to a server that asks for any port nor to a connection's own end. A server that
    asks for this one and sets SO_REUSEADDR, as they do, may listen there.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    return kept


def number(kept: socket.socket) -> int:
    """Return the port that `kept` keeps."""
    return int(kept.getsockname()[1])
