"""Messages that leave together with the caller's own transaction, or not at all. PostgreSQL only; reached as `Ledger.outbox`.

`put` writes a message in the caller's transaction. `relay`, in any process on any host, hands each to a function until that
returns: at least once, with the key attached so that the other side can tell a second copy.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure import errors
from perdure.effects import keys
from perdure.effects.backend import Backend

if TYPE_CHECKING:
    import psycopg

    from perdure.effects.postgres import Postgres

_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """One message on its way out."""

    key: str
    """Send it along: the same in every copy of the message."""
    payload: Any
    tries: int
    """How often handing it over failed before."""


class Outbox:
    """The outbox of one ledger."""

    def __init__(self, backend: Backend, max_bytes: int) -> None:
        """Raises `errors.Unsupported` for a ledger that is not on PostgreSQL."""
        from perdure.effects import postgres

        if not isinstance(backend, postgres.Postgres):
            raise errors.Unsupported("only a ledger on PostgreSQL has an outbox", hint="use Ledger('postgresql://…'), or once with a key")
        self._backend: Postgres = backend
        self._max_bytes = max_bytes

    def put(self, connection: psycopg.Connection[Any], key: str, payload: Any) -> bool:
        """Add a message to the caller's transaction. `payload` is JSON.

        Returns False when the same message is there already. Raises `errors.EffectChanged` when another one has its key,
        and `errors.UsageError` for a payload that is not JSON or too large.
        """
        text = self._text(keys.check_key(key), payload)
        self._backend.prepare()
        cursor = connection.execute(
            "INSERT INTO perdure.outbox (key, payload, put_at_s, not_before_s, tries, last_error) SELECT %s, %s, now_s, now_s, 0, ''"
            " FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS now_s) AS clock ON CONFLICT (key) DO NOTHING",
            (key, text),
        )
        if cursor.rowcount:
            return True
        found = connection.execute("SELECT payload FROM perdure.outbox WHERE key = %s", (key,)).fetchone()
        if found is not None and found[0] != text:
            raise errors.EffectChanged(f"another message has the key {key}", hint="use another key for another message", key=key)
        return False

    def relay(self, send: Callable[[Message], object], *, limit: int = 1000) -> int:
        """Hand waiting messages to `send`, oldest first, each in a transaction of its own, and return how many were taken.

        Any number of relays may run at once: a message is in the hands of one of them. A relay that dies leaves its message
        to the next. When `send` raises, the failure is recorded, the message waits (1 s, doubled up to 1 h), and the exception
        passes: call `relay` again for the others.
        """
        for sent in range(limit):
            # A connection of its own for each: `send` may take long, and may itself do steps with this ledger.
            with self._backend.apart() as connection:
                found, failure = self._hand_over(connection, send)
            if failure is not None:
                raise failure
            if not found:
                return sent
        return limit

    def waiting(self) -> int:
        """Count the messages that were not sent yet."""
        found = self._backend.session(
            lambda connection: connection.execute("SELECT count(*) FROM perdure.outbox WHERE sent_at_s IS NULL").fetchone()
        )
        return int(found[0]) if found else 0

    def _hand_over(self, connection: psycopg.Connection[Any], send: Callable[[Message], object]) -> tuple[bool, Exception | None]:
        """Hand one message over. Returns whether there was one, and why that failed."""
        failure: Exception | None = None
        with connection.transaction():
            found = connection.execute(
                "SELECT key, payload, tries FROM perdure.outbox"
                " WHERE sent_at_s IS NULL AND not_before_s <= extract(epoch FROM clock_timestamp())"
                " ORDER BY put_at_s, key LIMIT 1 FOR UPDATE SKIP LOCKED"
            ).fetchone()
            if found is None:
                return False, None
            key, payload, tries = found
            try:
                send(Message(key, json.loads(payload), tries))
            except Exception as error:  # noqa: BLE001  # raised again by `relay`, after it is recorded
                failure = error
                self._postpone(connection, key, tries, type(error).__name__)
            else:
                connection.execute(
                    "UPDATE perdure.outbox SET sent_at_s = extract(epoch FROM clock_timestamp()), last_error = '' WHERE key = %s", (key,)
                )
        return True, failure

    @staticmethod
    def _postpone(connection: psycopg.Connection[Any], key: str, tries: int, reason: str) -> None:
        delay_s = min(_FIRST_DELAY_S * 2 ** min(tries, 20), _LONGEST_DELAY_S)
        connection.execute(
            "UPDATE perdure.outbox SET tries = tries + 1, last_error = %s,"
            " not_before_s = extract(epoch FROM clock_timestamp()) + %s WHERE key = %s",
            (reason, delay_s, key),
        )

    def _text(self, key: str, payload: Any) -> str:
        try:
            text = json.dumps(payload, allow_nan=False, separators=(",", ":"), sort_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise errors.UsageError(f"the message {key} is not JSON: {error}", hint="turn it into text, numbers, lists and dicts") from None
        if len(text) > self._max_bytes:
            raise errors.UsageError(
                f"the message {key} has {len(text)} bytes of at most {self._max_bytes}", hint="send where the data lies"
            )
        return text
