"""A job that reaches outside in every step. Knows the ledger, and nothing of checkpoints."""

from __future__ import annotations

import json
import socket
import sys
import time

from perdure import errors
from perdure.effects import NOT_DONE, Done, Ledger

place, port, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def ask(request: dict) -> dict:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection, connection.makefile("rwb") as stream:
        stream.write(json.dumps(request).encode() + b"\n")
        stream.flush()
        return json.loads(stream.readline())


def look(key: str) -> object:
    number = ask({"find": key})["number"]
    return NOT_DONE if number is None else Done(number)


with Ledger(place, lease_s=0.25) as ledger:
    for step in range(steps):
        key = f"k{step}"
        while True:
            try:
                number = ledger.once(key, lambda key=key: ask({"do": key})["number"], inputs=key, lookup=look)
            except (OSError, ValueError, errors.EffectError, errors.LedgerUnavailable):
                # A restore closes connections to the outside: what was on its way is asked for again, and looked up first.
                time.sleep(0.02)
            else:
                break
        print(key, number, flush=True)
