"""GPUs, drivers and processes with CUDA as records, for tests of what is judged about them."""

from __future__ import annotations

from perdure.checkpoint.cuda.contract import Device, HeldDevice, Use
from perdure.checkpoint.host.gpu import Gpus
from perdure.checkpoint.preflight.gpu import NCCL_WANTED, GpuMember, GpuScene
from perdure.model.checkpoint import CheckpointId, CudaFact, GpuFact, HostFact, Manifest, Trigger

GIB = 1 << 30
NCCL = dict(NCCL_WANTED)


def uuid(number: int) -> str:
    """The UUID of a GPU."""
    return f"GPU-{number:08x}-0000-0000-0000-000000000000"


def device(number: int = 0, **other) -> Device:
    """A GPU with all its memory free."""
    values = {"model": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * GIB, "free_bytes": 79 * GIB, "capability": "9.0", **other}
    return Device(uuid=uuid(number), index=number, **values)


def gpus(*devices: Device, **other) -> Gpus:
    """A machine on which everything works."""
    values = {
        "kernel_driver": "610.80.02",
        "driver": "610.80.02",
        "cuda": (13, 4),
        "nodes": ("/dev/nvidiactl",),
        "bindings": "13.5.0",
        "architecture": "x86_64",
        **other,
    }
    return Gpus(devices=devices or (device(),), **values)


def member(pid: int = 7, **other) -> GpuMember:
    """A process with CUDA of its own."""
    return GpuMember(pid=pid, command="train", **{"is_cuda": True, **other})


def use(pid: int = 7, number: int = 0, memory_bytes: int | None = 4 * GIB, *, mps: bool = False) -> Use:
    """What NVML tells of a process."""
    return Use(uuid=uuid(number), pid=pid, memory_bytes=memory_bytes, mps=mps)


def held(pid: int = 9, path: str = "/dev/nvidia0", fd: int | None = 5) -> HeldDevice:
    """A device that a process has open."""
    return HeldDevice(pid=pid, command="worker", path=path, fd=fd)


def scene(*members: GpuMember, machine: Gpus | None = None, **other) -> GpuScene:
    """A tree on a machine with much free memory, where the driver tells what each of `members` has."""
    members = members or (member(),)
    machine = machine or gpus(uses=tuple(use(one.pid) for one in members if one.is_cuda))
    return GpuScene(machine=machine, members=members, **{"free_bytes": 200 * GIB, **other})


def fact(number: int = 0, used_bytes: int | None = 4 * GIB, **other) -> GpuFact:
    """A GPU of a manifest."""
    return GpuFact(
        uuid=uuid(number),
        used_bytes=used_bytes,
        **{"model": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * GIB, "capability": "9.0", **other},
    )


def manifest(*facts: GpuFact, driver: str = "610.80.02") -> Manifest:
    """A checkpoint of one process with CUDA, on a machine with the GPUs `facts`."""
    host = HostFact(
        hostname="n1",
        machine="x86_64",
        kernel="6.1.0",
        boot_id="b",
        cpu_model="Zen 4",
        cpu_flags=(),
        page_bytes=4096,
        criu_version="4.2.1",
        perdure_version="1",
        pid_max=4194304,
    )
    return Manifest(
        id=CheckpointId("train", 1, 1),
        created_ns=1,
        trigger=Trigger.REQUEST,
        reason="",
        command=("train",),
        working_directory="/",
        host=host,
        processes=(),
        streams=(),
        gpus=facts,
        cuda_processes=(CudaFact(pid=2, gpus=tuple(one.uuid for one in facts), memory_bytes=None),),
        gpu_driver=driver,
    )
