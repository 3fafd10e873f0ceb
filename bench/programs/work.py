"""A fixed amount of work for one core, as often as a line with its size comes in: what is paid between checkpoints.

ARGV: the pipe that the lines come in by, and the one that tells after each turn how long it took, in wall and in processor time. Says a
word ten times a second or so, as a training does.
"""

import hashlib
import sys
import time

block = bytes(1 << 20)
told = open(sys.argv[2], "w", buffering=1)  # noqa: SIM115 - for as long as it lives
for line in open(sys.argv[1]):  # noqa: SIM115
    began, used = time.monotonic(), time.process_time()
    for number in range(int(line)):
        hashlib.sha256(block).digest()
        if number % 128 == 0:
            print("step", number, flush=True)
    print(time.monotonic() - began, time.process_time() - used, file=told)
