"""A program that works on a "GPU" of the stand-in: run by the tests, also below CRIU.

`program.py BYTES [GPU] [PAUSE_US] [WORK_US] [LIMIT]` allocates BYTES filled with a pattern, starts a kernel that counts in their first
words, and says how far it is: ``at N``, with the pattern checked every time. It ends with 1 when a step is missing, was done twice, or the
pattern changed.
"""

import ctypes
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")
PATTERN = bytes(range(256)) * 256
MULTIPLIER, ADDEND, MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1


def must(result: int) -> None:
    if result:
        sys.exit(f"CUDA error {result}")


def main(size: int, gpu: int = 0, pause_us: int = 1000, work_us: int = 0, limit: int = 1 << 62) -> None:
    must(cuda.cuInit(0))
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)))
    content = (PATTERN * (size // len(PATTERN) + 1))[: size - 16]
    must(cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(memory.value + 16), content, ctypes.c_size_t(len(content))))
    must(cuda.standinLaunch(memory, pause_us, work_us))
    words, back = (ctypes.c_uint64 * 2)(), ctypes.create_string_buffer(len(content))
    count, value = 0, 0
    while count < limit:
        must(cuda.cuMemcpyDtoH_v2(words, memory, ctypes.c_size_t(16)))
        must(cuda.cuMemcpyDtoH_v2(back, ctypes.c_uint64(memory.value + 16), ctypes.c_size_t(len(content))))
        while count < words[0]:
            count, value = count + 1, (value * MULTIPLIER + ADDEND) & MASK
        if (count, value) != (words[0], words[1]):
            sys.exit(f"at {words[0]} the GPU went astray")
        if back.raw != content:
            sys.exit("the memory of the GPU changed")
        sys.stdout.write(f"at {count}\n")
        sys.stdout.flush()
        time.sleep(0.02)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
