"""Rules about a running workload that uses NVIDIA's GPUs. Pure functions of what `gpu_reading` found. Called by `save`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from perdure.base import units
from perdure.checkpoint.cuda import amounts
from perdure.checkpoint.cuda.contract import HeldDevice, State, Use
from perdure.checkpoint.host import gpu_drivers as drivers
from perdure.checkpoint.host.gpu import Gpus
from perdure.checkpoint.preflight import gpu_machine
from perdure.checkpoint.preflight.codes import finding
from perdure.model.finding import Finding

NCCL_WANTED = (("NCCL_P2P_DISABLE", "1"), ("NCCL_NVLS_ENABLE", "0"), ("NCCL_SHM_DISABLE", "1"))
"""What lets NCCL come to rest (NVIDIA/nvcf#1183, NVIDIA/nccl#2337, #2350)."""
VLLM_WANTED = ("--enforce-eager", "--disable-custom-all-reduce")
MANAGED_BYTES = 64 << 20
"""More than this of the unified memory device in a process's maps is taken for managed memory: every CUDA process maps a little of it
for the driver's own use."""


class GpuMember(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the tree that has to do with GPUs. `pid` is the host's."""

    pid: int
    command: str
    is_cuda: bool
    """It has CUDA of its own; false: it only holds devices, or has the library loaded."""
    state: State | None = None
    """What the driver says of it; None: it was not asked."""
    held: tuple[HeldDevice, ...] = ()
    managed_bytes: int = 0
    """Mapped through the unified memory device, writable."""
    has_nccl: bool = False
    """NCCL's library is loaded."""
    variables: Mapping[str, str] = {}
    """Of its environment those that begin with ``NCCL_``, at its start."""
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """How findings call it."""
        return f"pid {self.pid} ({self.command})"


class GpuScene(msgspec.Struct, frozen=True, kw_only=True):
    """What of a tree and its machine has to do with GPUs."""

    machine: Gpus
    members: tuple[GpuMember, ...]
    free_bytes: int
    """Free memory of the machine, within the limits of control groups."""
    is_direct: bool = False
    """GPU memory is handed out to be stored, and needs no room in the machine's memory."""
    is_suspended: bool = False
    """The workload's GPU state was moved away on purpose."""

    @property
    def cuda(self) -> tuple[GpuMember, ...]:
        """Those with CUDA of their own."""
        return tuple(member for member in self.members if member.is_cuda)

    @property
    def uses(self) -> tuple[Use, ...]:
        """What the driver tells of them."""
        pids = {member.pid for member in self.cuda}
        return tuple(use for use in self.machine.uses if use.pid in pids)

    @property
    def sizes(self) -> amounts.Sizes:
        """Their GPU memory, as far as it is told; it may be on any GPU that they hold where nothing is."""
        held = tuple(held for member in self.cuda for held in member.held)
        return amounts.of((member.pid for member in self.cuda), self.uses, held, self.machine.devices)

    @property
    def most_bytes(self) -> int:
        """How much that is at most."""
        sizes = self.sizes
        return sum(amounts.at_most(device, sizes) for device in self.machine.devices)

    @property
    def used(self) -> frozenset[str]:
        """UUIDs of the GPUs that they use, as far as that is told."""
        return frozenset(use.uuid for use in self.uses)

    @property
    def has_several(self) -> bool:
        """Tell whether several GPUs are used; where the driver does not tell, whether several processes use CUDA."""
        return len(self.used) > 1 or (not self.used and len(self.cuda) > 1 and len(self.machine.devices) > 1)


def check(scene: GpuScene) -> Iterator[Finding]:
    """Yield what would prevent saving the GPU state of `scene`, or make it less than is expected."""
    if scene.cuda:
        yield from gpu_machine.unfit(scene.machine, scene.used or None)
        yield from _multi_process_service(scene)
        yield from _states(scene)
        if scene.machine.driver:
            yield from _room(scene)
            yield from _shared(scene)
        yield from _nccl(scene)
        yield from _vllm(scene)
    for member in scene.members:
        if member.is_cuda:
            yield from _managed(member)
        elif member.held:
            yield _held(member)


def _multi_process_service(scene: GpuScene) -> Iterator[Finding]:
    for pid in sorted({use.pid for use in scene.uses if use.mps}):
        yield finding("gpu-mps", f"pid {pid}", "works through MPS", pid=pid)
    if not scene.uses and not scene.is_suspended:  # where NVML tells of none, a daemon is all there is to go by
        yield from gpu_machine.service(scene.machine)


def _states(scene: GpuScene) -> Iterator[Finding]:
    for member in scene.cuda:
        if member.state is State.FAILED:
            yield finding("gpu-failed", member.name, "the driver says that its GPU state is lost", pid=member.pid)
        elif member.state not in (None, State.RUNNING) and not scene.is_suspended:
            yield finding("gpu-stuck", member.name, f"the driver says {member.state.value if member.state else ''}", pid=member.pid)


def _room(scene: GpuScene) -> Iterator[Finding]:
    if scene.is_suspended:
        return  # it is in the machine's memory already
    is_told, size = bool(scene.uses) and amounts.is_told(scene.sizes), units.format_size(scene.most_bytes)
    if not is_told:
        whom = "some processes only" if any(use.memory_bytes for use in scene.uses) else "no process"
        message = f"NVML tells it for {whom}: it is at most {size}, what is in use on the GPUs that the workload has open"
        yield finding("gpu-memory-unknown", "GPU memory", message)
    if scene.most_bytes > scene.free_bytes and not scene.is_direct:
        has = f"has {'' if is_told else 'at most '}{size}"
        yield finding(
            "gpu-host-memory", "GPU memory", f"the workload {has} of it, {units.format_size(scene.free_bytes)} of memory is free here"
        )


def _shared(scene: GpuScene) -> Iterator[Finding]:
    machine = scene.machine
    if drivers.can(drivers.Ability.SHARED, drivers.version(machine.version), machine.cuda):
        return
    sharing = [member for member in scene.cuda if member.variables.get("NCCL_P2P_DISABLE") != "1"]
    if len(sharing) > 1:
        names = ", ".join(str(member.pid) for member in sharing[:8])
        yield finding("gpu-shared-memory", f"driver {machine.version}", f"{len(sharing)} processes have CUDA: {names}", flag="CUDA IPC")


def _nccl(scene: GpuScene) -> Iterator[Finding]:
    if not scene.has_several:
        return
    for member in scene.cuda:
        missing = [f"{name}={value}" for name, value in NCCL_WANTED if member.variables.get(name) != value]
        if member.has_nccl and missing:
            yield finding(
                "gpu-nccl",
                member.name,
                f"was started without {' '.join(missing)}",
                pid=member.pid,
                flag=" ".join(missing),
                remedy=f"start it with {' '.join(missing)}",
            )


def _vllm(scene: GpuScene) -> Iterator[Finding]:
    if not scene.has_several:
        return
    for member in scene.members:
        words = {word.partition("=")[0] for word in member.arguments}
        missing = [option for option in VLLM_WANTED if option not in words]
        if missing and any("vllm" in word for word in member.arguments[:4]):
            yield finding(
                "gpu-vllm",
                member.name,
                f"was started without {' '.join(missing)}",
                pid=member.pid,
                flag=" ".join(missing),
                remedy=f"start it with {' '.join(missing)}",
            )


def _managed(member: GpuMember) -> Iterator[Finding]:
    if member.managed_bytes > MANAGED_BYTES:
        message = f"has {units.format_size(member.managed_bytes)} mapped through /dev/nvidia-uvm"
        yield finding("gpu-managed-memory", member.name, message, pid=member.pid, path="/dev/nvidia-uvm")


def _held(member: GpuMember) -> Finding:
    first = member.held[0]
    names = ", ".join(sorted({held.path for held in member.held}))
    where = f"fd {first.fd}" if first.fd is not None else "mapped"
    return finding("gpu-device-held", member.name, f"holds {names} ({where})", pid=member.pid, fd=first.fd, path=first.path)
