"""What `perdure doctor --gpu` says: the driver, the GPUs, whether a tiny CUDA process comes back, and CRIU's plug-in. Called by the CLI."""

from __future__ import annotations

import os
from collections.abc import Iterable

from perdure.base import units
from perdure.checkpoint.cuda.contract import Trouble
from perdure.checkpoint.host import gpu_canary
from perdure.checkpoint.host.gpu import Gpus
from perdure.checkpoint.preflight import gpu_machine
from perdure.checkpoint.preflight.codes import finding
from perdure.model.finding import Finding, problems

_PLUGIN = "cuda_plugin.so"
_PLUGIN_FOLDERS = (
    "usr/lib/criu",
    "usr/lib64/criu",
    "usr/local/lib/criu",
    "usr/lib/x86_64-linux-gnu/criu",
    "usr/lib/aarch64-linux-gnu/criu",
)

_REMEDIES = {
    Trouble.UNSUPPORTED: "this driver does not save GPU state on this platform or with this GPU: use another machine",
    Trouble.NO_MEMORY: "free memory of the machine and of the GPU; a GPU that is split by MIG says this too",
    Trouble.SYSTEM: "run it as root and in the host's PID namespace: the driver has to trace the process (sysctl kernel.yama.ptrace_scope)",
    Trouble.NO_DRIVER: "see nvidia-smi and dmesg; after an update of the driver, reboot",
    Trouble.NO_BINDINGS: "pip install 'perdure[gpu]' into the environment of this perdure",
    Trouble.HUNG: "see dmesg for the driver's own messages (Xid); a reboot may be needed",
    Trouble.GONE: "this driver ends the processes that it should save: install another version of it",
}


def report(gpus: Gpus, prefixes: Iterable[str]) -> tuple[Finding, ...]:
    """Return everything about GPUs here. A canary is tried where nothing forbids it. `prefixes` are where a CRIU may be installed.

    Without a driver there is one finding: everything else would only repeat it.
    """
    known = gpu_machine.judge(gpus)
    if not gpus.has_driver:
        return known
    tried = (canary(gpu_canary.run(gpus.devices[0].uuid)),) if not problems(known) else ()
    return (*known, *tried, *plugins(prefixes))


def canary(outcome: gpu_canary.Outcome) -> Finding:
    """Return what became of the canary."""
    if outcome.failure is not None:
        remedy = _REMEDIES.get(outcome.trouble) if outcome.trouble is not None else None
        return finding("gpu-canary-failed", f"canary, {outcome.step}", outcome.failure, remedy=remedy)
    steps = ", ".join(f"{name} {units.format_duration(took_s)}" for name, took_s in outcome.durations_s.items())
    return finding("gpu-canary", "canary", f"came back with {units.format_size(outcome.size_bytes)} of GPU memory as it was: {steps}")


def plugins(prefixes: Iterable[str]) -> tuple[Finding, ...]:
    """Return a finding for each plug-in of CRIU's for CUDA that is below one of `prefixes`."""
    paths = (os.path.join(prefix, folder, _PLUGIN) for prefix in prefixes for folder in _PLUGIN_FOLDERS)
    return tuple(
        finding("gpu-criu-plugin", "criu", f"{path} is there and is not used", path=path) for path in paths if os.path.exists(path)
    )
