"""An SQLite writer in WAL mode: each step is one transaction; the table is what counts."""

import os
import sqlite3
import sys
import time

steps, mode = int(sys.argv[1]), sys.argv[2]
connection = sqlite3.connect("data.db", isolation_level=None)
connection.execute(f"PRAGMA journal_mode={mode}")
connection.execute("PRAGMA synchronous=OFF")
connection.execute("CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, total INTEGER)")
total = 0
for step in range(steps):
    total += step * step
    connection.execute("BEGIN")
    connection.execute("INSERT INTO steps VALUES (?, ?)", (step, total))
    connection.execute("COMMIT")
    print("step", step, total, flush=True)
    time.sleep(0.01 if step < 60 or os.path.exists("hurry") else 0.5)
print(
    "end", connection.execute("SELECT count(*), sum(total) FROM steps").fetchone(), connection.execute("PRAGMA integrity_check").fetchone()
)
connection.close()
