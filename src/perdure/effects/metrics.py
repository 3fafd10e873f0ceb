"""A ledger's figures for monitoring, as a file for Prometheus' node exporter. Needs no library. Called by users."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perdure import errors

if TYPE_CHECKING:
    from perdure.effects.ledger import Ledger

NAMES: dict[str, str] = {
    "ran": "steps that were done here for the first time",
    "repeated": "steps in doubt that were done again, because the other side deduplicates",
    "replayed": "calls answered from the ledger",
    "waited": "calls that waited for another process",
    "busy": "calls that waited for too long",
    "looked_up": "lookups of steps in doubt",
    "in_doubt": "calls refused because a step is in doubt",
    "raised": "steps that raised and are in doubt",
    "not_done": "steps that raised before anything reached the outside",
    "changed": "calls refused because their inputs had changed",
    "stale": "acts refused because the life is over",
    "lost": "late results that were refused",
    "unkept": "steps done whose result was not kept",
    "unrecorded": "steps that ended while the ledger could not be written",
}
"""What `Ledger.metrics` counts."""


def text(ledger: Ledger) -> str:
    """Return this process's counts and the ledger's rows by state in Prometheus' text format."""
    counts = ledger.metrics()
    lines = []
    for name, meaning in NAMES.items():
        metric = f"perdure_effects_{name}_total"
        lines += [f"# HELP {metric} {meaning.capitalize()}.", f"# TYPE {metric} counter", f"{metric} {counts.get(name, 0)}"]
    lines += ["# HELP perdure_effects_rows Steps in the ledger by recorded state.", "# TYPE perdure_effects_rows gauge"]
    lines += [f'perdure_effects_rows{{state="{state}"}} {number}' for state, number in ledger.counts().items()]
    return "\n".join(lines) + "\n"


def write(ledger: Ledger, path: str | os.PathLike[str]) -> None:
    """Write `text` to a ``.prom`` file, atomically and readable by all. Raises `errors.OutputError`, `errors.UsageError`."""
    from perdure.base import files

    if not os.fspath(path).endswith(".prom"):
        raise errors.UsageError(f"{os.fspath(path)} does not end in .prom", hint="the node exporter reads no other files")
    files.write_text(path, text(ledger), mode=files.PUBLIC_MODE)
