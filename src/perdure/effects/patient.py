"""A connection to PostgreSQL that waits for an answer for so long and no longer. Called by `postgres`; imports psycopg.

The kernel notices a host that is gone. It does not notice a server, a pooler or a proxy that takes everything and says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg

_Wanted = Any
"""What a generator of psycopg's waits for, and what it is told to be ready: nothing, reading, writing."""


class Connection(psycopg.Connection[Any]):
    """A psycopg connection that breaks with `psycopg.OperationalError` when one answer takes more than `answer_s` seconds."""

    answer_s: float | None = None
    """None: it waits without end."""

    def wait(self, gen: Generator[_Wanted, _Wanted, Any], *arguments: Any, **options: Any) -> Any:
        """Wait as psycopg does, which wakes `gen` several times a second also when nothing has come."""
        if self.answer_s is None:
            return super().wait(gen, *arguments, **options)
        try:
            return super().wait(_limited(gen, self.answer_s), *arguments, **options)
        except TimeoutError as error:
            # What the server did is unknown, and what it may still say would be taken for the answer to something else.
            self.close()
            raise psycopg.OperationalError(str(error)) from None


def _limited(gen: Generator[_Wanted, _Wanted, Any], limit_s: float) -> Generator[_Wanted, _Wanted, Any]:
    until_s = time.monotonic() + limit_s
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > until_s:
                raise TimeoutError(f"no answer within {limit_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value
