"""Rules about bringing GPU state back on this machine. Pure. Called by `restore`."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.checkpoint.cuda import mapping
from perdure.checkpoint.cuda.contract import Driver
from perdure.checkpoint.cuda.mapping import Lack, Shortage
from perdure.checkpoint.host import gpu_drivers as drivers
from perdure.checkpoint.host.gpu import Gpus
from perdure.checkpoint.preflight import gpu_machine
from perdure.checkpoint.preflight.codes import finding
from perdure.model.checkpoint import Manifest
from perdure.model.finding import Finding

_CODES = {Lack.MISSING: "restore-gpu-missing", Lack.REMAP: "restore-gpu-remap", Lack.MEMORY: "restore-gpu-memory"}


def check(manifest: Manifest, gpus: Gpus, allowed: frozenset[str] | None = None) -> Iterator[Finding]:
    """Yield what would prevent bringing back the GPU state of `manifest`, or make it other than it was.

    `allowed` are the UUIDs of the GPUs that the workload may use here; None: all.
    """
    if not manifest.cuda_processes:
        return
    driver = Driver(
        version=gpus.version,
        cuda="",
        has_checkpoint=True,
        has_remap=drivers.can(drivers.Ability.REMAP, drivers.version(gpus.version), gpus.cuda),
        has_custom_storage=drivers.can(drivers.Ability.DIRECT, drivers.version(gpus.version), gpus.cuda),
    )
    found = mapping.pair(manifest.gpus, gpus.devices, driver, allowed)
    planned: mapping.Map = () if isinstance(found, Shortage) else found
    yield from gpu_machine.unfit(gpus, _taken(manifest, planned))
    if not gpus.driver:
        return
    if manifest.gpu_driver is not None and manifest.gpu_driver != gpus.version:
        message = f"driver {manifest.gpu_driver} made the checkpoint, {gpus.version} is here"
        yield finding(
            "restore-gpu-driver",
            f"driver {gpus.version}",
            message,
            flag=manifest.gpu_driver,
            remedy=f"install driver {manifest.gpu_driver}",
        )
    if not driver.has_custom_storage and any(fact.regions for fact in manifest.cuda_processes):
        yield finding(
            "restore-gpu-storage", f"driver {gpus.version}", "GPU memory was handed out by the driver and lies in files of its own"
        )
    if isinstance(found, Shortage) and gpus.devices:
        yield finding(_CODES[found.lack], "GPUs", found.message, remedy=found.hint)
    yield from _moved(planned)


def _taken(manifest: Manifest, planned: mapping.Map) -> frozenset[str]:
    """Return the UUIDs of the GPUs here that the workload's memory comes to lie on."""
    places = dict(planned)
    return frozenset(places.get(fact.uuid, fact.uuid) for fact in manifest.gpus if fact.used_bytes != 0)


def _moved(planned: mapping.Map) -> Iterator[Finding]:
    moved = [(old, new) for old, new in planned if old != new]
    if moved:
        more = f", and {len(moved) - 1} more" if moved[1:] else ""
        yield finding("restore-gpu-other", moved[0][0], f"becomes {moved[0][1]}{more}", flag=moved[0][0])
