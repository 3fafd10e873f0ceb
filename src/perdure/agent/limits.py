"""How much one user, and all together, may ask of the agent: connections, requests a minute, requests at once. Pure: times come in.

Called by `server`. Root is not limited, so that an administrator is heard on a node that a user keeps busy.
"""

from __future__ import annotations

import msgspec


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits."""

    connections_of_user: int = 32
    """That have not been read from yet."""
    connections: int = 512
    requests_at_once_of_user: int = 12
    """Each is a process of root's, and `perdure logs -f` and `perdure checkpoint` take as long as what they wait for."""
    requests_at_once: int = 96
    burst: int = 60
    """Requests that a user may make at once after a pause."""
    per_minute: float = 120.0
    idle_s: float = 10.0
    """A connection that says nothing for so long is closed."""


class Ledger:
    """Counts what each user has. Every `open` and `begin` that returns "" has its `close` and `end`; the other words say why not."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._open: dict[int, int] = {}
        self._busy: dict[int, int] = {}
        self._tokens: dict[int, tuple[float, float]] = {}

    def open(self, uid: int) -> str:
        """Somebody connects."""
        if uid:
            if self._open.get(uid, 0) >= self.bounds.connections_of_user:
                return f"user {uid} has {self.bounds.connections_of_user} connections open already"
            if _others(self._open) >= self.bounds.connections:
                return f"{self.bounds.connections} connections are open already"
        self._open[uid] = self._open.get(uid, 0) + 1
        return ""

    def close(self, uid: int) -> None:
        """A connection is gone, or its request begins."""
        _less(self._open, uid)

    def begin(self, uid: int, now_s: float) -> str:
        """A request arrives."""
        if uid:
            if not self._has_token(uid, now_s):
                return f"user {uid} asks more than {self.bounds.per_minute:g} times a minute"
            if self._busy.get(uid, 0) >= self.bounds.requests_at_once_of_user:
                return f"user {uid} has {self.bounds.requests_at_once_of_user} requests going on already"
            if _others(self._busy) >= self.bounds.requests_at_once:
                return f"{self.bounds.requests_at_once} requests are going on already"
        self._busy[uid] = self._busy.get(uid, 0) + 1
        return ""

    def end(self, uid: int) -> None:
        """A request is over."""
        _less(self._busy, uid)

    def forget(self, now_s: float) -> None:
        """Forget users who have not asked for so long that their count is full again."""
        full_s = self.bounds.burst / self.bounds.per_minute * 60.0
        self._tokens = {uid: one for uid, one in self._tokens.items() if now_s - one[1] < full_s}

    def _has_token(self, uid: int, now_s: float) -> bool:
        left, at_s = self._tokens.get(uid, (float(self.bounds.burst), now_s))
        left = min(left + (now_s - at_s) * self.bounds.per_minute / 60.0, float(self.bounds.burst))
        has = left >= 1.0
        self._tokens[uid] = (left - 1.0 if has else left, now_s)
        return has


def _less(counts: dict[int, int], uid: int) -> None:
    counts[uid] -= 1
    if not counts[uid]:
        del counts[uid]


def _others(counts: dict[int, int]) -> int:
    """Return the sum of all but root's: what root does takes nothing away from users."""
    return sum(count for uid, count in counts.items() if uid)
