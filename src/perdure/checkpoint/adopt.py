"""Trees that were not started by us: found by a PID, saved where they are, and given an init and a PID namespace when they come back.

Called by the supervisor. In its first life an adopted tree is whatever it was: no child of ours, in the host's PID namespace, in a session
of somebody else. `restore` brings it back as a tree like any other, so that from then on everything is done as for one that we started:
CRIU puts it below `keeper`, in a mount namespace that CRIU needs for its /proc; from there it is saved once more and restored without.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base.proc import process
from perdure.checkpoint import dump, links, namespaces, restore, streams, tree
from perdure.checkpoint.criu import log, run
from perdure.checkpoint.criu.run import Action, Call, Criu, Result
from perdure.checkpoint.dump import DumpOptions
from perdure.checkpoint.images import container, wire
from perdure.checkpoint.restore import Restored, RestoreOptions
from perdure.checkpoint.tree import Tree

_KEEPER = Path(__file__).with_name("keeper.py")
_REPLY_BYTES = 4096
_PID_FILE = "pid"
_HANDED_OVER = 10
"""`keeper` hands the streams 0, 1 and 2 to CRIU under these numbers and the next two."""

_CLOCKS = "timens-0.img"
_TIMENS = 0x43114433
"""CRIU's magic number of that image (criu/include/magic.h)."""

_AWAY = 100
"""How far from the tree's own PIDs those of CRIU begin."""

_DYING_S = 10.0
_STEP_S = 0.01
_LOG_CHARACTERS = 256 * 1024


class _Told(msgspec.Struct):
    """What `keeper` says: one of the first two, or an error of the system."""

    pid: int | None = None
    status: int | None = None
    errno: int | None = None
    path: str | None = None


def find(pid: int) -> Tree:
    """Return the tree below process `pid`, to be saved.

    Raises `errors.ProcessGone`, and `errors.UsageError` for a process that cannot be saved from here: a kernel's, ourselves or what we
    run in, one in a container.
    """
    stat = process.stat(pid)
    if stat.is_dead:
        raise errors.ProcessGone(f"process {pid} has ended")
    if stat.is_of_the_kernel:
        raise errors.UsageError(f"process {pid} ({stat.command}) is the kernel's own", hint="name a process of a user")
    above = os.getpid()
    while above > 0:
        if above == pid:
            raise errors.UsageError(f"this command itself runs below process {pid}", hint="run it from another shell")
        above = process.stat(above).parent
    if len(process.status(pid).namespace_pids) > 1 and process.status(pid).inner_pid != 1:
        raise errors.UsageError(f"process {pid} lives in a PID namespace and is not its first process", hint="name the first process in it")
    return Tree(pid=pid, start_ticks=stat.start_ticks)


def end(root: Tree) -> None:
    """End an adopted tree that still is where it was found, every process of it. Raises `errors.WorkloadBusy` when one does not end.

    There is no init whose end the others could not survive: all are stopped first, so that none starts another meanwhile.
    """
    limit = time.monotonic() + _DYING_S
    left: dict[int, int] = {}
    try:
        while True:
            tree.stop(root)
            found = {member.pid: member.start_ticks for member in tree.members(root)}
            if found == left:
                break
            left = found  # one that was started before its parent stopped has to be stopped, too
    except errors.ProcessGone:
        return
    for pid, ticks in left.items():
        tree.send(Tree(pid, ticks), signal.SIGKILL)
    while alive := [pid for pid, ticks in left.items() if tree.is_alive(Tree(pid, ticks))]:
        if time.monotonic() > limit:
            raise errors.WorkloadBusy(f"processes {alive} were killed and do not end", hint="see what holds them: ps -o wchan")
        time.sleep(_STEP_S)


def is_whole(images: Path) -> bool:
    """Tell whether the images hold a PID namespace with its init, so that `restore.restore` can bring them back; else `restore` does."""
    return (images / "core-1.img").exists()


def bring_back(images: Path, work: Path, options: RestoreOptions, criu: Criu) -> Restored:
    """Bring back a tree that was saved where it was found. As `restore.restore`, for images that are not whole (`is_whole`).

    Raises `errors.RestoreFailed`; nothing of the tree is left then.
    """
    if threading.current_thread() is not threading.main_thread():
        raise AssertionError("the tree would end with this thread")
    began = time.monotonic()
    first = _restore_below_keeper(images, work, options, criu)
    staging = work / "second"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(mode=0o700)
    try:
        again = DumpOptions(expected_bytes=options.expected_bytes, leave="stopped", tcp=options.tcp, log_to=options.log_to)
        dumped = dump.dump(first, staging, again, lambda: None, criu)
    except errors.CheckpointFailed as error:
        raise errors.RestoreFailed(f"it cannot be given a namespace of its own: {error}", hint=error.hint) from error
    except errors.ProcessGone as error:
        raise errors.RestoreFailed(
            "it ended by itself before it had been given a namespace of its own: it was saved moments before its end",
            hint="it ran to its end: see what it wrote; or go back to an older checkpoint: perdure restore NAME --from ID",
        ) from error
    finally:
        tree.kill(first)
        tree.reap(first, wait=True)
    second = staging / "restore"
    second.mkdir(mode=0o700)
    restored = restore.restore(dumped.images, second, msgspec.structs.replace(options, streams=dumped.streams), criu)
    return msgspec.structs.replace(restored, wall_s=time.monotonic() - began)


def _restore_below_keeper(images: Path, work: Path, options: RestoreOptions, criu: Criu) -> Tree:
    inherited, _ = streams.inherited(options.streams, {number: _HANDED_OVER + number for number in range(3)})
    tcp, _ = restore.tcp_options(images, options)
    standing = (*dump.STANDING, dump.GHOST_LIMIT)
    call = Call(
        action=Action.RESTORE,
        images=str(images),
        work=str(work),
        timeout_s=dump.timeout_for(options.expected_bytes),
        options=("--restore-detached", "--restore-sibling", "--shell-job", f"--pidfile={_PID_FILE}", *standing, *tcp, *inherited),
    )
    linked = links.put_back(images)
    monotonic_ns, boottime_ns = _clocks(images)
    request = {
        "argv": run.command(criu, call),
        "pid_file": str(work / _PID_FILE),
        "first_pid": _far_from(images),
        "monotonic_ns": monotonic_ns,
        "boottime_ns": boottime_ns,
    }
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        pid = namespaces.spawn_first(_KEEPER, (*(options.descriptors[number] for number in range(3)), theirs.fileno()))
        theirs.close()
        root = Tree(pid=pid, start_ticks=tree.start_ticks_of(pid))
        ours.settimeout(call.timeout_s + run.GRACE_S)
        try:
            ours.sendall(json.dumps(request).encode("ascii") + b"\n")
            told = msgspec.json.decode(ours.recv(_REPLY_BYTES) or b"{}", type=_Told)
        except OSError as error:
            told = _Told(errno=error.errno)
    if told.pid is not None:
        return root
    tree.kill(root)
    tree.reap(root, wait=True)
    links.remove(linked)
    raise _failure(told, work, options)


def _clocks(images: Path) -> tuple[int, int]:
    """Take the clocks out of the images and return them, in nanoseconds since the boot: `keeper` sets them, not CRIU.

    Raises `errors.InputError`.
    """
    path = images / _CLOCKS
    entry = wire.parse(container.read(path, _TIMENS).entries[0])
    found = []
    for field in (1, 2):
        clock = wire.parse(wire.content(entry, field) or b"")
        found.append(wire.number(clock, 1) * 1_000_000_000 + wire.number(clock, 2))
    path.unlink()
    return found[0], found[1]


def _far_from(images: Path) -> int:
    """Return a PID that the tree does not use, nor any of the next ones: those are CRIU's own."""
    taken = sorted(int(path.name[5:-4]) for path in images.glob("core-*.img") if path.name[5:-4].isdecimal())
    candidate = _AWAY
    for pid in taken:
        if pid - candidate >= _AWAY:
            break
        candidate = max(candidate, pid + _AWAY)
    return candidate


def _failure(told: _Told, work: Path, options: RestoreOptions) -> errors.RestoreFailed:
    if told.errno is not None:
        return errors.RestoreFailed(f"cannot make a namespace for it: {os.strerror(told.errno)}", hint="see perdure doctor")
    returncode = told.status if told.status is not None else -signal.SIGKILL
    path = work / "restore.log"
    said = path.read_text("utf-8", "replace")[-_LOG_CHARACTERS:] if path.exists() else ""
    explanation = log.explain(said, action=Action.RESTORE.value, returncode=returncode)
    result = Result(action=Action.RESTORE, returncode=returncode, wall_s=0.0, log_path=str(path), explanation=explanation)
    return restore.failure(result, options)
