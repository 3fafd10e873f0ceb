"""multiprocessing with shared memory, a lock and a semaphore: a pool of two sums into one shared array."""

import multiprocessing
import os
import sys
import time
from multiprocessing import shared_memory

COUNT = 1024


def add(name, lock, turns, step, part):
    with turns:
        block = shared_memory.SharedMemory(name=name)
        values = block.buf.cast("q")
        with lock:
            for i in range(part * COUNT // 2, (part + 1) * COUNT // 2):
                values[i] += step * (i + 1)
        values.release()
        block.close()


def serve(name, lock, turns, inbox, outbox):
    while (item := inbox.get()) is not None:
        add(name, lock, turns, *item)
        time.sleep(0.01 if item[0] < 60 or os.path.exists("hurry") else 0.5)
        outbox.put(item)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    steps = int(sys.argv[1])
    block = shared_memory.SharedMemory(create=True, size=8 * COUNT)
    lock, turns = context.Lock(), context.Semaphore(2)
    inbox, outbox = context.Queue(), context.Queue()
    workers = [context.Process(target=serve, args=(block.name, lock, turns, inbox, outbox)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for step in range(steps):
        inbox.put((step, 0))
        inbox.put((step, 1))
        outbox.get()
        outbox.get()
        values = block.buf.cast("q")
        print("step", step, sum(values), flush=True)
        values.release()
    for _ in workers:
        inbox.put(None)
    for worker in workers:
        worker.join()
    block.close()
    block.unlink()
    print("end", [worker.exitcode for worker in workers])
