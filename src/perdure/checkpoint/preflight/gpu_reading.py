"""Read what of a tree has to do with GPUs. Called by `save`; a tree without CUDA costs nothing but a look at what was read already."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from perdure import errors
from perdure.base.proc import process
from perdure.checkpoint.cuda import processes as cuda_processes
from perdure.checkpoint.cuda.contract import CudaProcess, HeldDevice, State, Use
from perdure.checkpoint.host import gpu as host
from perdure.checkpoint.host import gpu_drivers as drivers
from perdure.checkpoint.preflight import gpu_room
from perdure.checkpoint.preflight.gpu import GpuMember, GpuScene
from perdure.checkpoint.preflight.plan import AskStates
from perdure.checkpoint.preflight.scene import Member, Scene

_MANAGED = "nvidia-uvm"


def read(seen: Scene, ask: AskStates | None, *, is_suspended: bool) -> GpuScene | None:
    """Return what of `seen` has to do with GPUs; None where nothing has, or where CUDA is only loaded and no device is held.

    `ask` asks the driver; without it, a process is taken for one with CUDA of its own by what it holds and by what NVML tells.
    """
    touching = {member.pid: member for member in seen.members if _held(member) or _has_library(member, "libcuda.so")}
    if not touching:
        return None
    loaded = [member for member in touching.values() if _has_library(member, "libcuda.so") and not member.is_dead]
    if not is_suspended and ask is None and not any(_held(member) for member in touching.values()):
        return None  # as in a program that could use a GPU, on a machine without one
    machine = host.look()
    states = ask([_named(member) for member in loaded]) if ask is not None else {}
    cuda = frozenset(_with_cuda(loaded, states, machine.uses, is_suspended=is_suspended))
    members = tuple(_member(member, states, is_cuda=member.pid in cuda) for member in touching.values())
    if not cuda and not any(member.held for member in members):
        return None
    return GpuScene(
        machine=machine,
        members=members,
        free_bytes=gpu_room.free_bytes(seen.root),
        is_direct=drivers.can(drivers.Ability.DIRECT, drivers.version(machine.version), machine.cuda),
        is_suspended=is_suspended,
    )


def _with_cuda(loaded: list[Member], states: Mapping[int, State | None], uses: tuple[Use, ...], *, is_suspended: bool) -> Iterator[int]:
    """Yield the PIDs of those with CUDA of their own.

    A forked worker has its parent's library and devices and no CUDA: the driver refuses it. NVML, where it tells of any, tells of all.
    """
    told = {use.pid for use in uses} & {member.pid for member in loaded}
    for member in loaded:
        if member.pid in states:
            if states[member.pid] is not None:
                yield member.pid
        elif told and not is_suspended:
            if member.pid in told:
                yield member.pid
        elif is_suspended or _held(member):
            yield member.pid


def _named(member: Member) -> CudaProcess:
    return CudaProcess(pid=member.pid, start_ticks=member.stat.start_ticks, inner_pid=member.status.inner_pid, command=member.stat.command)


def _has_library(member: Member, name: str) -> bool:
    return any(os.path.basename(mapping.path).startswith(name) for mapping in member.mappings)


def _held(member: Member) -> tuple[HeldDevice, ...]:
    command = member.stat.command
    opened = [
        HeldDevice(pid=member.pid, command=command, path=one.target, fd=one.number)
        for one in member.descriptors
        if cuda_processes.is_device(one.target)
    ]
    mapped = sorted({mapping.path for mapping in member.mappings if cuda_processes.is_device(mapping.path)})
    return (*opened, *(HeldDevice(pid=member.pid, command=command, path=path, fd=None) for path in mapped))


def _member(member: Member, states: Mapping[int, State | None], *, is_cuda: bool) -> GpuMember:
    variables: dict[str, str] = {}
    arguments: tuple[str, ...] = ()
    with contextlib.suppress(errors.ProcessGone, errors.InputDenied):
        variables = {name: value for name, value in process.environment(member.pid).items() if name.startswith("NCCL_")}
        arguments = process.command_line(member.pid)
    return GpuMember(
        pid=member.pid,
        command=member.stat.command,
        is_cuda=is_cuda,
        state=states.get(member.pid),
        held=_held(member),
        managed_bytes=sum(
            mapping.size_bytes for mapping in member.mappings if os.path.basename(mapping.path) == _MANAGED and "w" in mapping.permissions
        ),
        has_nccl=_has_library(member, "libnccl"),
        variables=variables,
        arguments=arguments,
    )
