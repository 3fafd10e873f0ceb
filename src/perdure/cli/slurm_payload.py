"""`perdure slurm payload`: pack what nodes get into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.base import units
from perdure.cli import console, slurm_install
from perdure.slurm import payload as payloads
from perdure.slurm.site import PREFIX


def payload(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="File to write.")],
    prefix: slurm_install.PrefixOption = PREFIX,
    criu: slurm_install.CriuOption = None,
    extras: slurm_install.ExtraOption = (),
    slurm: slurm_install.SlurmOption = None,
    common: console.Common = console.Common(),
) -> None:
    """Pack Perdure, its libraries, CRIU and the shim from what runs here into one file, for nodes without a network.

    It fits nodes with the same Python (3.11 and 3.12 differ) and processor. Where Slurm's headers and a C compiler are, an object of the
    shim goes along for nodes that have neither.

    Example: `perdure slurm payload -o perdure.tar`
    """
    with slurm_install.brought(None, prefix, criu, extras, slurm=slurm) as found:
        size_bytes = payloads.pack(found, output)
    objects = [item.path for item in found.items if item.path.startswith("share/shim/") and item.path.endswith(".so")]
    shims = [path.rpartition("/")[2].removesuffix(".so") for path in objects]
    has_criu = found.find("criu/perdure-prefix.json") is not None
    if common.json:
        document = {
            "path": str(output),
            "size_bytes": size_bytes,
            "version": found.version,
            "python": found.python,
            "machine": found.machine,
        }
        console.print_json(document | {"criu": has_criu, "shims": shims, "prefix": prefix})
        return
    console.note(
        common,
        f"{output}: Perdure {found.version} for Python {found.python} on {found.machine}, {units.format_size(size_bytes)}, "
        f"{'with CRIU' if has_criu else 'without a CRIU'}, {f'shim for {shims[0]}' if shims else 'without an object of the shim'}",
    )
