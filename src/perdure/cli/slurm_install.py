"""`perdure slurm install`: put Perdure on nodes of a Slurm cluster."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from perdure import errors
from perdure.base import units
from perdure.cli import console, findings
from perdure.slurm import runner
from perdure.slurm.site import LEASE_TTL, PREFIX, Site

if TYPE_CHECKING:
    from perdure.slurm.fleet import Result
    from perdure.slurm.install import Outcome
    from perdure.slurm.payload import Payload

NodeList = Annotated[str | None, Parameter(help="Nodes, as Slurm writes them: n[1-3,07],login2.")]
Here = Annotated[bool, Parameter(negative="", help="On this node, without a runner.")]
RunnerOption = Annotated[str, Parameter(name="--runner", help="Command that runs something on {node} as root.")]
PayloadOption = Annotated[Path | None, Parameter(help="What to bring, made by perdure slurm payload. Default: made now from what runs.")]
PrefixOption = Annotated[str, Parameter(help="Folder on the nodes for Perdure's own files.")]
SlurmOption = Annotated[str | None, Parameter(help="Folder that Slurm is installed in, with bin and sbin. Default: the usual places.")]
PythonOption = Annotated[str | None, Parameter(help="Python on the nodes to run on. Default: the first that fits the payload.")]
AtOnce = Annotated[int, Parameter(help="Nodes that are worked on at a time.")]
CriuOption = Annotated[
    Path | None, Parameter(help="Folder with a CRIU, made by perdure doctor --bring-criu. Default: the one that is here, if any.")
]
ExtraOption = Annotated[tuple[str, ...], Parameter(name="--extra", negative="", help="More than the core: gpu, s3. Repeatable.")]


def install(
    *,
    store: Annotated[str, Parameter(help="Where checkpoints go: a folder that all nodes reach, root's alone; or s3://BUCKET/PREFIX.")] = "",
    shim_only: Annotated[
        bool,
        Parameter(negative="", help="For nodes that do not take part: a job that opted in and lands there says that it runs unmanaged."),
    ] = False,
    node_list: NodeList = None,
    here: Here = False,
    runner_: RunnerOption = runner.DEFAULT,
    prefix: PrefixOption = PREFIX,
    lease_ttl: Annotated[str, Parameter(help="How long a restore waits for a node that fell silent, at most 300s.")] = LEASE_TTL,
    payload: PayloadOption = None,
    criu: CriuOption = None,
    extras: ExtraOption = (),
    slurm: SlurmOption = None,
    python: PythonOption = None,
    replace: Annotated[bool, Parameter(negative="", help="Put files aside that stand where ours go; they come back at the end.")] = False,
    at_once: AtOnce = runner.AT_ONCE,
    dry_run: Annotated[bool, Parameter(negative="", help="Only print every path that would be made or changed.")] = False,
    store_id: Annotated[str | None, Parameter(show=False)] = None,
    clock_apart: Annotated[float | None, Parameter(show=False)] = None,
    common: console.Common = console.Common(),
) -> int:
    """Install on nodes of a Slurm cluster: libraries, CRIU, the shim, its line in plugstack.conf. No Slurm daemon is restarted.

    Each node is checked first; then a list of all that will be made is written to /var/lib/perdure/install.json, and then it is made. A
    node that fails is as it was before. Installing again mends and renews. Jobs are not touched: nothing is kept until it is opted in.

    The first node is done alone, and when it fails no other is touched. Ends with 3 when some nodes failed.

    For example:

      perdure slurm install --node-list n[1-64] --store /shared/perdure --dry-run

      perdure slurm install --here --store /shared/perdure

      perdure slurm install --node-list n[65-128] --shim-only
    """
    from perdure.slurm import fleet

    wanted = Site(
        store=store,
        shim_only=shim_only,
        prefix=prefix,
        lease_ttl=lease_ttl,
        slurm=slurm,
        replace=replace,
        store_id=store_id,
        clock_apart_s=clock_apart,
    )
    wanted.check()
    nodes = chosen(node_list, here=here, slurm=slurm)
    if not nodes:
        with brought(payload, prefix, criu, extras, slurm=slurm) as found:
            return _here(wanted, found, dry_run=dry_run, common=common)
    how = runner.read(runner_)
    with brought(payload, prefix, criu, extras, slurm=slurm) as found, packed(found, payload) as archive:
        results = []
        pythons = (python,) if python else (f"python{found.python}", "python3")
        work = fleet.install(wanted, nodes, how, found, archive, pythons=pythons, dry_run=dry_run, at_once=at_once)
        for result in work:
            results.append(result)
            tell(common, result, len(results), len(nodes))
    return finish(common, results, nodes)


def chosen(node_list: str | None, *, here: bool, slurm: str | None) -> tuple[str, ...]:
    """Return the nodes of ``--node-list``, or none for ``--here``. Raises `errors.UsageError` for both or neither."""
    from perdure.slurm import daemons, nodelist

    if here == (node_list is not None):
        raise errors.UsageError("say where: --node-list NODES, or --here for this node", hint="perdure slurm install --node-list n[1-3] …")
    return nodelist.expand(node_list, scontrol=daemons.scontrol(slurm)) if node_list is not None else ()


@contextlib.contextmanager
def brought(payload: Path | None, prefix: str, criu: Path | None, extras: tuple[str, ...], *, slurm: str | None) -> Iterator[Payload]:
    """Yield the payload: the packed file or folder `payload`, or, with None, one that is made from what runs here."""
    from perdure.slurm import payload as payloads

    with tempfile.TemporaryDirectory(prefix="perdure-payload-") as scratch:
        if payload is None:
            yield payloads.gather(prefix, extras=extras, criu=criu or default_criu(), shims=shims(Path(scratch), prefix, slurm))
        elif payload.is_dir():
            yield payloads.unpacked(payload)
        else:
            yield payloads.unpack(payload, Path(scratch))


def default_criu() -> Path | None:
    """Return a private prefix that is here, the one of this environment first; None: there is none, and nodes use their own CRIU."""
    from perdure.checkpoint.criu import locate, prefix

    places = (os.path.join(sys.prefix, "criu"), locate.default_prefix(os.environ))
    return next((Path(place) for place in places if prefix.read(Path(place)) is not None), None)


def shims(scratch: Path, prefix: str, slurm: str | None) -> dict[str, Path]:
    """Compile the shim for the Slurm of this machine, for nodes that cannot; nothing where it cannot be done here either."""
    import platform

    from perdure.slurm import compiling, daemons
    from perdure.slurm.payload import prebuilt

    found, cc = daemons.look(home=slurm), compiling.compiler()
    if cc is None or found.headers is None or not found.headers_version:
        return {}
    plugin, program = scratch / "perdure_spank.so", scratch / "perdure-task"
    try:
        made = compiling.build(found.headers, cc, prefix=prefix)
    except errors.EnvironmentUnfit:
        return {}  # nodes that can will make their own
    plugin.write_bytes(made.plugin)
    program.write_bytes(made.program)
    return dict(zip(prebuilt(found.headers_version, platform.machine()), (plugin, program), strict=True))


@contextlib.contextmanager
def packed(payload: Payload, archive: Path | None) -> Iterator[Path]:
    """Yield one file with `payload`: `archive` if it is one, else one that is made now and removed at the end."""
    from perdure.slurm import payload as payloads

    if archive is not None and archive.is_file():
        yield archive
        return
    with tempfile.TemporaryDirectory(prefix="perdure-payload-") as scratch:
        path = Path(scratch) / "payload.tar"
        payloads.pack(payload, path)
        yield path


def _here(wanted: Site, payload: Payload, *, dry_run: bool, common: console.Common) -> int:
    from perdure.slurm import install as installing

    try:
        outcome = installing.install(wanted, payload, dry_run=dry_run)
    except installing.Unfit as unfit:
        findings.show(common, unfit.findings, nothing="")
        raise
    if common.json:
        listed = outcome if dry_run else msgspec.structs.replace(outcome, entries=())
        console.print_json(listed)
        return 0
    _print(outcome, common)
    return 0


def _print(outcome: Outcome, common: console.Common) -> None:
    out = console.out()
    for finding in outcome.findings:
        console.note(common, findings.line(finding))
    if outcome.state == "planned":
        for entry in outcome.entries:
            what = {"link": f"→ {entry.target}", "line": f"+ {entry.text.strip()}"}.get(entry.kind, entry.sha256[:16])
            aside = "  (what is there is put aside)" if entry.kind == "file" and entry.before else ""
            out.print(console.printable(f"{entry.kind:<6} {entry.mode:04o} {entry.path} {what}{aside}".rstrip()))
        console.note(common, f"{len(outcome.entries)} paths, {units.format_size(outcome.size_bytes)}; nothing was touched")
        return
    for note in outcome.notes:
        console.note(common, console.printable(note))
    console.note(common, f"{outcome.node}: {outcome.state}, {outcome.changed} paths, in {units.format_duration(outcome.elapsed_s)}")


def tell(common: console.Common, result: Result, done: int, total: int) -> None:
    """Say on stderr what came of one node."""
    said = result.outcome or {}
    if result.ok:
        took = f" in {units.format_duration(float(said['elapsed_s']))}" if said.get("elapsed_s") else ""
        text = f"{said.get('state', 'done')}{took}"
        for note in said.get("notes", ()):
            text += f"; {note}"
    else:
        text = f"FAILED: {result.error}" + (f" ({result.hint})" if result.hint else "")
    console.note(common, console.printable(f"[{done}/{total}] {result.node}: {text}"))


def finish(common: console.Common, results: list[Result], nodes: tuple[str, ...]) -> int:
    """Print the results and return 0. Raises `errors.PartialResult` when nodes are missing, `errors.Findings` when all are."""
    failed = [result.node for result in results if not result.ok]
    untouched = [node for node in nodes if node not in {result.node for result in results}]
    if common.json:
        console.print_json({"nodes": results, "failed": failed, "untouched": untouched})
    elif not failed:
        for result in results:
            for entry in (result.outcome or {}).get("entries", ()):
                console.out().print(console.printable(f"{result.node} {entry['kind']:<6} {entry['path']}"))
    if not failed:
        return 0
    rest = f"; not touched: {_few(untouched)}" if untouched else ""
    done = len(nodes) - len(failed) - len(untouched)
    hint = "mend what is said above, and run the same command again"
    if done == 0:
        raise errors.Findings(f"no node was done: failed on {_few(failed)}{rest}", hint=hint)
    raise errors.PartialResult(f"done on {done} of {len(nodes)} nodes: failed on {_few(failed)}{rest}", hint=hint)


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
