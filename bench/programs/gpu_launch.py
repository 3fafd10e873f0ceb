"""Launches a kernel that does next to nothing, as fast as it can: the worst case for whoever stands between program and driver.

`gpu_launch.py SECONDS` prints launches a second, and ends with 1 when the GPU counted otherwise. The kernel is text that the driver itself
translates: no compiler is needed.
"""

import ctypes
import sys
import time

PTX = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry count(.param .u64 where)
{
	.reg .b64 %rd<3>;
	.reg .b32 %r<3>;
	ld.param.u64 %rd1, [where];
	cvta.to.global.u64 %rd2, %rd1;
	ld.global.u32 %r1, [%rd2];
	add.u32 %r2, %r1, 1;
	st.global.u32 [%rd2], %r2;
	ret;
}
\0"""
BATCH = 1000

cuda = ctypes.CDLL("libcuda.so.1")


def call(function: str, *arguments: object) -> None:
    result = getattr(cuda, function)(*arguments)
    if result:
        sys.exit(f"{function}: error {result}")


context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
counter, counted = ctypes.c_uint64(), ctypes.c_uint32(0)
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", ctypes.byref(module), PTX)
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"count")
call("cuMemAlloc_v2", ctypes.byref(counter), ctypes.c_size_t(4096))
call("cuMemcpyHtoD_v2", counter, ctypes.byref(counted), ctypes.c_size_t(4))
arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(counter), ctypes.c_void_p))
launch = cuda.cuLaunchKernel
launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]


def batch() -> None:
    for _ in range(BATCH):
        if launch(kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None):
            sys.exit("cuLaunchKernel failed")
    call("cuCtxSynchronize")


batch()
launched, began = 1, time.perf_counter()
while time.perf_counter() - began < float(sys.argv[1]):
    batch()
    launched += 1
took = time.perf_counter() - began
call("cuMemcpyDtoH_v2", ctypes.byref(counted), counter, ctypes.c_size_t(4))
if counted.value != launched * BATCH % (1 << 32):
    sys.exit(f"{launched * BATCH} launched, {counted.value} counted")
print(f"{(launched - 1) * BATCH / took:.1f}")
