"""A process of the given size in MiB whose every page counts for the result."""

import hashlib
import os
import sys
import time

import numpy as np

steps, megabytes = int(sys.argv[1]), int(sys.argv[2])
memory = np.random.default_rng(2).integers(0, 1 << 63, size=megabytes << 17, dtype=np.int64)
for step in range(steps):
    memory[step::4096] += step
    print("step", step, int(memory[::4096].sum()), flush=True)
    # Storing gigabytes takes a while: it goes on slowly until it is told that it may hurry.
    time.sleep(0.05 if os.path.exists("hurry") else 6)
digest = hashlib.blake2b()
for start in range(0, len(memory), 1 << 20):
    digest.update(memory[start : start + (1 << 20)].tobytes())
print("end", digest.hexdigest())
