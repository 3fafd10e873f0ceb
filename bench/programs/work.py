"""A fixed amount of work for one core, whose own duration is printed: what a checkpoint system costs between its checkpoints."""

import hashlib
import sys
import time

block = bytes(1 << 20)
for _ in range(20):
    hashlib.sha256(block).digest()
began = time.monotonic()
for _ in range(int(sys.argv[1])):
    hashlib.sha256(block).digest()
print(time.monotonic() - began)
