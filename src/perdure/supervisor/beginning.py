"""The beginning of a life: what is done to start a workload, to bring it back or to take it over. Called by `start`.

Everything here works on one life and decides nothing; where something fails, nothing of the workload runs.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base.proc import process
from perdure.checkpoint import adopt, alive, carried, tree
from perdure.checkpoint import launch as launching
from perdure.checkpoint import restore as restoring
from perdure.checkpoint.criu.locate import Init
from perdure.checkpoint.images import cure_timerfds
from perdure.checkpoint.outputs import bring_back, listing, trees
from perdure.checkpoint.preflight import restore as preflight
from perdure.checkpoint.tree import Tree
from perdure.model.finding import Finding, Severity, problems
from perdure.store import locks
from perdure.store.owners import Linux
from perdure.store.streaming import Streams
from perdure.supervisor import engine, environment
from perdure.supervisor.life import Life
from perdure.supervisor.progress import Progress
from perdure.supervisor.resume import Source, damaged
from perdure.supervisor.voice import Voice

_WORK = "criu"
_BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
"""Beside the owner's own variables; of ours a user's program gets none."""


def launch(
    life: Life, argv: tuple[str, ...], variables: dict[str, str], init: Init, streams: tuple[int, int, int], *, is_terminal: bool
) -> None:
    """Start the workload with `streams` as its descriptors 0, 1 and 2. Raises what `launch.launch` does."""
    give(life, streams)
    spec = launching.LaunchSpec(
        argv=argv,
        environment=variables | {environment.EPOCH_FILE: str(life.epoch_file), environment.WORKLOAD: life.name},
        working_directory=life.record.working_directory,
        init=launching.install_init(init, life.folders.state / engine.INITS),
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        terminal=is_terminal,
        first_pid=launching.first_pid(life.name),
        umask=_umask() if life.umask is None else life.umask,
        limits=life.limits,
        owner=life.owner,
        folder=str(life.epoch_file.parent),
    )
    life.tree = launching.launch(spec)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def give(life: Life, streams: tuple[int, int, int]) -> None:
    """Make pipes and terminals among `streams`, which we made, the owner's: programs open /dev/stdout and /dev/tty anew."""
    if life.owner is None:
        return
    for descriptor in streams:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fchown(descriptor, life.owner.uid, life.owner.gid)
        elif os.isatty(descriptor):
            os.fchown(descriptor, life.owner.uid, -1)  # the group is that of terminals


def take_over(life: Life, pid: int) -> None:
    """Keep the process `pid`, which runs already, with all it started. Raises what `adopt.find` does."""
    life.tree = adopt.find(pid)
    life.own_namespace = process.status(pid).inner_pid == 1


def restore(life: Life, source: Source, streams: tuple[int, int, int], progress: Progress) -> None:
    """Bring the workload back from `source`, with `streams` as its new descriptors 0, 1 and 2, telling `progress` of each phase.

    Raises `errors.RestoreRefused`, `errors.RestoreFailed`, `errors.CheckpointDamaged`; nothing of it runs then.
    """
    manifest, contents, voice = source.manifest, Path(source.folder), life.voice
    included = frozenset(entry.path for entry in listing.read(contents))
    plan = preflight.RestorePlan(
        criu=life.criu, cpu=life.cpu_check, staging=life.staging, is_staged=True, included=included, owner=life.owner
    )
    found = preflight.check(manifest, plan)
    _refuse(found, voice)
    planned = life.gpus.plan(manifest, life.variables)
    of_init, of_owner = carried.apart(manifest)
    _refuse(trees.put_back(contents, epoch=life.epoch, owner=life.owner), voice)
    _refuse(carried.put_back(of_init, contents, epoch=life.epoch), voice)
    _refuse(carried.put_back(of_owner, contents, epoch=life.epoch, owner=life.owner), voice)
    _refuse(bring_back.bring_back(manifest.outputs, epoch=life.epoch, contents=contents, owner=life.owner), voice)
    give(life, streams)
    images = contents / manifest.images_directory
    cure_timerfds(images)
    work = contents / _WORK
    work.mkdir(mode=0o700)
    options = restoring.RestoreOptions(
        streams=manifest.streams,
        descriptors=dict(enumerate(streams)),
        expected_bytes=manifest.logical_bytes,
        tcp=manifest.tcp,
        log_to=life.folders.workload(life.name) / "restore.log",
        owner=life.owner,
    )
    if source.late:
        life.tree = _bring_back_while_reading(life, source, options, progress)
    elif adopt.is_whole(images):
        progress.enter("restore")
        life.tree = restoring.restore(images, work, options, engine.mortal(life.criu)).tree
    elif life.owner is not None:
        raise errors.RestoreRefused(f"{source.id} is of a tree without an init of ours", hint="root can restore it")
    else:
        progress.enter("restore")
        life.tree = adopt.bring_back(images, work, options, life.criu).tree
    try:
        if manifest.cuda_processes:
            progress.enter("gpu-restore")
        life.gpus.restore(life.tree, manifest, contents, planned)
        progress.enter("verify")
        alive.verify(life.tree, manifest.processes, _probe(life))
    except errors.RestoreFailed:
        tree.kill(life.tree)
        tree.reap(life.tree, wait=True)
        raise


def _bring_back_while_reading(life: Life, source: Source, options: restoring.RestoreOptions, progress: Progress) -> Tree:
    """Bring it back while its memory is read. Where that fails although the store is whole, read all of it and try once more."""
    contents, criu = Path(source.folder), engine.mortal(life.criu)
    images, work = contents / source.manifest.images_directory, contents / _WORK
    late_bytes = sum(file.size_bytes for file in source.manifest.files if file.name in source.late)
    with locks.shared(life.repository, purpose=f"restore {source.id}", surroundings=Linux(), using=(source.id,)):
        try:
            with life.repository.stream(source.id) as files:
                pages = {os.path.basename(name): functools.partial(_read, files, name, progress) for name in source.late}
                progress.enter("restore", total_bytes=late_bytes)
                return restoring.restore(images, work, msgspec.structs.replace(options, pages=pages), criu).tree
        except errors.StoreCorrupt as error:
            raise damaged(source.id, error) from error
        except errors.RestoreRefused:
            raise
        except errors.RestoreFailed as error:
            life.voice.say(f"{error}; trying once more with all of it read before")
        progress.enter("fetch", total_bytes=late_bytes)
        life.repository.extract(source.id, contents, names=source.late, progress=progress.reach)
    shutil.rmtree(work)
    work.mkdir(mode=0o700)
    progress.enter("restore")
    return restoring.restore(images, work, options, criu).tree


def _read(files: Streams, name: str, progress: Progress) -> Iterator[Sequence[memoryview]]:
    return progress.counted(files.read(name))


def _probe(life: Life) -> alive.Probe | None:
    if life.options.probe is None:
        return None
    try:
        argv = tuple(shlex.split(life.options.probe))
    except ValueError as error:
        raise errors.RestoreFailed(f"the probe cannot be read: {error}", hint="see --probe") from error
    if not argv:
        return None
    before = os.environ if life.owner is None else {**_BARE, **life.variables}
    return alive.Probe(
        argv=argv,
        environment={**before, environment.WORKLOAD: life.name, environment.EPOCH_FILE: str(life.epoch_file)},
        working_directory=life.record.working_directory,
        owner=life.owner,
        folder=str(life.epoch_file.parent),
        limits=life.limits,
    )


def _refuse(findings: tuple[Finding, ...], voice: Voice) -> None:
    """Tell of `findings`, and raise `errors.RestoreRefused` when one of them is a problem."""
    found = problems(findings)
    if found:
        raise errors.RestoreRefused(engine.summary(found), hint=found[0].remedy or "see perdure check --restore", findings=findings)
    for finding in findings:
        if finding.severity is Severity.WARNING:
            voice.say(f"{finding.subject}: {finding.message}" + (f" ({finding.remedy})" if finding.remedy else ""))
