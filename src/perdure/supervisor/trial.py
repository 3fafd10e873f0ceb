"""Restore a checkpoint where it can do no harm, see it live, and discard it. Called by `perdure store verify --restore`.

The trial runs in a process of its own, in a `sandbox`: what the restored workload writes to files is dropped, and it reaches no network.
It runs for a moment, and whatever else it reaches on this machine (a socket in a folder, a device) it does reach. `try_out` starts it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint import alive, carried, sandbox, staging, temporary, tree
from perdure.checkpoint import restore as restoring
from perdure.checkpoint.criu.run import Criu
from perdure.checkpoint.images import cure_timerfds
from perdure.checkpoint.outputs import bring_back, listing, trees
from perdure.checkpoint.preflight import restore as preflight
from perdure.model.checkpoint import Manifest, Stream
from perdure.model.finding import Finding, problems
from perdure.supervisor import wire

_SPARE_DISK = Path("/var/tmp")  # noqa: S108 - a disk on every machine; what is made there is private


class Request(msgspec.Struct, frozen=True):
    """What the trial's process is told."""

    manifest: Manifest
    contents: str
    """Folder with the checkpoint's files, absolute."""
    criu: Criu


class Tried(msgspec.Struct, frozen=True):
    """A checkpoint that was seen to live."""

    processes: int
    progress: str
    """See `alive.Alive`."""
    restore_s: float
    findings: tuple[Finding, ...]
    """What was not as it had been, none of it a problem."""


class _Answer(msgspec.Struct, frozen=True):
    tried: Tried | None = None
    error: wire.ErrorDocument | None = None


def make_folder(wanted_bytes: int, *, setting: str | None, state: Path) -> Path:
    """Make a private folder with room for a checkpoint of that size: as `setting` says, or in memory, or on a disk. See `staging.remove`.

    Raises `errors.CheckpointRefused` where there is no room, `errors.OutputError`.
    """
    return staging.make(staging.choose(wanted_bytes, setting=setting, disks=(state, _SPARE_DISK)))


def try_out(manifest: Manifest, contents: Path, criu: Criu) -> Tried:
    """Restore the checkpoint whose files lie in `contents`, a private folder of ours, see it live, and end it.

    Raises `errors.RestoreRefused`, `errors.RestoreFailed`, `errors.EnvironmentUnfit` (it needs root).
    """
    request = contents / "trial.json"
    request.write_bytes(wire.encode(Request(manifest, str(contents.resolve()), criu)))
    # A fresh interpreter: namespaces are entered by single-threaded processes, and ours is none.
    done = subprocess.run(
        [sys.executable, "-m", "perdure.supervisor.trial", str(request)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        answer: _Answer = wire.decode(done.stdout, _Answer)
    except msgspec.DecodeError as error:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise errors.RestoreFailed(
            f"the trial ended with {done.returncode}: {said[-1] if said else 'nothing was said'}", hint="see perdure doctor"
        ) from error
    if answer.error is not None:
        raise wire.error(answer.error)
    if answer.tried is None:
        raise AssertionError("a trial says one thing or the other")
    return answer.tried


def main(arguments: list[str]) -> int:
    """Try what the request file `arguments[0]` says, and print the answer. Returns the exit status."""
    request: Request = wire.decode(Path(arguments[0]).read_bytes(), Request)
    try:
        answer = _Answer(tried=_try(request))
    except errors.PerdureError as error:
        answer = _Answer(error=wire.document(error))
    sys.stdout.buffer.write(wire.encode(answer))
    return 0


def _try(request: Request) -> Tried:
    manifest, contents = request.manifest, Path(request.contents)
    scratch = contents / "scratch"
    scratch.mkdir(mode=0o700)
    sandbox.enter(scratch)
    epoch, owner = manifest.id.epoch + 1, manifest.owner
    plan = preflight.RestorePlan(
        criu=request.criu,
        staging=str(contents),
        is_staged=True,
        included=frozenset(entry.path for entry in listing.read(contents)),
        owner=owner,
    )
    if owner is not None and manifest.epoch_file is not None:
        # Where its init works; it is there while the workload lives somewhere on this machine.
        os.makedirs(os.path.dirname(manifest.epoch_file), mode=0o711, exist_ok=True)
    of_init, of_owner = carried.apart(manifest)
    found = [
        *_accept(preflight.check(manifest, plan)),
        *_accept(temporary.make(temporary.of(manifest), owner)),
        *_accept(trees.put_back(contents, epoch=epoch, owner=owner)),
        *_accept(carried.put_back(of_init, contents, epoch=epoch, shared=True)),
        *_accept(carried.put_back(of_owner, contents, epoch=epoch, owner=owner)),
        *_accept(bring_back.bring_back(manifest.outputs, epoch=epoch, contents=contents, owner=owner)),
    ]
    images = contents / manifest.images_directory
    cure_timerfds(images)
    work = contents / "criu"
    work.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        descriptors = {stream.fd: _other_side(stream, stack) for stream in manifest.streams if stream.external is not None}
        options = restoring.RestoreOptions(
            streams=manifest.streams, descriptors=descriptors, expected_bytes=manifest.logical_bytes, tcp=manifest.tcp, owner=owner
        )
        restored = restoring.restore(images, work, options, request.criu)
        try:
            lived = alive.verify(restored.tree, manifest.processes, None)
            members = len(tree.members(restored.tree)) if lived.progress != "ended" else 0
        finally:
            with contextlib.suppress(errors.ProcessGone):
                tree.kill(restored.tree)
            tree.reap(restored.tree, wait=True)
    return Tried(members, lived.progress, restored.wall_s, tuple(found))


def _accept(found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    wrong = problems(found)
    if wrong:
        first = wrong[0]
        raise errors.RestoreRefused(f"{first.code}: {first.subject}: {first.message}", hint=first.remedy or "", findings=found)
    return found


def _other_side(stream: Stream, stack: contextlib.ExitStack) -> int:
    """Return a new descriptor for a stream of the workload. What it writes is dropped; what it reads never comes."""
    if stream.kind == "tty":
        ours, theirs = os.openpty()
    elif stream.fd == 0:
        theirs, ours = os.pipe()
    else:
        ours, theirs = os.pipe()
    for descriptor in (ours, theirs):
        stack.callback(os.close, descriptor)
    if stream.kind == "tty" or stream.fd != 0:
        threading.Thread(target=_drain, args=(os.dup(ours),), daemon=True).start()
    return theirs


def _drain(descriptor: int) -> None:
    # A terminal whose other side is closed reads as an error.
    with contextlib.suppress(OSError):
        while os.read(descriptor, 65536):
            pass
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
