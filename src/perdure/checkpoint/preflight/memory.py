"""Rules about mapped memory, and how many bytes a checkpoint would hold. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.checkpoint.cuda import processes
from perdure.checkpoint.preflight import about, devices
from perdure.checkpoint.preflight.scene import Member, Scene
from perdure.model.finding import Finding

_ANONYMOUS = "anon_inode:"
_TASK_BYTES = 64 * 1024
"""What the images hold of a process besides its memory; measured 20 to 60 KiB."""


def check(scene: Scene) -> Iterator[Finding]:
    """Yield what is wrong with the mappings of `scene`: one finding a process and kind."""
    for member in scene.members:
        told: set[str] = set()
        for mapping in member.mappings:
            code, message = _verdict(member, mapping.path, mapping.start)
            if code and message not in told:
                told.add(message)
                yield about.process(code, member, message, path=mapping.path if mapping.path.startswith("/") else None)
        if member.usage.huge_bytes and not any("huge pages" in message for message in told):
            yield about.process("memory-huge-pages", member, "has memory of reserved huge pages")
        # What a tree's own init has, it has from the supervisor, as have all that a restore makes.
        given = scene.first.memory_policy if scene.has_own_pid_namespace else ""
        if member.memory_policy != given and not member.is_dead:
            policy = member.memory_policy or "default"
            yield about.process(
                "memory-policy", member, f"takes memory by the policy {policy}, and by {given or 'default'} after a restore"
            )


def _verdict(member: Member, path: str, start: int) -> tuple[str, str]:
    if path.startswith("/anon_hugepage"):
        return "memory-huge-pages", "has memory of reserved huge pages mapped"
    if path.startswith(_ANONYMOUS):
        kind = path.removeprefix(_ANONYMOUS)
        if kind == "[io_uring]":
            return "file-io-uring", "has the queues of an io_uring mapped"
        return "memory-kernel-object", f"has memory of a kernel object ({kind.strip('[]')}) mapped"
    if start in member.mapped_devices and not processes.is_device(path):
        return devices.code_of_path(path), f"has the device {path} mapped"
    return "", ""


def expected_bytes(scene: Scene) -> int:
    """Return about how many bytes the images of `scene` would take.

    Memory of the processes, their shared memory (each page counted in parts among those who share it), what is swapped out, and deleted
    files that are open. Pages that are all zero are counted, though the images leave them out.
    """
    used: int = sum(
        member.usage.anonymous_bytes + member.usage.shared_memory_bytes + member.usage.swapped_bytes for member in scene.members
    )
    deleted = {(opened.device, opened.inode) for member in scene.members for opened in member.descriptors if opened.deleted}
    return used + sum(scene.deleted[key].allocated_bytes for key in deleted if key in scene.deleted) + _TASK_BYTES * len(scene.members)
