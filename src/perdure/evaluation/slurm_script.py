"""The batch script of a run on Slurm, and what is given to sbatch: the same for both arms but for one word. Called by `slurm_run`. Pure.

The managed arm's job carries ``--comment=perdure``, with Perdure's options behind it and the wish to be told of checkpoints; that is all
that differs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from perdure import errors
from perdure.evaluation import slurm_events
from perdure.evaluation.local import MARK
from perdure.evaluation.plan import Plan
from perdure.model.evaluation import Arm, Environment

OUTPUT = "job-output.log"
SCRIPT = "job.sh"
FACTS = "node-facts.txt"
_VERSION = "version:"
_GPUS = (
    "if command -v nvidia-smi >/dev/null; then",
    "nvidia-smi --query-gpu=name,uuid --format=csv,noheader | sed 's/, / /;s/^/gpu=/'",
    "nvidia-smi --query-gpu=driver_version --format=csv,noheader | sed 's/^/driver=/'",
    "nvidia-smi | sed -n 's/.*CUDA Version: *\\([0-9.]*\\).*/cuda=\\1/p'",
    "fi",
)
_KEY = re.compile(r"[a-z][a-z-]*")


def script(command: Sequence[str], run_id: str, raw: Path, versions: Mapping[str, Sequence[str]]) -> str:
    """Return the text of the script: in its first life it writes down what its node is, and then it becomes the command."""
    facts = shlex.quote(str(raw / FACTS))
    told = [
        "echo host=$(hostname)",
        "echo boot_id=$(cat /proc/sys/kernel/random/boot_id)",
        "echo kernel=$(uname -r)",
        "sed -n '/^model name/{s/^model name.*: /cpu_model=/p;q}' /proc/cpuinfo",
        "echo cores=$(nproc)",
        "sed -n 's/^MemTotal: *\\([0-9]*\\) kB/memory_kib=\\1/p' /proc/meminfo",
        *_GPUS,
        *(f"echo {shlex.quote(_VERSION + name)}=$({shlex.join(argv)} 2>&1 | head -n 1)" for name, argv in sorted(versions.items())),
    ]
    return (
        "#!/bin/sh\n"
        f"export {MARK}={shlex.quote(run_id)}\n"
        f"if [ ! -e {facts} ]; then\n{{\n" + "\n".join(told) + f"\n}} >{facts} 2>/dev/null\nfi\n"
        f"exec {shlex.join(command)}\n"
    )


def options(plan: Plan, arm: Arm, run_id: str, raw: Path, limit_s: float | None) -> tuple[str, ...]:
    """Return what is given to sbatch before the script. The site's own options come first, so that they change nothing of what we need.

    Raises `errors.UsageError` for options of Perdure's that cannot stand in a comment.
    """
    found = [*plan.site.slurm.options, "--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append"]
    found += [f"--job-name={run_id}", f"--output={raw / OUTPUT}", f"--error={raw / OUTPUT}"]
    if plan.site.queue:
        found.append(f"--partition={plan.site.queue}")
    if plan.workload.working_directory:
        found.append(f"--chdir={plan.workload.working_directory}")
    if limit_s is not None:
        found.append(f"--time={max(1, round(limit_s / 60))}")
    if arm is Arm.MANAGED:
        found.append(f"--comment={comment((*plan.arms.managed_options, '='.join(slurm_events.ASKED)))}")
    return tuple(found)


def comment(managed_options: Sequence[str]) -> str:
    """Return the comment that opts a job in, with options such as ``--every 10m`` as ``every=10m``.

    Raises `errors.UsageError` for one without a value or with a comma in it.
    """
    pairs: list[str] = []
    words = list(managed_options)
    while words:
        word = words.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            value = words.pop(0) if words else ""
        if not _KEY.fullmatch(key) or not value or "," in value:
            raise errors.UsageError(
                f"arms.managed_options: {word!r} cannot stand in a job's comment", hint='write such as ["--every", "10m", "--keep", "2"]'
            )
        pairs.append(f"{key}={value}")
    return "perdure" + (f":{','.join(pairs)}" if pairs else "")


def environment(told: str, login: Environment) -> Environment:
    """Return where a run took place, from what its node `told` (the content of `FACTS`); what it did not tell is as on the login node."""
    gpus: list[str] = []
    versions: dict[str, str] = {}
    facts: dict[str, str] = {}
    for line in told.splitlines():
        key, equals, value = line.partition("=")
        if not equals:
            continue
        if key == "gpu":
            gpus.append(value)
        elif key.startswith(_VERSION):
            versions[key.removeprefix(_VERSION)] = value or "(nothing printed)"
        else:
            facts[key] = value
    return msgspec.structs.replace(
        login,
        host=facts.get("host") or login.host,
        boot_id=facts.get("boot_id") or login.boot_id,
        kernel=facts.get("kernel") or login.kernel,
        cpu_model=facts.get("cpu_model") or login.cpu_model,
        cores=_number(facts.get("cores")) or login.cores,
        memory_bytes=_number(facts.get("memory_kib")) * 1024 or login.memory_bytes,
        gpus=tuple(gpus),
        driver_version=facts.get("driver") or None,
        cuda_version=facts.get("cuda") or None,
        versions=versions or login.versions,
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def refuse(plan: Plan) -> None:
    """Raise what forbids to run this plan as jobs: `errors.Unsupported`, and `errors.UsageError` for options of Perdure's."""
    if plan.workload.nodes > 1:
        raise errors.Unsupported("jobs of more than one node are not kept by Perdure yet", hint="evaluate a workload of one node")
    progress = plan.workload.progress
    if progress is not None and progress.kind in ("http", "metrics"):
        raise errors.Unsupported(
            "over HTTP a workload is asked on this host alone", hint='for a job on Slurm, write workload.progress of kind "log" or "file"'
        )
    comment(plan.arms.managed_options)
