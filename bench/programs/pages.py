"""A process of so many MiB that changes as many of its pages as it is told: one number a line on standard input, one answer each."""

import sys

import numpy as np

memory = np.random.default_rng(0).integers(0, 1 << 63, size=int(sys.argv[1]) << 17, dtype=np.int64)
pages = len(memory) // 512
rng = np.random.default_rng(1)
print("ready", flush=True)
for line in sys.stdin:
    changed = rng.choice(pages, size=int(line), replace=False)
    memory[changed * 512 + 7] += 1
    print("changed", len(changed), flush=True)
