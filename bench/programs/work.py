"""A fixed amount of work for one core; its duration and processor time are printed: what is paid between checkpoints."""

import hashlib
import sys
import time

block = bytes(1 << 20)
for _ in range(20):
    hashlib.sha256(block).digest()
began, used = time.monotonic(), time.process_time()
for _ in range(int(sys.argv[1])):
    hashlib.sha256(block).digest()
print(time.monotonic() - began, time.process_time() - used)
