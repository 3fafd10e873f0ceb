"""A memory-mapped output file, written in place, and an appended one."""

import mmap
import os
import struct
import sys
import time

steps = int(sys.argv[1])
with open("mapped.bin", "w+b") as handle, open("appended.txt", "a") as log:
    handle.truncate(1 << 20)
    memory = mmap.mmap(handle.fileno(), 1 << 20)
    total = 0
    for step in range(steps):
        total = (total + struct.unpack_from("<q", memory, 8 * (step * 37 % 131072))[0] + step) % (1 << 40)
        struct.pack_into("<q", memory, 8 * ((step * 37 + 37) % 131072), total)
        log.write(f"{step} {total}\n")
        log.flush()
        print("step", step, total, flush=True)
        time.sleep(0.01 if step < 60 or os.path.exists("hurry") else 0.5)
    memory.flush()
    memory.close()
print("end")
