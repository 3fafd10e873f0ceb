"""`perdure doctor`: what this machine can do, and what to type where it cannot."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from perdure import errors
from perdure.cli import console, findings, leftovers

if TYPE_CHECKING:
    from perdure.checkpoint.criu.locate import Places


def doctor(
    *,
    bring_criu: Annotated[
        bool, Parameter(negative="", help="Bring Debian's newest CRIU into a private folder, if none here works.")
    ] = False,
    prefix: Annotated[
        Path | None, Parameter(help="Folder for it. Default: /var/lib/perdure/criu, without root the user's data folder.")
    ] = None,
    mirror: Annotated[str | None, Parameter(help="Debian mirror to bring it from. Default: the system's own.")] = None,
    gpu: Annotated[
        bool, Parameter(negative="", help="Look at NVIDIA's driver and the GPUs instead, and prove that GPU state can be saved.")
    ] = False,
    common: console.Common = console.Common(),
) -> None:
    """Say what this machine can do: privileges, kernel, namespaces, CRIU, memory, disk.

    CRIU is proved, not believed: a tiny process with a connection and a timer is dumped, killed and restored. What is brought comes
    from Debian's archive through the system's own mirror and proxies, verified by apt; nothing of the system is changed.

    With --gpu, the driver, its version's abilities and known faults, and each GPU are looked at, and a tiny CUDA process of our own is
    locked, saved, brought back and unlocked by the driver.

    What supervisors left in memory or on a disk that were killed is cleared away.

    Ends with status 4 when something keeps checkpoints from working; warnings do not count.

    Example: `perdure doctor --bring-criu`
    """
    if gpu:
        if bring_criu or prefix is not None or mirror is not None:
            raise errors.UsageError("--gpu looks at GPUs alone", hint="run perdure doctor --bring-criu by itself")
        _gpu(common)
        return

    from perdure.checkpoint.criu import locate, report
    from perdure.checkpoint.host import facts, rules
    from perdure.supervisor import folders

    if not bring_criu and (prefix is not None or mirror is not None):
        raise errors.UsageError("--prefix and --mirror belong to --bring-criu", hint="perdure doctor --bring-criu --prefix FOLDER")
    values = console.load_settings(common)
    where = locate.places(values, os.environ)
    if bring_criu:
        where = _bring(where, prefix, mirror, common)
    found = report.make(where)
    places = folders.choose(state=values["state"].value, run=values["run-dir"].value, environ=os.environ, uid=os.geteuid())
    leftovers.clear(places, common)
    everything = (*rules.judge(facts.look(places.state)), *found.findings)
    findings.show(common, everything, nothing="nothing to say", criu=found.criu, init=found.init)
    findings.refuse_problems(everything, what="checkpoints do not work here", hint="each problem above says what helps")


def _gpu(common: console.Common) -> None:
    from perdure.checkpoint.criu import locate
    from perdure.checkpoint.host import gpu as host
    from perdure.checkpoint.preflight import gpu_doctor

    where = locate.places(console.load_settings(common), os.environ)
    gpus = host.look()
    found = gpu_doctor.report(gpus, ("/", *where.prefixes))
    findings.show(common, found, nothing="nothing to say", driver=gpus.version or None, devices=gpus.devices)
    findings.refuse_problems(found, what="GPU state is not saved here", hint="each problem above says what helps")


def _bring(where: Places, target: Path | None, mirror: str | None, common: console.Common) -> Places:
    """Make a prefix at `target` unless a CRIU works, or, without root to prove one, unless a whole prefix is there.

    Returns where to look: `where`, and the prefix.
    """
    from perdure.checkpoint.criu import locate, prefix

    root = Path(os.path.abspath(target or locate.default_prefix(os.environ)))
    working = locate.find_working(where)
    if working is not None:
        console.note(common, f"criu {working.version} works: {working.program} ({working.origin})")
        return where
    present = prefix.read(root)
    if present is None or prefix.version_of(present.criu_version) < prefix.MINIMUM:
        present = prefix.bring(
            root, environ=os.environ, now_ns=time.time_ns(), mirror=mirror, say=lambda text: console.note(common, console.printable(text))
        )
        size = f"{present.size_bytes / 2**20:.0f} MiB, {len(present.packages)} packages of Debian's {present.suite}"
        console.note(common, f"criu {present.criu_version} is in {root} ({size})")
    if str(root) in where.prefixes or where.named == str(root):
        return where
    console.note(common, f"to use it: export PERDURE_CRIU={root}")
    return msgspec.structs.replace(where, prefixes=(*where.prefixes, str(root)))
