"""`perdure slurm uninstall`: take Perdure out of nodes again."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.base import units
from perdure.cli import console, slurm_install
from perdure.slurm import runner
from perdure.slurm.site import PREFIX


def uninstall(
    *,
    node_list: slurm_install.NodeList = None,
    here: slurm_install.Here = False,
    runner_: slurm_install.RunnerOption = runner.DEFAULT,
    prefix: slurm_install.PrefixOption = PREFIX,
    purge_checkpoints: Annotated[bool, Parameter(negative="", help="Remove the checkpoints too: those of all nodes.")] = False,
    wait: Annotated[bool, Parameter(negative="", help="Return when the last job that is being kept has ended.")] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Only print what would be removed. With --here.")] = False,
    payload: slurm_install.PayloadOption = None,
    python: slurm_install.PythonOption = None,
    slurm: slurm_install.SlurmOption = None,
    at_once: slurm_install.AtOnce = runner.AT_ONCE,
    common: console.Common = console.Common(),
) -> int:
    """Remove exactly what was installed, where it is still as it was. Checkpoints stay.

    New jobs are not kept from that moment on, and run as if Perdure had never been there; those that asked for it in their scripts too.
    Jobs that are being kept go on, and are saved to their end: what they run from is removed when the last one has ended.

    For example:

      perdure slurm uninstall --node-list n[1-64]

      perdure slurm uninstall --here --wait
    """
    from perdure.slurm import fleet

    nodes = slurm_install.chosen(node_list, here=here, slurm=slurm)
    if dry_run and nodes:
        raise errors.UsageError("--dry-run looks at one node", hint="run it on that node with --here")
    if dry_run:
        return _planned(common)
    if not nodes:
        return _here(purge=purge_checkpoints, wait=wait, common=common)
    how = runner.read(runner_)
    with slurm_install.brought(payload, prefix, None, (), slurm=slurm) as found, slurm_install.packed(found, payload) as archive:
        results = []
        pythons = (python,) if python else (f"python{found.python}", "python3")
        for result in fleet.uninstall(
            nodes, how, found, archive, prefix=prefix, pythons=pythons, purge=purge_checkpoints, wait=wait, at_once=at_once
        ):
            results.append(result)
            slurm_install.tell(common, result, len(results), len(nodes))
    return slurm_install.finish(common, results, nodes)


def _planned(common: console.Common) -> int:
    from perdure.slurm import uninstall as uninstalling

    planned = uninstalling.look()
    if common.json:
        console.print_json(planned)
        return 0
    for entry in planned.entries:
        console.out().print(console.printable(f"{entry.kind:<6} {entry.path}"))
    waiting = f"; {len(planned.waiting_for)} processes run from it" if planned.waiting_for else ""
    console.note(common, f"{planned.node}: {len(planned.entries)} paths{waiting}; nothing was touched")
    return 0


def _here(*, purge: bool, wait: bool, common: console.Common) -> int:
    from perdure.slurm import uninstall as uninstalling

    removed = uninstalling.uninstall(purge=purge, wait=wait)
    if common.json:
        console.print_json(removed)
        return 0
    for note in removed.notes:
        console.note(common, console.printable(note))
    if removed.state == "leaving":
        text = f"{len(removed.waiting_for)} processes still run from it; the rest goes when they have ended"
    elif removed.state == "absent":
        text = "nothing is installed"
    else:
        text = f"removed in {units.format_duration(removed.elapsed_s)}"
    console.note(common, f"{removed.node}: {text}")
    return 0
