"""Rules about NVIDIA's driver and the GPUs of this machine. Pure. Called by `gpu`, `gpu_restore` and `perdure doctor --gpu`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from perdure.base import units
from perdure.checkpoint.cuda.contract import Device
from perdure.checkpoint.host import gpu_drivers as drivers
from perdure.checkpoint.host.gpu import Gpus
from perdure.checkpoint.preflight.codes import finding
from perdure.model.finding import Finding

_MISMATCH = 18
"""NVML_ERROR_LIB_RM_VERSION_MISMATCH."""
_NOT_SAVED_ON = ("GB10",)
"""Models whose driver answers CUDA_ERROR_NOT_SUPPORTED (NVIDIA/cuda-checkpoint#51)."""


def judge(gpus: Gpus) -> tuple[Finding, ...]:
    """Return what a person should know of this machine's driver and GPUs: all of it, what works too."""
    lacking = tuple(unfit(gpus, None))
    if not gpus.driver:
        return lacking
    forbidden = tuple(finding("gpu-forbidden", f"GPU {one.index}", one.words) for one in gpus.unread if one.is_forbidden)
    return (*lacking, *service(gpus), *_missing_abilities(gpus), _driver(gpus), *forbidden, *map(_device, gpus.devices))


def unfit(gpus: Gpus, used: Collection[str] | None) -> Iterator[Finding]:
    """Yield what keeps GPU state from being saved here, and what to beware of.

    `used` are the UUIDs of the GPUs that matter; None: all.
    """
    if not gpus.has_driver:
        yield finding("gpu-no-driver", "NVIDIA driver", f"none is loaded ({gpus.refusal})" if gpus.refusal else "none is loaded")
        return
    if not gpus.driver:
        code = "gpu-driver-mismatch" if gpus.refusal_number == _MISMATCH else "gpu-driver-silent"
        kernel = f"the kernel has driver {gpus.kernel_driver}" if gpus.kernel_driver else "the kernel's driver tells no version"
        yield finding(code, "NVIDIA driver", f"{gpus.refusal}; {kernel}")
        return
    yield from version(gpus)
    if gpus.bindings is None:
        yield finding("gpu-no-bindings", "cuda-bindings", "is not installed")
    if not gpus.devices:
        forbidden = sum(one.is_forbidden for one in gpus.unread)
        besides = f"; {forbidden} {'is' if forbidden == 1 else 'are'} not for this process" if forbidden else ""
        yield finding("gpu-no-device", "NVIDIA driver", f"driver {gpus.driver} shows no GPU{besides}")
    for one in gpus.unread:
        if not one.is_forbidden:
            yield finding("gpu-lost", f"GPU {one.index}", one.words)
    for device in gpus.devices:
        if used is None or device.uuid in used:
            yield from _kind(gpus, device)


def service(gpus: Gpus) -> Iterator[Finding]:
    """Yield a finding when a daemon of MPS's runs: what begins to use CUDA goes through it."""
    if gpus.mps:
        yield finding("gpu-mps", "MPS", f"its daemon runs (pid {', '.join(map(str, gpus.mps))})", pid=gpus.mps[0])


def version(gpus: Gpus) -> Iterator[Finding]:
    """Yield what is wrong with the driver's version."""
    numbers = drivers.version(gpus.version)
    if numbers and not drivers.can(drivers.Ability.SAVE, numbers, gpus.cuda):
        (step,) = (one for one in drivers.LADDER if one.ability is drivers.Ability.SAVE)
        yield finding("gpu-driver-old", f"driver {gpus.version}", f"{step.needs} is the first that can {step.words}", flag=gpus.version)
    for known in drivers.advisories(numbers, is_open=gpus.is_open_driver):
        code = "gpu-driver-faulty" if known.forbids else "gpu-driver-caution"
        yield finding(code, f"driver {gpus.version}", f"{known.fault} (reported: {known.source})", flag=gpus.version)


def _kind(gpus: Gpus, device: Device) -> Iterator[Finding]:
    subject = name(device)
    if device.mig:
        yield finding("gpu-mig", subject, "MIG is enabled", flag=device.uuid)
    if device.uuid in gpus.virtual:
        yield finding("gpu-virtual", subject, "is a virtual GPU", flag=device.uuid)
    if any(model in device.model for model in _NOT_SAVED_ON):
        yield finding("gpu-platform", subject, f"its GPU state is not saved by NVIDIA's driver ({gpus.architecture})", flag=device.uuid)


def _missing_abilities(gpus: Gpus) -> Iterator[Finding]:
    numbers = drivers.version(gpus.version)
    if not drivers.can(drivers.Ability.SAVE, numbers, gpus.cuda):
        return  # what else it lacks does not matter then
    codes = {
        drivers.Ability.REMAP: "gpu-no-remap",
        drivers.Ability.SHARED: "gpu-no-shared",
        drivers.Ability.DIRECT: "gpu-no-direct",
    }
    for step in drivers.LADDER:
        if step.ability in codes and not drivers.can(step.ability, numbers, gpus.cuda):
            yield finding(
                codes[step.ability], f"driver {gpus.version}", f"{step.needs} is the first that can {step.words}", flag=gpus.version
            )


def _driver(gpus: Gpus) -> Finding:
    numbers = drivers.version(gpus.version)
    able = [step.words for step in drivers.LADDER if drivers.can(step.ability, numbers, gpus.cuda)]
    cuda = f", CUDA {gpus.cuda[0]}.{gpus.cuda[1]}" if gpus.cuda else ""
    kind = ", open kernel module" if gpus.is_open_driver else ""
    return finding("gpu-driver", f"driver {gpus.version}", f"can {'; '.join(able) or 'save no GPU state'}{cuda}{kind}", flag=gpus.version)


def _device(device: Device) -> Finding:
    free, whole = units.format_size(device.free_bytes), units.format_size(device.memory_bytes)
    capability = f", compute capability {device.capability}" if device.capability else ""
    return finding("gpu-device", name(device), f"{free} of {whole} free{capability}", flag=device.uuid)


def name(device: Device) -> str:
    """Return what findings call a GPU."""
    return f"GPU {device.index} ({device.model})"
