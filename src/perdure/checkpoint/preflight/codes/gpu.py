"""Codes of findings about: NVIDIA's driver, GPUs, and workloads that use them."""

from __future__ import annotations

from perdure.checkpoint.preflight.codes.code import Code, Group
from perdure.model.finding import Severity

_P = Severity.PROBLEM
_W = Severity.WARNING
_I = Severity.INFO

MACHINE = Group(
    "NVIDIA's driver and GPUs on this machine",
    (
        Code("gpu-no-driver", _P, "there is no NVIDIA driver on this machine", "install NVIDIA's driver, 570 or newer"),
        Code(
            "gpu-driver-silent",
            _P,
            "a driver is loaded and does not answer, or its libraries are not where programs find them",
            "see what nvidia-smi and dmesg say; in a container, let NVIDIA's container toolkit bring the libraries in (capability utility)",
        ),
        Code(
            "gpu-driver-mismatch",
            _P,
            "the kernel's driver and the driver's libraries have different versions, as after an update without a reboot",
            "reboot, or load the new module when no process uses a GPU",
        ),
        Code("gpu-no-device", _P, "the driver shows no GPU", "see nvidia-smi; in a container or a job, ask for a GPU"),
        Code(
            "gpu-lost",
            _W,
            "the driver counts a GPU and does not get an answer from it: it has fallen off the bus, or is broken",
            "see dmesg for the driver's messages (Xid); reset the GPU when nobody uses it (nvidia-smi -r -i N), or reboot",
        ),
        Code("gpu-driver-old", _P, "the driver is too old to save GPU state with a time limit", "install driver 570 or newer"),
        Code(
            "gpu-driver-faulty",
            _P,
            "this version of the driver is known to end the processes that it should save",
            "install another version of the driver",
        ),
        Code(
            "gpu-driver-caution",
            _W,
            "this version of the driver is known to be faulty in a way that can be avoided",
            "install another version of the driver, or avoid it as the message says",
        ),
        Code(
            "gpu-no-remap",
            _W,
            "the driver brings GPU state back only to the very GPUs it was saved from: not to other ones, nor to another machine's",
            "install driver 580 or newer",
        ),
        Code(
            "gpu-no-shared",
            _I,
            "the driver cannot save GPU memory that processes share by CUDA IPC",
            "install driver 610 or newer where workloads need it",
        ),
        Code(
            "gpu-no-direct",
            _I,
            "the driver moves GPU memory through the workload's own memory, which has to have room for it",
            "a driver for CUDA 13.4 or newer hands it out to be stored",
        ),
        Code("gpu-no-bindings", _P, "the library that speaks to the driver is not installed", "pip install 'perdure[gpu]'"),
        Code(
            "gpu-mig",
            _P,
            "a GPU is split by MIG, and the driver cannot save what runs on a part of one; it would say out of memory",
            "use a whole GPU: nvidia-smi -i N -mig 0 when nobody uses it",
        ),
        Code(
            "gpu-mps",
            _P,
            "CUDA processes go through the multi-process service (MPS), with which the driver cannot save them",
            "run the workload without MPS: echo quit | nvidia-cuda-mps-control when nobody uses it",
        ),
        Code(
            "gpu-virtual",
            _P,
            "a GPU is a virtual one (vGPU), whose state the driver cannot save",
            "use a machine with the GPU itself, or one that is passed through whole",
        ),
        Code(
            "gpu-platform",
            _P,
            "NVIDIA's driver does not save GPU state on this platform: it answers CUDA_ERROR_NOT_SUPPORTED (801) there",
            "use another machine",
        ),
        Code(
            "gpu-canary-failed",
            _P,
            "a tiny CUDA process was to be locked, saved, brought back and unlocked, and was not",
            "see what the message names; nvidia-smi and dmesg may say more",
        ),
        Code("gpu-canary", _I, "a tiny CUDA process was locked, saved, brought back and unlocked", ""),
        Code("gpu-driver", _I, "which driver there is, and what it can do", ""),
        Code(
            "gpu-forbidden",
            _I,
            "the machine has a GPU that this process may not use, as in a job that was not given it",
            "ask the scheduler for it; outside of a job, see who may open it: ls -l /dev/nvidia*",
        ),
        Code("gpu-device", _I, "a GPU, and how much of its memory is free", ""),
        Code(
            "gpu-criu-plugin",
            _I,
            "CRIU's own plug-in for CUDA is installed: Perdure turns it off, since it speaks to the driver itself, in a safe order",
            "",
        ),
    ),
)

SAVING = Group(
    "GPU state of a running workload",
    (
        Code(
            "gpu-host-memory",
            _P,
            "free memory of the machine is less than the workload's GPU memory, which is moved there first",
            "free memory, or take fewer workloads at once; a driver for CUDA 13.4 or newer needs none",
        ),
        Code(
            "gpu-memory-unknown",
            _W,
            "the driver does not tell how much GPU memory the workload has: all that is in use on its GPUs is taken for it",
            "run it outside a container, as root, where NVML tells it",
        ),
        Code(
            "gpu-device-held",
            _P,
            "a process that has no CUDA of its own has a GPU's device open or mapped, as workers that were forked after CUDA began do:"
            " it stays open when GPU state is taken away, and CRIU cannot save it",
            "start such workers by spawn instead of fork (PyTorch: DataLoader(multiprocessing_context='spawn')), or before CUDA is used",
        ),
        Code(
            "gpu-managed-memory",
            _W,
            "much memory is mapped through NVIDIA's unified memory device: managed memory (cudaMallocManaged), which the driver refuses to"
            " save, looks like this",
            "use cudaMalloc; PyTorch: no managed allocator; RAPIDS: rmm without managed_memory",
        ),
        Code(
            "gpu-shared-memory",
            _W,
            "several processes use GPUs and may share memory by CUDA IPC, which cannot be seen from outside: this driver would refuse it",
            "install driver 610 or newer, or switch sharing off: NCCL_P2P_DISABLE=1",
        ),
        Code(
            "gpu-nccl",
            _W,
            "NCCL works over several GPUs with transports that cannot be saved: the workload would not come to rest in time",
            "start it with NCCL_P2P_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_SHM_DISABLE=1",
        ),
        Code(
            "gpu-vllm",
            _W,
            "vLLM works over several GPUs with CUDA graphs or an all-reduce of its own, which do not come back",
            "start it with --enforce-eager --disable-custom-all-reduce",
        ),
        Code(
            "gpu-failed",
            _P,
            "the driver has lost a process's GPU state: it can only be ended",
            "end it: perdure stop; the next run goes on from the newest checkpoint",
        ),
        Code(
            "gpu-stuck",
            _W,
            "a process is locked or holds its GPU state in its own memory, and nobody is known to be at work on it",
            "bring it back: perdure resume NAME",
        ),
    ),
)

RESTORING = Group(
    "Restoring GPU state here",
    (
        Code(
            "restore-gpu-driver",
            _P,
            "the driver has another version than the one the checkpoint was made with, whose library the workload has in its memory",
            "restore under that version of the driver",
        ),
        Code(
            "restore-gpu-storage",
            _P,
            "GPU memory was saved in the way of drivers for CUDA 13.4 and newer, and this driver cannot take it back so",
            "restore under a driver for CUDA 13.4 or newer",
        ),
        Code(
            "restore-gpu-missing",
            _P,
            "there are fewer GPUs of the kind the workload used than it needs",
            "restore on a machine that has them",
        ),
        Code(
            "restore-gpu-memory",
            _P,
            "a GPU has less free memory than the workload had on it: it would be left without its GPU state",
            "end what uses the GPU, or restore where it is free",
        ),
        Code(
            "restore-gpu-remap",
            _P,
            "the GPUs are other ones than it was saved from, and this driver brings GPU state back only to the same",
            "install driver 580 or newer, or restore where it was saved",
        ),
        Code(
            "restore-gpu-other",
            _W,
            "the workload comes back on other GPUs: bus addresses that it asked for earlier (NCCL, NVML) are those of the old ones",
            "let the program set NCCL up again after a restore, if it uses several GPUs",
        ),
    ),
)
