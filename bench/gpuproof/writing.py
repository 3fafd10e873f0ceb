"""The report of a proof: one JSON file for programs and one text for people, which says plainly what was not run."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.gpuproof.place import Case
from perdure._version import __version__
from perdure.base import units
from perdure.base.proc import machine
from perdure.checkpoint.host.gpu import Gpus
from perdure.model.finding import Finding


def document(
    gpus: Gpus, findings: Sequence[Finding], cases: Sequence[Case], criu: str, around: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what the JSON file holds: machine, driver, GPUs, findings, every run, and what is `around`."""
    return {
        "perdure": __version__,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "kernel": platform.release(),
            "architecture": platform.machine(),
            "processor": machine.processor().model,
            "processors": os.cpu_count(),
            "memory_bytes": machine.memory().total_bytes,
            "python": platform.python_version(),
            "criu": criu,
        },
        "driver": {"version": gpus.version, "cuda": gpus.cuda, "open": gpus.is_open_driver},
        "gpus": msgspec.to_builtins(gpus.devices),
        "findings": msgspec.to_builtins(findings),
        "cases": msgspec.to_builtins(cases),
        "surroundings": dict(around or {}),
    }


def write(folder: Path, told: dict[str, Any]) -> tuple[Path, Path]:
    """Write ``gpu-proof.json`` and ``gpu-proof.txt`` into `folder`; returns their paths."""
    as_json, as_text = folder / "gpu-proof.json", folder / "gpu-proof.txt"
    for path, content in ((as_json, json.dumps(told, indent=1) + "\n"), (as_text, text(told))):
        aside = path.with_name(f".{path.name}")  # whoever is ended in the middle leaves the one before
        aside.write_text(content)
        os.replace(aside, path)
    return as_json, as_text


def text(told: dict[str, Any]) -> str:
    """Return the report as text."""
    host, driver = told["machine"], told["driver"]
    cuda = f", CUDA {driver['cuda'][0]}.{driver['cuda'][1]}" if driver["cuda"] else ""
    lines = [
        f"Perdure {told['perdure']} on a GPU, {told['written']}",
        f"driver {driver['version']}{cuda}{', open kernel module' if driver['open'] else ''}; CRIU {host['criu']}; Linux {host['kernel']}",
        f"{host['processors']} × {host['processor']}, {units.format_size(host['memory_bytes'])}",
        *(f"GPU {gpu['index']}: {gpu['model']}, {units.format_size(gpu['memory_bytes'])}, {gpu['uuid']}" for gpu in told["gpus"]),
        "",
    ]
    lines += [f"{finding['code']}: {finding['subject']}: {finding['message']}" for finding in told["findings"]]
    lacks = told["surroundings"].get("lacks", [])
    lines += [f"this root lacks {', '.join(lacks)}"] if lacks else []
    lines.append("")
    for case in told["cases"]:
        lines.append(f"{case['outcome']:<8} {case['name']}" + (f": {case['why']}" if case["why"] else ""))
        lines += [f"           {name:<28} {value:.4g}" for name, value in case["figures"].items()]
    missing = [case for case in told["cases"] if case["outcome"] == "not run"]
    lines += ["", "Not run here:" if missing else "Everything was run."]
    lines += [f"- {case['name']}: {case['why']}" for case in missing]
    lines.append(
        "Ratios (_x) are Perdure's figure over the one of the vendor's order of steps done by hand, on the same machine in the same run."
    )
    return "\n".join(lines) + "\n"
