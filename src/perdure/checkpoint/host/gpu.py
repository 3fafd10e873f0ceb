"""Facts about this machine's NVIDIA driver and GPUs. Called by preflight and by `perdure doctor --gpu`.

NVML is loaded in a process of its own: a driver that hangs, or a library that does not fit the kernel's driver, must not take the
supervisor with it. Nothing here initialises CUDA, and nothing is changed.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Set
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base.proc import process
from perdure.checkpoint.cuda import mapping, restriction
from perdure.checkpoint.cuda.contract import Device, Use

_PATIENCE_S = 60.0
"""Without persistence mode the driver loads and wakes every GPU for each question: some seconds a GPU."""
_MOST_ANSWER_BYTES = 4 << 20
NO_LIBRARY = 12
"""NVML_ERROR_LIBRARY_NOT_FOUND; here also: there is no NVML."""
_NOT_LOADED = 9
"""NVML_ERROR_DRIVER_NOT_LOADED: the libraries are there, the kernel's driver is not."""
_NO_PERMISSION = 4
"""NVML_ERROR_NO_PERMISSION: the device file cannot be opened from here."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MPS_PROGRAMS = frozenset({"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"})
_COMMAND_BYTES = 15
"""The kernel keeps so much of a program's name."""
_NODE = re.compile(r"/dev/nvidia(\d+|ctl|-uvm)")


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that NVML counts, and of which it tells nothing."""

    index: int
    """NVML's, for people."""
    number: int
    """NVML's own number of why."""
    words: str

    @property
    def is_forbidden(self) -> bool:
        """Tell whether it is only not for this process; otherwise it is lost, or broken."""
        return self.number == _NO_PERMISSION


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine has of NVIDIA's."""

    kernel_driver: str = ""
    """Version of the kernel's driver; empty: none is loaded."""
    is_open_driver: bool = False
    """The kernel's driver is the open one."""
    driver: str = ""
    """Version that NVML tells; empty: it told nothing."""
    cuda: tuple[int, int] | None = None
    """Newest CUDA that the driver offers, such as (13, 0)."""
    devices: tuple[Device, ...] = ()
    """Those that this process may use."""
    beyond: tuple[Device, ...] | None = None
    """All of the machine, where a control group keeps some from this process; None: there is none that does, or nobody looked."""
    unread: tuple[Unread, ...] = ()
    uses: tuple[Use, ...] = ()
    virtual: tuple[str, ...] = ()
    """UUIDs of vGPUs: parts of a GPU that a hypervisor gives."""
    nodes: tuple[str, ...] = ()
    """Device files."""
    refusal: str = ""
    """Why NVML told nothing; empty: it did."""
    refusal_number: int | None = None
    """NVML's own number of that."""
    bindings: str | None = None
    """Version of cuda-bindings; None: it is not installed."""
    mps: tuple[int, ...] = ()
    """PIDs of MPS's daemons."""
    architecture: str = ""

    @property
    def has_driver(self) -> bool:
        """Tell whether there is any sign of a driver."""
        has_answered = bool(self.refusal) and self.refusal_number not in (_NOT_LOADED, NO_LIBRARY)
        return bool(self.kernel_driver or self.driver or self.nodes) or has_answered

    @property
    def version(self) -> str:
        """The driver's version, as NVML or else the kernel tells it."""
        return self.driver or self.kernel_driver

    @property
    def whole(self) -> Gpus:
        """The machine as the helper sees it, whom nothing keeps from a GPU."""
        return self if self.beyond is None else msgspec.structs.replace(self, devices=self.beyond)

    def allowed(self, visible: str | None, everything: Set[str]) -> frozenset[str] | None:
        """Return the UUIDs of those of the machine's GPUs, `everything`, that a workload beside this process may use; None: all of them.

        `visible` is the value of CUDA_VISIBLE_DEVICES for it. Raises `errors.GpuUnavailable` where NVML does not tell.
        """
        if not self.driver:
            raise errors.GpuUnavailable(f"nobody tells which GPUs may be used: {self.refusal}", hint="see perdure doctor --gpu")
        ours = mapping.visible(visible, self.devices)
        if ours is None:
            ours = frozenset(device.uuid for device in self.devices)
        return None if ours >= everything else ours


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that asked NVML says."""

    driver: str = ""
    cuda: tuple[int, int] | None = None
    devices: tuple[Device, ...] = ()
    unread: tuple[Unread, ...] = ()
    uses: tuple[Use, ...] = ()
    virtual: tuple[str, ...] = ()
    refusal: str = ""
    refusal_number: int | None = None


def look(*, beyond: bool = False) -> Gpus:
    """Return what there is, in about the time that `nvidia-smi` takes; with `beyond`, and in a job, twice that."""
    kernel, is_open = _kernel_driver()
    nodes = tuple(sorted(path for path in glob.glob("/dev/nvidia*") if _NODE.fullmatch(path)))
    told = _ask()
    return Gpus(
        kernel_driver=kernel,
        is_open_driver=is_open,
        driver=told.driver,
        cuda=told.cuda,
        devices=told.devices,
        beyond=_beyond(told) if beyond else None,
        unread=told.unread,
        uses=told.uses,
        virtual=told.virtual,
        nodes=nodes,
        refusal=told.refusal,
        refusal_number=told.refusal_number,
        bindings=_bindings(),
        mps=_mps(),
        architecture=platform.machine(),
    )


def _beyond(told: Told) -> tuple[Device, ...] | None:
    """Return all GPUs of the machine, where the ones that this process was `told` of are not all."""
    if not any(one.is_forbidden for one in told.unread) and not restriction.is_restricted(restriction.nodes()):
        return None
    whole = _ask("--beyond")
    return whole.devices if whole.driver else None


def own() -> str | None:
    """Return CUDA_VISIBLE_DEVICES of this process; None: it is not set."""
    return os.environ.get(_VISIBLE)


def as_variables(value: str | None) -> dict[str, str]:
    """Return variables in which CUDA_VISIBLE_DEVICES is `value`; none for None."""
    return {} if value is None else {_VISIBLE: value}


def visible(variables: Mapping[str, str]) -> str | None:
    """Return CUDA_VISIBLE_DEVICES of an owner's `variables`, or else of this process; None: it is not set."""
    return variables.get(_VISIBLE, os.environ.get(_VISIBLE))


def _kernel_driver() -> tuple[str, bool]:
    """Return the version of the kernel's driver, and whether it is the open one."""
    with contextlib.suppress(OSError):
        said = Path("/proc/driver/nvidia/version").read_text("utf-8", "replace")
        found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", said)
        if found:
            return found[1], "Open Kernel Module" in said
    with contextlib.suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text("ascii", "replace").strip(), False
    return "", False


def _ask(*arguments: str) -> Told:
    """Ask NVML in a process of its own."""
    # -P: the working directory may be a user's, and must not be searched for modules.
    command = [sys.executable, "-P", "-m", "perdure.checkpoint.host.gpu_nvml", *arguments]
    variables = {
        **(restriction.without(os.environ) if arguments else os.environ),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE_S, env=variables, check=False)
    except subprocess.TimeoutExpired:
        return Told(refusal=f"NVML did not answer within {_PATIENCE_S:g} s")
    if done.returncode < 0:
        return Told(refusal=f"NVML was ended by signal {-done.returncode}")
    try:
        return msgspec.json.decode(done.stdout[:_MOST_ANSWER_BYTES], type=Told)
    except msgspec.DecodeError:
        return Told(refusal=f"NVML ended with status {done.returncode}: {done.stderr[-500:].decode('utf-8', 'replace').strip()}")


def _bindings() -> str | None:
    try:
        return importlib.metadata.version("cuda-bindings")
    except importlib.metadata.PackageNotFoundError:
        return None


def _mps() -> tuple[int, ...]:
    short = {name[:_COMMAND_BYTES] for name in _MPS_PROGRAMS}
    found = []
    for pid in process.pids():
        with contextlib.suppress(errors.ProcessGone, errors.InputDenied):
            if process.stat(pid).command in short and os.path.basename(process.command_line(pid)[0:1][0]) in _MPS_PROGRAMS:
                found.append(pid)
    return tuple(found)
