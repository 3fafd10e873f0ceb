"""A stand-in for the NVIDIA driver: `libcuda.so.1` and `libnvidia-ml.so.1` in C, built by the tests and loaded by the real bindings.

It plays the driver's documented checkpoint interface over real processes. Its world is one folder (`Standin.root`):

- ``driver``: lines ``KEY VALUE``: ``version 580.65.06``, ``cuda 13040``, ``features checkpoint remap custom-storage page-locking``;
  also ``mps``, ``vgpu``, and ``no-pids``: NVML tells of no process.
- ``gpus``: a line for each device: ``UUID MEMORY_BYTES CAPABILITY MIG MODEL…``.
- ``refused``: a line for each device of which NVML tells nothing: ``UUID NUMBER handle|memory`` (see `Refused`). Of those that the variable
  ``NVIDIA_STANDIN_HIDDEN`` names it tells nothing either, as where a control group forbids them.
- ``faults``: a line for each fault: ``OPERATION NTH ACTION NUMBER`` (see `Fault`).
- ``calls``: what was called, one line each: ``OPERATION PID RESULT``; the count of lines decides which call is the nth.
- ``memory/UUID/…``: the memory of the devices, one file an allocation.
"""
