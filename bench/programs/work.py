"""A fixed amount of work for one core, as often as a line with its size comes in: what is paid between checkpoints.

Says a word ten times a second or so, as a training does, and after each turn how long it took, in wall and in processor time.
"""

import hashlib
import sys
import time

block = bytes(1 << 20)
print("ready", flush=True)
for line in sys.stdin:
    began, used = time.monotonic(), time.process_time()
    for number in range(int(line)):
        hashlib.sha256(block).digest()
        if number % 128 == 0:
            print("step", number, flush=True)
    print("took", time.monotonic() - began, time.process_time() - used, flush=True)
