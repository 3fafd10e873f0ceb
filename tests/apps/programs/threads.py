"""Four threads, a queue and a lock: the order of results is fixed by their step."""

import hashlib
import os
import queue
import sys
import threading
import time

steps = int(sys.argv[1])
todo: queue.Queue = queue.Queue()
done: queue.Queue = queue.Queue()


def work() -> None:
    while (step := todo.get()) is not None:
        time.sleep(0.01 if step < 100 or os.path.exists("hurry") else 0.5)
        done.put((step, hashlib.sha256(str(step).encode() * 1000).hexdigest()))


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
state = b""
for step in range(0, steps, 4):
    for offset in range(4):
        todo.put(step + offset)
    for _, digest in sorted(done.get() for _ in range(4)):
        state = hashlib.sha256(state + digest.encode()).digest()
    print("step", step, state.hex(), flush=True)
for _ in threads:
    todo.put(None)
for thread in threads:
    thread.join()
print("end", state.hex())
