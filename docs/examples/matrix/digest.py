# ruff: noqa: T201 - what it prints is what is compared
"""Four threads hash what a queue holds; the results are chained in order, printed, and appended to a file."""

import hashlib
import queue
import sys
import threading
import time

todo: queue.Queue = queue.Queue()
done: queue.Queue = queue.Queue()


def work() -> None:
    while (step := todo.get()) is not None:
        time.sleep(0.02)
        done.put((step, hashlib.sha256(str(step).encode()).hexdigest()))


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
chain = b""
with open("digests.txt", "a") as file:
    for step in range(int(sys.argv[1])):
        for part in range(4):
            todo.put(4 * step + part)
        for _, digest in sorted(done.get() for _ in range(4)):
            chain = hashlib.sha256(chain + digest.encode()).digest()
        print("step", step, chain.hex(), flush=True)
        print("at", time.time(), flush=True)
        print(chain.hex(), file=file, flush=True)
for _ in threads:
    todo.put(None)
for thread in threads:
    thread.join()
