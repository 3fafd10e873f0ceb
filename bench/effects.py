"""What doing a step once costs: `ledger.once` beside one bare durable insert, on SQLite and on PostgreSQL."""

from __future__ import annotations

import argparse
import functools
import itertools
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import Figure, print_figures
from perdure import errors
from perdure.effects import Ledger

_keys = (f"k{number:08}" for number in itertools.count())


def _rate(run: Callable[[], object], number: int) -> float:
    """Return calls a second."""
    started = time.perf_counter()
    for _ in range(number):
        run()
    return number / (time.perf_counter() - started)


def _compare(ledger: Ledger, insert: Callable[[], object], *, number: int, rounds: int) -> tuple[float, float, float, float]:
    """Return, over rounds in turn: the median ratio of an insert's rate to a step's, and the best rates of inserts, steps, replays."""
    ratios, inserts, steps, replays = [], [], [], []
    for _ in range(rounds):
        inserts.append(_rate(insert, number))
        steps.append(_rate(lambda: ledger.once(next(_keys), lambda: {"id": 1}), number))
        ratios.append(inserts[-1] / steps[-1])
        done = next(_keys)
        ledger.once(done, lambda: {"id": 1})
        replays.append(_rate(functools.partial(ledger.once, done, dict), number))
    return statistics.median(ratios), max(inserts), max(steps), max(replays)


@contextmanager
def _sqlite() -> Iterator[tuple[Ledger, Callable[[], object]]]:
    # On the disk of the working directory: /tmp may be memory, where nothing is durable and everything is fast.
    with tempfile.TemporaryDirectory(dir=".") as folder:
        connection = sqlite3.connect(Path(folder, "bare.db"), isolation_level=None)
        connection.execute("PRAGMA journal_mode=TRUNCATE")
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute("CREATE TABLE t (key TEXT PRIMARY KEY, value TEXT)")
        with Ledger(Path(folder, "effects.db")) as ledger:
            ledger.counts()
            yield ledger, lambda: connection.execute("INSERT INTO t VALUES (?, ?)", (next(_keys), '{"id":1}'))
        connection.close()


@contextmanager
def _postgres() -> Iterator[tuple[Ledger, Callable[[], object]]]:
    import psycopg

    from tests.postgres import Server

    server = Server()
    try:
        server.start()
        with psycopg.connect(server.url(), autocommit=True) as connection, Ledger(server.url()) as ledger:
            connection.execute("CREATE TABLE t (key TEXT PRIMARY KEY, value TEXT)")
            ledger.counts()
            yield ledger, lambda: connection.execute("INSERT INTO t VALUES (%s, %s)", (next(_keys), '{"id":1}'))
    finally:
        server.remove()


def report(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure both ledgers. A step is two durable commits, its intent and its result; a replay writes nothing."""
    parser = argparse.ArgumentParser(prog="effects")
    parser.add_argument("--number", type=int, default=100, help="steps a round")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    figures = []
    for name, place in (("SQLite", _sqlite), ("PostgreSQL", _postgres)):
        title = f"a step done once / a bare durable insert, {name}"
        try:
            with place() as (ledger, insert):
                ratio, inserts, steps, replays = _compare(ledger, insert, number=given.number, rounds=given.rounds)
        except (ImportError, IndexError, errors.MissingExtra) as error:
            figures.append(Figure(title, None, "x", note=f"no server or no psycopg here: {error}"))
            continue
        # Where the disk really writes, the two commits are all of it; where it does not, the ratio is that of the code around them.
        note = f"median of {given.rounds} rounds of {given.number}; two commits to one; {inserts:,.0f} bare inserts/s"
        figures += [
            Figure(title, ratio, "x", note=note),
            Figure(f"steps a second, {name}", steps, "/s", note="best round, one caller"),
            Figure(f"replays a second, {name}", replays, "/s", note="best round, one caller"),
        ]
    return figures


def main() -> None:
    """Print the figures."""
    print_figures(report(sys.argv[1:]))


if __name__ == "__main__":
    main()
