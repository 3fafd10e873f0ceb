"""Rules about processes and threads: their states, namespaces, sessions and rights. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterator

from perdure.base import privileges
from perdure.checkpoint.preflight import about
from perdure.checkpoint.preflight.codes import finding
from perdure.checkpoint.preflight.plan import Plan
from perdure.checkpoint.preflight.scene import CRIU_FOLDER, Member, Scene
from perdure.model.finding import Finding

_SCHED_DEADLINE = 6
_NESTED = ("pid", "mnt", "net", "user", "uts", "ipc", "cgroup", "time", "time_for_children")
_CLIENTS = frozenset({"srun", "salloc", "sattach"})
"""Slurm's commands that stay connected to a step."""
_OF_ROOT = {"mnt": "mount", "user": "user"}
"""Namespaces that the tree has to share with who saves it, and their names in words; mounts are its own where it sees its own /proc."""


def check(scene: Scene, plan: Plan) -> Iterator[Finding]:
    """Yield what is wrong with the processes of `scene`."""
    for member in scene.members:
        yield from _state(member)
        if not member.is_dead:
            yield from _namespaces(scene, member)
            yield from _session(scene, plan, member)
            if not member.stat.is_dead:
                # A first thread that has ended has given everything back: the others differ from it in nothing that matters.
                yield from _threads(member)
            yield from _rights(scene, plan, member)
    yield from _root(scene)
    yield from _other_users(scene, plan)
    for pid, reason in scene.unread:
        yield finding("memory-not-looked", f"pid {pid}", reason, pid=pid)


def _state(member: Member) -> Iterator[Finding]:
    state = member.stat.state
    if member.stat.is_dead and member.stat.threads > 1:
        yield about.process("process-leader-exited", member, f"its first thread has ended, {member.stat.threads - 1} others go on")
    elif member.is_dead:
        yield about.process("process-zombie", member, "has ended and waits for its parent")
    elif member.status.tracer:
        yield about.process("process-traced", member, f"is traced by process {member.status.tracer}")
    elif member.frozen:
        yield about.process("process-frozen", member, "is in a frozen cgroup")
    elif state == "D":
        yield about.process("process-uninterruptible", member, "waits in the kernel and cannot be stopped (state D)")
    elif state == "T":
        yield about.process("process-stopped", member, "is stopped")
    if member.stat.command in _CLIENTS and not member.is_dead:
        yield about.process("process-scheduler-client", member, "waits for a step of the job that is no part of this workload")
    if member.shares_memory_with is not None:
        yield about.process("process-shared-memory", member, f"lives in the memory of process {member.shares_memory_with}")


def _namespaces(scene: Scene, member: Member) -> Iterator[Finding]:
    of_root = scene.first.namespaces
    own = sorted(kind for kind in _NESTED if kind in member.namespaces and kind in of_root and member.namespaces[kind] != of_root[kind])
    # A process that has its own kind has it for its children too: one name is enough.
    kinds = [kind for kind in own if kind != "time_for_children" or "time" not in own]
    if kinds:
        yield about.process("process-namespace", member, f"has namespaces of its own: {', '.join(kinds)}", flag=",".join(kinds))


def _session(scene: Scene, plan: Plan, member: Member) -> Iterator[Finding]:
    if member.stat.session == 0:
        # As in a container that was entered from outside: the leader has no number here, and no option of CRIU helps.
        yield about.process("process-session-outside", member, "the leader of its session is outside this PID namespace")
    elif plan.own_session and member.pid == scene.root and member.stat.session != member.pid:
        yield about.process("process-session-outside", member, f"does not lead its session, which is process {member.stat.session}'s")
    elif member.stat.session in scene.outside_sessions and member.pid != scene.root:
        yield about.process("process-session-outside", member, f"its session is that of process {member.stat.session}, outside the tree")


def _threads(member: Member) -> Iterator[Finding]:
    for thread in member.threads:
        named = "" if thread.tid == member.pid else f"thread {thread.tid} "
        if thread.policy == _SCHED_DEADLINE:
            yield about.process("process-deadline", member, f"{named}is scheduled by deadline", flag=str(thread.tid))
        if thread.own_namespaces:
            kinds = ", ".join(thread.own_namespaces)
            yield about.process("process-thread-namespace", member, f"{named}has namespaces of its own: {kinds}", flag=str(thread.tid))
        if thread.own_files:
            yield about.process("process-thread-files", member, f"{named}has descriptors of its own", flag=str(thread.tid))
        if thread.own_directory:
            yield about.process("process-thread-directory", member, f"{named}has a working directory of its own", flag=str(thread.tid))


def _rights(scene: Scene, plan: Plan, member: Member) -> Iterator[Finding]:
    if plan.owner is None or member.pid == scene.root:
        return
    status, own_groups = member.status, {plan.owner.gid, *plan.owner.groups}
    users = [uid for uid in status.uids if uid != plan.owner.uid]
    groups = [gid for gid in (*status.gids, *status.groups) if gid not in own_groups]
    more = f"user {users[0]}" if users else f"group {groups[0]}" if groups else "capabilities" if status.capabilities else None
    if more:
        yield about.process("process-other-user", member, f"has the rights of more than user {plan.owner.uid}: {more}")


def _root(scene: Scene) -> Iterator[Finding]:
    root = scene.first
    if root.is_dead:
        return
    shared = {kind: name for kind, name in _OF_ROOT.items() if not (kind == "mnt" and scene.sees_own_proc)}
    apart = [name for kind, name in shared.items() if root.namespaces.get(kind) != scene.own_namespaces.get(kind)]
    other_pids = root.namespaces.get("pid") != scene.own_namespaces.get("pid")
    if other_pids and not scene.has_own_pid_namespace:
        apart.append("PID")
    if apart:
        yield about.process("process-root-namespace", root, f"lives in another {', '.join(apart)} namespace", flag=",".join(apart))
    if root.namespaces.get("net") != scene.own_namespaces.get("net"):
        yield about.process("process-root-network", root, "lives in a network namespace of its own")
    if not other_pids:
        yield about.process("process-no-namespace", root, "has no PID namespace of its own")
    elif scene.has_own_pid_namespace and "mount" not in apart and not scene.sees_own_proc:
        # /proc is then not the one of the namespace: CRIU mounts one from inside the first process, on a new folder in its directory.
        if not root.status.capabilities >> privileges.CAPABILITIES["CAP_SYS_ADMIN"] & 1:
            yield about.process("process-root-unprivileged", root, "lacks CAP_SYS_ADMIN")
        elif root.directory_deleted or not root.directory_writable:
            how = "is deleted" if root.directory_deleted else "cannot be written"
            yield about.process("process-working-directory", root, f"its working directory {root.directory} {how}", path=root.directory)
        elif root.directory_taken:
            path = os.path.join(root.directory, CRIU_FOLDER)
            yield about.process(
                "process-directory-taken",
                root,
                f"{path} is there: CRIU has to make it",
                path=path,
                remedy=f"when no dump is going on: rmdir {path}",
            )
    if root.namespaces.get("ipc") == scene.own_namespaces.get("ipc"):
        for member in scene.members:
            if any(mapping.path.startswith("/SYSV") for mapping in member.mappings):
                yield about.process("process-system-v", member, "has System V shared memory attached")


def _other_users(scene: Scene, plan: Plan) -> Iterator[Finding]:
    if plan.criu is None or not plan.criu.needs_prlimit_preload or plan.criu.preload is not None:
        return
    for member in scene.members:
        if any(uid != 0 for uid in member.status.uids):
            yield about.process("host-prlimit", member, f"belongs to user {member.status.uids[0]}")
            return
