"""`perdure check`: what would prevent a checkpoint now, or restoring one here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter

from perdure import errors
from perdure.cli import agent_check, agent_side, console, findings
from perdure.model.checkpoint import check_name

if TYPE_CHECKING:
    from perdure.base import settings
    from perdure.checkpoint.criu.run import Criu
    from perdure.checkpoint.preflight.plan import Plan


def check(
    target: Annotated[str | None, Parameter(name="N|PID", help="Workload, by its name, or process: its whole tree is looked at.")] = None,
    /,
    *,
    restore: Annotated[
        str | None, Parameter(help="Checkpoint, such as train-7b@3.12, or a workload for its newest: could it be restored here?")
    ] = None,
    store: Annotated[str | None, Parameter(help="Store that checkpoints are in. Default: the workload's own, else setting store.")] = None,
    key_file: Annotated[Path | None, Parameter(help="Key file of an encrypted store. Default: setting key-file.")] = None,
    outputs: Annotated[
        tuple[str, ...], Parameter(negative="", help="File or folder whose content would go along, as for perdure run.")
    ] = (),
    tcp: Annotated[Literal["close", "keep"], Parameter(help="What becomes of established connections, as for perdure run.")] = "close",
    cpu_check: Annotated[
        Literal["features", "strict", "off"] | None,
        Parameter(
            help="With --restore: what of the processor has to be there: features that programs use, all, none. Default: setting cpu-check."
        ),
    ] = None,
    common: console.Common = console.Common(),
) -> None:
    """Say what would prevent a checkpoint of a workload now, or, with --restore, restoring one here. Nothing is stopped or changed.

    One finding a line: how grave it is, its code, what it is about, what is there, and what to do. Codes are stable.

    Ends with status 4 when something prevents it; warnings do not count.

    For example:

      perdure check train-7b

      perdure check 4711 --json

      perdure check --restore train-7b@3.12
    """
    if (target is None) == (restore is None):
        raise errors.UsageError("name one thing to check", hint="perdure check NAME, perdure check PID, or perdure check --restore ID")
    if target is not None and not _is_process(target):
        check_name(target)
    values = console.load_settings(common, store=store, key_file=None if key_file is None else str(key_file), cpu_check=cpu_check)
    agent = agent_side.find(values)
    if agent is not None:
        agent_side.refuse(values, "store", "key-file")
        agent_check.check(agent, common, target, restore, outputs=outputs, tcp=tcp, cpu_check=cpu_check)
    elif restore is not None:
        _check_restore(common, values, restore)
    else:
        _check_save(common, values, str(target), outputs=outputs, tcp=tcp)


def _is_process(target: str) -> bool:
    return target.isascii() and target.isdigit()


def _check_save(
    common: console.Common, values: dict[str, settings.Value], target: str, *, outputs: tuple[str, ...], tcp: Literal["close", "keep"]
) -> None:
    from perdure.checkpoint.cuda.helper import Helper
    from perdure.checkpoint.preflight import gpu_states, save

    pid, plan = _process(values, target, outputs=outputs, tcp=tcp)
    with Helper() as helper:
        found = save.check(pid, msgspec.structs.replace(plan, ask_gpu=gpu_states.asker(helper)))
    findings.show(common, found, nothing=f"nothing prevents a checkpoint of process {pid}", pid=pid)
    findings.refuse_problems(found, what=f"process {pid} cannot be saved now", hint="each problem says what helps")


def _process(
    values: dict[str, settings.Value], target: str, *, outputs: tuple[str, ...], tcp: Literal["close", "keep"]
) -> tuple[int, Plan]:
    """Return which process `target` means, and how it would be saved. Raises `errors.WorkloadMissing`."""
    from perdure.checkpoint.preflight.plan import DISKS, Plan
    from perdure.cli import store_open
    from perdure.supervisor import folders, record, state

    places = folders.choose(state=values["state"].value, run=values["run-dir"].value, environ=os.environ, uid=os.geteuid())
    criu, refusal = _criu(values)
    plan = Plan(
        criu=criu,
        criu_refusal=str(refusal) if refusal else None,
        criu_remedy=refusal.hint if refusal else None,
        staging=values["staging"].value,
        disks=(str(places.state), *DISKS),
        store=store_open.locate(values).url,
        outputs=tuple(os.path.abspath(path) for path in outputs),
        tcp=tcp,
    )
    if _is_process(target):
        return int(target), plan
    if not places.database.exists():
        raise errors.WorkloadMissing(f"there is no workload {target!r} on this machine", hint="perdure ps lists them")
    with state.opened(places.database) as database:
        known = database.require(target)
    if known.state not in record.LIVE or known.pid is None:
        raise errors.WorkloadMissing(f"{target} is not running: {known.state.value}", hint="perdure ps tells how each workload is")
    return known.pid, msgspec.structs.replace(
        plan,
        outputs=(*plan.outputs, *known.options.outputs),
        store=plan.store if values["store"].value else known.store,
        tcp=known.options.tcp,
        is_suspended=known.state is record.State.SUSPENDED,
    )


def _criu(values: dict[str, settings.Value]) -> tuple[Criu | None, errors.EnvironmentUnfit | None]:
    """Return the CRIU that works here, or why there is none."""
    from perdure.checkpoint.criu import locate

    try:
        return locate.find(locate.places(values, os.environ)), None
    except errors.EnvironmentUnfit as error:
        return None, error


def _check_restore(common: console.Common, values: dict[str, settings.Value], which: str) -> None:
    from perdure.checkpoint.preflight import cpu
    from perdure.checkpoint.preflight import restore as preflight
    from perdure.checkpoint.preflight.plan import DISKS
    from perdure.cli import store_open
    from perdure.supervisor import folders, foresight, place

    places = folders.choose(state=values["state"].value, run=values["run-dir"].value, environ=os.environ, uid=os.geteuid())
    with place.opened(store_open.locate(values)) as repository:
        chosen = store_open.choose(repository, which)
        criu, refusal = _criu(values)
        plan = preflight.RestorePlan(
            criu=criu,
            criu_refusal=str(refusal) if refusal else None,
            criu_remedy=refusal.hint if refusal else None,
            cpu=cpu.chosen(str(values["cpu-check"].value), values["cpu-check"].origin),
            staging=values["staging"].value,
            disks=(str(places.state), *DISKS),
        )
        found = foresight.check(repository, chosen, plan)
    findings.show(common, found, nothing=f"nothing prevents restoring {chosen} here", checkpoint=str(chosen))
    findings.refuse_problems(found, what=f"{chosen} cannot be restored here", hint="each problem says what helps")
