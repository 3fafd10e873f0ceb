# ruff: noqa: T201 - what it prints is what is compared
"""Writes rows into an SQLite database, one transaction each, and at the end says what is in it."""

import sqlite3
import sys
import time

connection = sqlite3.connect("data.db", isolation_level=None)
connection.execute("PRAGMA journal_mode=WAL")
connection.execute("CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, total INTEGER)")
total = 0
for step in range(int(sys.argv[1])):
    total += step * step
    connection.execute("BEGIN")
    connection.execute("INSERT INTO steps VALUES (?, ?)", (step, total))
    connection.execute("COMMIT")
    print("step", step, total, flush=True)
    time.sleep(0.02)
print("rows", connection.execute("SELECT count(*), sum(total) FROM steps").fetchone())
print("intact", connection.execute("PRAGMA integrity_check").fetchone())
connection.close()
