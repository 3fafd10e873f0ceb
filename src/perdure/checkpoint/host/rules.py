"""What facts about a machine mean to a person: findings with stable codes. Pure."""

from __future__ import annotations

from perdure.checkpoint.host.facts import Machine
from perdure.model.finding import Finding, Severity

_SHM_FEW_BYTES = 128 << 20
"""Containers get 64 MiB by default: less than one worker of a data loader may want."""

_STATE_FEW_BYTES = 1 << 30
_GIB = float(1 << 30)


def judge(machine: Machine) -> tuple[Finding, ...]:
    """Return what a person should know of `machine`. Pure."""
    return tuple(
        finding for part in (_privileges, _kernel, _namespaces, _confinement, _memory, _state, _locks) for finding in part(machine)
    )


def _find(severity: Severity, code: str, subject: str, message: str, remedy: str | None = None, *, path: str | None = None) -> Finding:
    return Finding(code=code, severity=severity, subject=subject, message=message, remedy=remedy, path=path)


def _privileges(machine: Machine) -> list[Finding]:
    if not machine.root:
        return [
            _find(
                Severity.PROBLEM,
                "host-privileges",
                "privileges",
                "checkpointing needs root, and this process is not",
                "run it as root: sudo perdure … (everything about accounting works without)",
            )
        ]
    needed = [name for name in machine.missing_capabilities if name in ("CAP_SYS_ADMIN", "CAP_SYS_PTRACE")]
    found = []
    if needed:
        found.append(
            _find(
                Severity.PROBLEM,
                "host-privileges",
                "privileges",
                f"this root lacks {' and '.join(needed)}",
                f"start the container with {' '.join('--cap-add=' + name.removeprefix('CAP_') for name in needed)}",
            )
        )
    if "CAP_NET_ADMIN" in machine.missing_capabilities:
        found.append(
            _find(
                Severity.WARNING,
                "host-no-net-admin",
                "privileges",
                "this root lacks CAP_NET_ADMIN: processes with established TCP connections cannot be saved",
                "start the container with --cap-add=NET_ADMIN",
            )
        )
    if "CAP_SYS_RESOURCE" in machine.missing_capabilities:
        found.append(
            _find(
                Severity.INFO,
                "host-no-sys-resource",
                "privileges",
                "this root lacks CAP_SYS_RESOURCE, as in many containers: limits of other users' processes are read from /proc instead",
            )
        )
    return found or [_find(Severity.INFO, "host-root", "privileges", "root, with all capabilities that CRIU uses")]


def _kernel(machine: Machine) -> list[Finding]:
    found = [_find(Severity.INFO, "host-kernel", "kernel", f"Linux {machine.kernel} on {machine.architecture}")]
    if not machine.checkpoint_restore:
        found.append(
            _find(
                Severity.PROBLEM,
                "host-no-checkpoint-restore",
                "kernel",
                "built without CONFIG_CHECKPOINT_RESTORE, or /proc is masked",
                "use a kernel that has it (all large distributions do); in a container, unmask /proc",
            )
        )
    found += [
        _find(Severity.PROBLEM, "host-no-util-linux", program, "the program is not installed", "install the package util-linux")
        for program in machine.missing_programs
    ]
    if not machine.soft_dirty:
        found.append(
            _find(
                Severity.INFO,
                "host-no-soft-dirty",
                "kernel",
                "does not track changed memory (CONFIG_MEM_SOFT_DIRTY): Perdure compares pages itself and does without",
            )
        )
    if not machine.userfaultfd:
        found.append(
            _find(Severity.INFO, "host-no-userfaultfd", "kernel", "has no userfaultfd: a restore loads all memory before it goes on")
        )
    if machine.io_uring != "no":
        found.append(
            _find(
                Severity.INFO,
                "host-io-uring",
                "kernel",
                "offers io_uring, which no CRIU can save: a program that uses it is refused by perdure check",
                "start such a program with perdure without-io-uring -- COMMAND",
            )
        )
    return found


def _namespaces(machine: Machine) -> list[Finding]:
    found = []
    for kind, severity, without in (
        ("pid", Severity.PROBLEM, "a workload's PIDs could be taken when it is restored"),
        ("ipc", Severity.PROBLEM, "a workload's System V memory could not be saved"),
        ("net", Severity.WARNING, "store verify --restore cannot shield what it tries"),
        ("mnt", Severity.WARNING, "store verify --restore cannot shield what it tries"),
    ):
        if kind not in machine.namespaces:
            found.append(
                _find(severity, "host-no-namespace", f"{kind} namespaces", f"the kernel has none: {without}", "use a kernel that has them")
            )
    if machine.isolates is False:
        found.append(
            _find(
                Severity.PROBLEM,
                "host-no-isolation",
                "namespaces",
                "a PID and an IPC namespace cannot be made: a container forbids it, or user limits are reached",
                "try: unshare --pid --ipc --fork true; start the container privileged, or raise /proc/sys/user/max_pid_namespaces",
            )
        )
    elif machine.isolates_network is False:
        found.append(
            _find(
                Severity.WARNING,
                "host-no-network-isolation",
                "namespaces",
                "network and mount namespaces cannot be made: store verify --restore cannot shield what it tries",
                "try: unshare --net --mount true",
            )
        )
    if machine.own_proc == "failed" and machine.isolates is not False:
        found.append(
            _find(
                Severity.PROBLEM,
                "host-no-isolation",
                "namespaces",
                "the mounts of a workload cannot be made: user limits are reached",
                "try: unshare --mount true; raise /proc/sys/user/max_mnt_namespaces",
            )
        )
    elif machine.own_proc == "forbidden":
        found.append(
            _find(
                Severity.WARNING,
                "host-no-own-proc",
                "/proc",
                "cannot be mounted: workloads see this machine's, with other numbers than theirs. psutil's Process() fails in them, as does"
                " what is built upon it, and CUDA may with NVIDIA's drivers from 570 on; one that has files of /proc/PID open is not saved",
                "let the container mount: --security-opt apparmor=unconfined, or a profile of AppArmor or SELinux with a rule for mount",
                path="/proc",
            )
        )
    return found


def _confinement(machine: Machine) -> list[Finding]:
    found = []
    if machine.ptrace_scope >= 3:
        found.append(
            _find(
                Severity.PROBLEM,
                "host-ptrace-forbidden",
                "/proc/sys/kernel/yama/ptrace_scope",
                "is 3: not even root may attach to a process",
                "set kernel.yama.ptrace_scope to 2 or less in /etc/sysctl.d and reboot",
                path="/proc/sys/kernel/yama/ptrace_scope",
            )
        )
    if machine.container:
        found.append(_find(Severity.INFO, "host-container", "container", f"this seems to be a {machine.container} container"))
    if machine.seccomp == 2:
        found.append(
            _find(
                Severity.WARNING,
                "host-seccomp",
                "seccomp",
                "a filter confines this process, and may forbid what CRIU needs",
                "if CRIU fails: start the container with --security-opt seccomp=unconfined",
            )
        )
    if machine.apparmor:
        found.append(
            _find(
                Severity.WARNING,
                "host-apparmor",
                "AppArmor",
                f"the profile {machine.apparmor} confines this process, and may forbid what CRIU needs",
                "if CRIU fails: start the container with --security-opt apparmor=unconfined",
            )
        )
    return found


def _memory(machine: Machine) -> list[Finding]:
    found = []
    if machine.memory_available is not None:
        text = f"{machine.memory_available / _GIB:.1f} GiB available"
        if machine.memory_limit is not None:
            text += f", limited to {machine.memory_limit / _GIB:.1f} GiB by the cgroup"
        found.append(_find(Severity.INFO, "memory-available", "memory", text))
    if machine.shm_free is None:
        found.append(
            _find(
                Severity.WARNING,
                "memory-no-shm",
                "/dev/shm",  # noqa: S108
                "is not there: programs that share memory do not work, and images wait on disk",
                "mount -t tmpfs tmpfs /dev/shm",
                path="/dev/shm",  # noqa: S108
            )
        )
    elif machine.shm_free < _SHM_FEW_BYTES:
        found.append(
            _find(
                Severity.WARNING,
                "memory-shm-small",
                "/dev/shm",  # noqa: S108
                f"has room for {machine.shm_free >> 20} MiB: images wait on disk, which makes stops longer",
                "start the container with a larger one: --shm-size=8g",
                path="/dev/shm",  # noqa: S108
            )
        )
    else:
        found.append(_find(Severity.INFO, "memory-shm", "/dev/shm", f"has room for {machine.shm_free / _GIB:.1f} GiB"))  # noqa: S108
    return found


def _state(machine: Machine) -> list[Finding]:
    if not machine.state_writable:
        return [
            _find(
                Severity.PROBLEM,
                "host-state-unwritable",
                "state folder",
                f"{machine.state} cannot be written",
                "choose another: PERDURE_STATE=/path, or the setting state",
                path=machine.state,
            )
        ]
    if machine.state_free is not None and machine.state_free < _STATE_FEW_BYTES:
        return [
            _find(
                Severity.WARNING,
                "host-state-small",
                "state folder",
                f"{machine.state} has room for {machine.state_free >> 20} MiB",
                "free some space, or choose another: PERDURE_STATE=/path",
                path=machine.state,
            )
        ]
    return [_find(Severity.INFO, "host-state", "state folder", f"{machine.state} can be written", path=machine.state)]


def _locks(machine: Machine) -> list[Finding]:
    if not machine.locks:
        return []
    shown = ", ".join(machine.locks[:3]) + (" …" if len(machine.locks) > 3 else "")
    return [
        _find(
            Severity.WARNING,
            "network-held",
            "nftables",
            f"{len(machine.locks)} tables hold connections still ({shown}): a dump in progress has one, one that was killed left it behind",
            f"when no checkpoint is in progress: nft delete table inet {machine.locks[0]}",
        )
    ]
