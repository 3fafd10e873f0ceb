"""What would prevent restoring a checkpoint here. Called by the supervisor before each restore, and by `perdure check --restore`.

Nothing is read but the manifest and this machine: no image has to be there yet. Leases and epochs are the store's to judge.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator, Mapping

import msgspec

from perdure.base import acting, text, units
from perdure.base.proc import machine, mounts
from perdure.checkpoint import temporary
from perdure.checkpoint.criu import prefix
from perdure.checkpoint.criu.run import Criu
from perdure.checkpoint.host import gpu as host_gpu
from perdure.checkpoint.outputs import renamed
from perdure.checkpoint.preflight import buildid, cpu, gpu_restore, host, ports, room, terminals
from perdure.checkpoint.preflight.codes import finding
from perdure.checkpoint.preflight.files import is_remote
from perdure.checkpoint.preflight.mapped import VIRTUAL_KINDS
from perdure.checkpoint.preflight.plan import DISKS
from perdure.model.checkpoint import HostFact, Manifest, MappedFile, OutputFile, Owner, Part
from perdure.model.finding import Finding

_MEMORY_KINDS = frozenset({"tmpfs", "ramfs"})


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the checkpoint would be restored."""

    criu: Criu | None = None
    """None: there is none that works; then `criu_refusal` says why, and `criu_remedy` what to do."""
    criu_refusal: str | None = None
    criu_remedy: str | None = None
    cpu: cpu.Check = "features"
    staging: str | None = None
    """Folder where images wait; None: memory, or one of `disks`."""
    disks: tuple[str, ...] = DISKS
    included: frozenset[str] = frozenset()
    """Paths of files and folders that the checkpoint holds (``--outputs``): they are put back before, as they were."""
    rewritten: frozenset[str] = frozenset()
    """Paths of files that a scheduler writes anew for each attempt of a job, with the same content: that they are younger means nothing."""
    owner: Owner | None = None
    """The ordinary user that it is restored for, and whose rights count for its files; None: this process's do."""
    variables: Mapping[str, str] = {}
    """The owner's: what of GPUs it may use; what is not in it is this process's."""
    is_staged: bool = False
    """The images are here already, so that they need no more room."""


def check(manifest: Manifest, plan: RestorePlan) -> tuple[Finding, ...]:
    """Return what would prevent restoring the checkpoint of `manifest` on this machine, or make it other than expected."""
    here = host.facts(plan.criu.version if plan.criu else "")
    return (
        *_criu(manifest, plan),
        *compare(manifest.host, here, plan),
        *_reached(manifest, plan),
        *_mounts(manifest),
        *_ports(manifest),
        *_terminals(manifest),
        *_processes(manifest, here),
        *_room(manifest, plan),
        *_connections(manifest),
        *_gpus(manifest, plan),
    )


def _gpus(manifest: Manifest, plan: RestorePlan) -> Iterator[Finding]:
    """Judge the whole machine, which the helper's map has to name, and what of it the workload may use."""
    if manifest.cuda_processes:
        gpus = host_gpu.look(beyond=True)
        everything = {device.uuid for device in gpus.whole.devices}
        allowed = gpus.allowed(host_gpu.visible(plan.variables), everything) if gpus.driver else None
        yield from gpu_restore.check(manifest, gpus.whole, allowed)


def _reached(manifest: Manifest, plan: RestorePlan) -> tuple[Finding, ...]:
    """Look at what the workload reaches by path, with its owner's rights: a path may lead anywhere by now."""
    with acting.as_owner(plan.owner):
        return (*_files(manifest, plan), *_folders(manifest, plan), *_outputs(manifest))


def _criu(manifest: Manifest, plan: RestorePlan) -> Iterator[Finding]:
    yield from room.rights()
    if plan.criu is None:
        yield finding("host-criu", "criu", plan.criu_refusal or "none was looked for", remedy=plan.criu_remedy)
        return
    yield from room.version(plan.criu.version)
    before, here = prefix.version_of(manifest.host.criu_version), prefix.version_of(plan.criu.version)
    if before and here and here < before:
        yield finding(
            "restore-criu-older",
            f"criu {plan.criu.version}",
            f"criu {manifest.host.criu_version} made the checkpoint, {plan.criu.version} is here",
            flag=plan.criu.version,
        )


def compare(before: HostFact, here: HostFact, plan: RestorePlan) -> Iterator[Finding]:
    """Yield what of the machine `before` is missing `here`. Pure."""
    if before.hostname != here.hostname:
        yield finding("restore-host", before.hostname, f"the checkpoint was made on {before.hostname}, this is {here.hostname}")
    if before.machine != here.machine:
        yield finding(
            "restore-architecture", here.machine, f"the checkpoint comes from {before.machine}, this is {here.machine}", flag=before.machine
        )
        return
    if before.page_bytes != here.page_bytes:
        yield finding(
            "restore-page-size", f"{here.page_bytes} bytes", f"pages had {before.page_bytes} bytes, here they have {here.page_bytes}"
        )
    old, new = _numbers(before.kernel), _numbers(here.kernel)
    if old and new and new < old:
        yield finding("restore-kernel-older", here.kernel, f"the checkpoint was made on {before.kernel}", flag=here.kernel)
    yield from _cpu(before, here, plan)


def _cpu(before: HostFact, here: HostFact, plan: RestorePlan) -> Iterator[Finding]:
    if plan.cpu == "off":
        return
    apart = cpu.difference(before.cpu_flags, here.cpu_flags, here.machine)
    matters = apart.used + apart.other if plan.cpu == "strict" else apart.used
    if matters:
        yield finding(
            "restore-cpu",
            here.cpu_model,
            f"lacks {', '.join(sorted(matters))}, which {before.cpu_model} has",
            flag=",".join(sorted(matters)),
        )
    if apart.other and plan.cpu != "strict":
        yield finding(
            "restore-cpu-other",
            here.cpu_model,
            f"lacks {', '.join(apart.other)}, which no program can depend on",
            flag=",".join(apart.other),
        )


def _numbers(kernel: str) -> tuple[int, ...]:
    return prefix.version_of(kernel)[:2]


def _files(manifest: Manifest, plan: RestorePlan) -> Iterator[Finding]:
    ours = {carried.path for carried in manifest.carried} | {output.path for output in manifest.outputs}
    for file in manifest.mapped:
        path = text.original(file.path)
        if file.path not in ours and path not in plan.included:
            yield from judge(file, os.stat, buildid.of_path, is_rewritten=path in plan.rewritten)


def judge(
    file: MappedFile, look: Callable[[str], os.stat_result], build_id: Callable[[str], str | None], *, is_rewritten: bool = False
) -> Iterator[Finding]:
    """Yield what is wrong with `file` here. `look` is stat(2), `build_id` reads the build id of a path.

    One that `is_rewritten`, with the same content, before each life, may be younger.
    """
    path = text.original(file.path)
    try:
        there = look(path)
    except OSError as error:
        yield finding("restore-file-missing", path, f"{error.strerror}; it had {file.size_bytes} bytes", path=path)
        return
    if there.st_size != file.size_bytes:
        yield finding("restore-file-changed", path, f"had {file.size_bytes} bytes, has {there.st_size}", path=path, flag=file.build_id)
    elif file.build_id is not None:
        found = build_id(path)
        if found != file.build_id:
            yield finding("restore-file-changed", path, f"had build id {file.build_id}, has {found or 'none'}", path=path, flag=found)
    elif there.st_mtime_ns != file.mtime_ns and not is_rewritten:
        yield finding("restore-file-touched", path, f"was changed since, and still has {file.size_bytes} bytes", path=path)


def _folders(manifest: Manifest, plan: RestorePlan) -> Iterator[Finding]:
    worked_in = text.original(manifest.working_directory)
    made = any(text.original(folder.path) == worked_in and temporary.makes(folder, plan.owner) for folder in temporary.of(manifest))
    wanted = {} if made else {worked_in: "the workload works in it"}
    for output in manifest.outputs:
        if output.stored_as is None and not _is_folder_of_folder(text.original(output.path)):  # what is stored brings its folder
            folder, name = os.path.split(text.original(output.path))
            wanted.setdefault(folder, f"{name} is written in it")
    for path, why in sorted(wanted.items()):
        held = path in plan.included or any(one.startswith(f"{path}/") for one in plan.included)
        if path and not held and not os.path.isdir(path):
            yield finding("restore-folder-missing", path, f"is no folder here, and {why}", path=path)


def _is_folder_of_folder(path: str) -> bool:
    """Tell whether the folder of the folder of the file `path` is here: where it is, what it lacks is the file's loss, and no mount's."""
    return os.path.isdir(os.path.dirname(os.path.dirname(path)))


def _outputs(manifest: Manifest) -> Iterator[Finding]:
    for output in manifest.outputs:
        path = text.original(output.path)
        if output.stored_as is not None or not _is_folder_of_folder(path):
            continue
        try:
            yield from _output(path, output)
        except OSError as error:
            yield finding("restore-output-unreachable", path, f"{error.strerror}; it had {output.size_bytes} bytes", path=path)


def _output(path: str, output: OutputFile) -> Iterator[Finding]:
    try:
        there = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if not renamed.is_there(path, output):
            yield finding("restore-output-missing", path, f"{error.strerror}; it had {output.size_bytes} bytes", path=path)
        return
    if there.st_size < output.size_bytes and not renamed.is_there(path, output):
        yield finding("restore-output-changed", path, f"had {output.size_bytes} bytes, has {there.st_size}", path=path)


def _mounts(manifest: Manifest) -> Iterator[Finding]:
    here = {mount.point: mount.kind for mount in mounts.of(os.getpid())}
    for stored, kind in manifest.host.mounts:
        point = text.original(stored)
        if kind in VIRTUAL_KINDS:
            continue
        if point not in here:
            yield finding("restore-mount", point, f"{kind} was mounted there, nothing is", path=point, flag=kind)
        elif here[point] != kind and any(is_remote(one) or one in _MEMORY_KINDS for one in (kind, here[point])):
            yield finding("restore-mount", point, f"{kind} was mounted there, {here[point]} is", path=point, flag=kind)


def _ports(manifest: Manifest) -> Iterator[Finding]:
    for taken in ports.taken(manifest.connections):
        who = f"process {taken.pid}" if taken.pid is not None else "somebody"
        yield finding(
            "restore-port-taken",
            f"{taken.wanted.protocol} {taken.wanted.local}",
            f"{who} holds it",
            pid=taken.pid,
            flag=taken.wanted.local.rpartition(":")[2],
        )


def _terminals(manifest: Manifest) -> Iterator[Finding]:
    for number in terminals.taken(manifest.terminals):
        yield finding("restore-terminal-taken", f"/dev/pts/{number}", "somebody has it", path=f"/dev/pts/{number}")


def _processes(manifest: Manifest, here: HostFact) -> Iterator[Finding]:
    highest = max((process.pid for process in manifest.processes), default=0)
    if highest >= here.pid_max:
        yield finding(
            "restore-pid",
            f"PID {highest}",
            f"PIDs stay below {here.pid_max} here",
            remedy=f"sysctl kernel.pid_max={max(highest + 1, 4194304)}",
        )
    for uid in sorted({process.uid for process in manifest.processes}):
        try:
            pwd.getpwuid(uid)
        except KeyError:
            yield finding("restore-user-missing", f"user {uid}", "has no name here", flag=str(uid))


def _room(manifest: Manifest, plan: RestorePlan) -> Iterator[Finding]:
    memory_bytes = sum(size.logical_bytes for size in manifest.sizes if size.part in (Part.MEMORY, Part.GPU))
    available_bytes = machine.memory().available_bytes
    if memory_bytes > available_bytes:
        yield finding(
            "restore-memory",
            units.format_size(memory_bytes),
            f"the workload needs {units.format_size(memory_bytes)}, {units.format_size(available_bytes)} of memory is free",
        )
    if plan.is_staged:
        return
    yield from room.images("restore-disk", manifest.logical_bytes, plan.staging, plan.disks)


def _connections(manifest: Manifest) -> Iterator[Finding]:
    code, becomes = ("restore-connection-kept", "kept") if manifest.tcp == "keep" else ("restore-connection", "closed")
    for connection in manifest.connections:
        if connection.protocol.startswith("tcp") and connection.state not in ("listen", "closed") and not connection.inside:
            yield finding(
                code,
                connection.local,
                f"the connection to {connection.remote} ({connection.state}) is {becomes}",
                flag="--tcp",
            )
