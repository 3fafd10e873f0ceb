"""NumPy: power iteration on a fixed matrix, with the library's own threads."""

import os
import sys
import time

import numpy as np

steps = int(sys.argv[1])
rng = np.random.default_rng(1)
matrix = rng.normal(size=(400, 400))
matrix = matrix + matrix.T
vector = rng.normal(size=400)
for step in range(steps):
    vector = matrix @ vector
    norm = np.linalg.norm(vector)
    vector /= norm
    vector += rng.normal(size=400) * 1e-3
    print("step", step, norm.hex(), flush=True)
    time.sleep(0.01 if step < 60 or os.path.exists("hurry") else 0.5)
np.save("vector.npy", vector)
print("end")
