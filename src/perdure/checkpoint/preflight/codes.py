"""Every code that a preflight finding can have: the one list, which the reference page is generated from.

A code is stable: programs decide on it. Its severity and its remedy stand here, so that they are the same wherever it is found.
"""

from __future__ import annotations

import msgspec

from perdure.base import text
from perdure.model.finding import Finding, Severity

_P, _W, _I = Severity.PROBLEM, Severity.WARNING, Severity.INFO


class Code(msgspec.Struct, frozen=True):
    """One kind of finding. `remedy` may be empty where nothing can be done but wait or do without."""

    name: str
    severity: Severity
    meaning: str
    """What it says of a workload or a machine, and why that matters, as a sentence without a full stop."""
    remedy: str


class Group(msgspec.Struct, frozen=True):
    """Codes that are looked for together, with a heading for the reference page."""

    title: str
    codes: tuple[Code, ...]


GROUPS: tuple[Group, ...] = (
    Group(
        "Descriptors and files of a running workload",
        (
            Code(
                "file-io-uring",
                _P,
                "an io_uring is open or mapped: its queues live in the kernel and CRIU cannot save them",
                "start the program without io_uring: UV_USE_IO_URING=0 for Node.js and other libuv programs,"
                " io_method=worker for PostgreSQL 18, liburing's own switch elsewhere",
            ),
            Code(
                "file-kernel-object",
                _P,
                "a descriptor leads to a kernel object that CRIU cannot save, such as a userfaultfd, a BPF map or a perf event",
                "end what opened it (a profiler, a tracer, a virtual machine) for the time of the checkpoint, or start without it",
            ),
            Code(
                "file-timer-clock",
                _P,
                "a timerfd counts on a clock that CRIU does not know, such as one that wakes the machine",
                "let the program use CLOCK_MONOTONIC or CLOCK_REALTIME",
            ),
            Code(
                "file-device",
                _P,
                "a device is open, or mapped, that has state of its own, which CRIU cannot save",
                "let the program close the device before the checkpoint, or start it without",
            ),
            Code(
                "file-gpu-device",
                _P,
                "a GPU's device is open or mapped: its state is not saved by this engine yet",
                "let the process close its CUDA context, or start workers so that they do not inherit it (spawn instead of fork)",
            ),
            Code(
                "file-rdma-device",
                _P,
                "an RDMA device is open or mapped: the adapter's queues cannot be saved",
                "use TCP or shared memory: NCCL_IB_DISABLE=1; Open MPI: --mca pml ob1 --mca btl self,vader,tcp; UCX_TLS=tcp,sm,self",
            ),
            Code(
                "file-tun-device",
                _P,
                "a TUN or TAP interface is open outside a network namespace of the workload's own",
                "let something outside the workload hold the interface",
            ),
            Code(
                "file-mount-unknown",
                _P,
                "a file lies on no mount that the workload sees: one that was detached, POSIX message queues, secret memory, huge pages",
                "close it, or mount its file system where the workload can see it",
            ),
            Code(
                "file-overmounted",
                _P,
                "a file lies on a mount that another mount hides, so that no path leads to it",
                "unmount what hides it, or let the program open the file again",
            ),
            Code(
                "file-of-process",
                _P,
                "a file of /proc/PID is open: the number in its path is another one after a restore, so that it cannot be opened again",
                "let the program close it after reading",
            ),
            Code(
                "file-namespace",
                _P,
                "a namespace is held open as a file: after a restore it is another one",
                "let the program close it",
            ),
            Code(
                "file-watch",
                _P,
                "an inotify or fanotify watch is on a file system that cannot find a file by its handle, such as overlay, /proc or /sys",
                "start the program without watching (polling, or no automatic reload)",
            ),
            Code(
                "file-packet-pipe",
                _P,
                "a pipe is in packet mode (O_DIRECT), which CRIU does not know",
                "let the program open the pipe without O_DIRECT",
            ),
            Code(
                "file-pipe-outside",
                _P,
                "a standard stream is a pipe to a process outside: restored without it, the first write ends the program",
                "start the workload with perdure run, which holds these pipes itself",
            ),
            Code(
                "file-pipe-leaked",
                _W,
                "a pipe leads to a process outside: after a restore reading it meets the end, and writing it ends the program",
                "start the workload without it: close inherited descriptors, or run the other process inside the workload",
            ),
            Code(
                "file-tty-outside",
                _P,
                "a terminal is open whose other side is outside the workload",
                "start the workload with perdure run, which gives it a terminal of its own, or with its streams in files",
            ),
            Code(
                "file-deleted-large",
                _P,
                "a deleted file that is still open is larger than the images may take",
                "raise the limit, or let the program put the file where it keeps its name",
            ),
            Code(
                "file-deleted-linked",
                _W,
                "a file on a disk lost the name it was opened by and lives on under another: it is found again only while that name stays",
                "leave the file's other name in place until the workload has ended",
            ),
            Code(
                "file-remote",
                _W,
                "a file lies on a network or user-space file system: it must be mounted at the same place where the workload is restored,"
                " and be as it was",
                "mount it on every machine where the workload may be restored",
            ),
            Code(
                "file-overwrite-unsaved",
                _W,
                "a large file that can be written in place is only recorded, not saved: what is overwritten after a checkpoint cannot be"
                " brought back",
                "include it in the checkpoint: perdure run --outputs PATH",
            ),
        ),
    ),
    Group(
        "Network of a running workload",
        (
            Code(
                "network-unix-outside",
                _P,
                "a Unix stream socket is connected to a process outside the workload: half a connection cannot be restored",
                "start that peer inside the workload, or let the program connect anew after a restore and close the socket before",
            ),
            Code(
                "network-unix-datagram",
                _I,
                "a Unix datagram socket sends to a process outside: it is connected again to the same path after a restore",
                "",
            ),
            Code(
                "network-family",
                _P,
                "a socket of a family that CRIU cannot save, such as vsock, AF_XDP or AF_ALG",
                "start the program without it",
            ),
            Code(
                "network-protocol",
                _P,
                "a socket of a protocol that CRIU cannot save, such as MPTCP or SCTP",
                "let the program use TCP or UDP; Go programs: GODEBUG=multipathtcp=0",
            ),
            Code(
                "network-netlink-pending",
                _P,
                "a netlink socket holds messages that the program has not read",
                "try again: most programs read them at once",
            ),
            Code(
                "network-datagram-corked",
                _P,
                "a UDP socket holds back data until it is uncorked",
                "try again: the program sends it soon",
            ),
            Code(
                "network-tcp-closed",
                _I,
                "an established connection to outside: it is closed when the workload is restored",
                "keep it where the same addresses come back: perdure run --tcp keep",
            ),
            Code(
                "network-tcp-keep",
                _W,
                "an established connection to outside is to be kept: that works only while the peer waits, and with the same addresses",
                "",
            ),
            Code(
                "network-tcp-waiting",
                _I,
                "a connection waits to be accepted: it is dropped, and the peer sees it closed when the workload is restored",
                "",
            ),
        ),
    ),
    Group(
        "Processes of a running workload",
        (
            Code(
                "process-traced",
                _P,
                "a process is traced, by a debugger or strace: CRIU traces it too, and only one can",
                "detach the tracer",
            ),
            Code(
                "process-uninterruptible",
                _P,
                "a process waits in the kernel and does not stop: for a disk or network file system that does not answer, or in vfork",
                "try again; if it stays, see what it waits for: cat /proc/PID/stack",
            ),
            Code(
                "process-frozen",
                _P,
                "a process is in a frozen cgroup, so that it cannot be stopped",
                "thaw the cgroup",
            ),
            Code(
                "process-leader-exited",
                _P,
                "the first thread of a process has ended and others go on",
                "let the program end its first thread last (pthread_exit in main is what does this)",
            ),
            Code(
                "process-zombie",
                _I,
                "a process has ended and its parent has not asked how: it is restored as that",
                "",
            ),
            Code(
                "process-stopped",
                _I,
                "a process is stopped: it is restored stopped",
                "",
            ),
            Code(
                "process-namespace",
                _P,
                "a process lives in a namespace of its own inside the workload, as containers and sandboxes do",
                "checkpoint the container as a workload by itself, or start the program without its sandbox",
            ),
            Code(
                "process-root-namespace",
                _P,
                "the whole tree lives in a mount, user or PID namespace that is not this one's and was not made by perdure run",
                "run perdure inside that container, or start the workload with perdure run",
            ),
            Code(
                "process-root-network",
                _W,
                "the whole tree lives in a network namespace of its own: it comes back with its loopback, other interfaces may not",
                "share the host's network, or see to the interfaces from inside",
            ),
            Code(
                "process-session-outside",
                _P,
                "the leader of a process's session or process group is outside the tree: CRIU cannot make that session again",
                "start the workload with perdure run, or in a session of its own: setsid CMD",
            ),
            Code(
                "process-terminal",
                _W,
                "the terminal that controls the session is outside, and nobody in the workload has it open: after a restore there is none",
                "start the workload with perdure run, which gives it a terminal of its own, or in a session without one: setsid CMD",
            ),
            Code(
                "process-thread-files",
                _P,
                "a thread has a table of descriptors of its own: after a restore it shares the process's, and nobody says so",
                "start the program without it",
            ),
            Code(
                "process-thread-directory",
                _W,
                "a thread has a working directory of its own: after a restore it has the process's",
                "",
            ),
            Code(
                "process-thread-namespace",
                _P,
                "a thread lives in another namespace than its process: after a restore it lives in the process's, and nobody says so",
                "let the program do such work in a process of its own",
            ),
            Code(
                "process-deadline",
                _P,
                "a thread is scheduled by deadline (SCHED_DEADLINE), which CRIU saves and cannot restore",
                "use SCHED_FIFO or SCHED_OTHER",
            ),
            Code(
                "process-working-directory",
                _P,
                "the first process's working directory is deleted or cannot be written: CRIU needs it for an instant",
                "start the workload from a folder that stays",
            ),
            Code(
                "process-directory-taken",
                _P,
                "the first process's working directory holds the folder proc.crtools, which CRIU has to make: another dump is going on"
                " there, or one was killed",
                "try again; when no dump is going on, remove the folder",
            ),
            Code(
                "process-root-unprivileged",
                _P,
                "the first process of the PID namespace lacks CAP_SYS_ADMIN, which CRIU borrows from it for an instant",
                "start the workload under an init of root's, as perdure run does",
            ),
            Code(
                "process-shared-memory",
                _P,
                "two processes, not threads, live in one memory: a vfork whose child has not started its program, or clone with CLONE_VM",
                "try again; if it stays, the program cannot be saved",
            ),
            Code(
                "process-system-v",
                _P,
                "System V shared memory is attached and the workload has no IPC namespace of its own",
                "start the workload with perdure run, which gives it one",
            ),
            Code(
                "process-no-namespace",
                _I,
                "the tree has no PID namespace of its own: it is restored into a new one, and saved again from inside it",
                "",
            ),
        ),
    ),
    Group(
        "Memory, disks and rights for a checkpoint",
        (
            Code(
                "memory-huge-pages",
                _P,
                "memory of reserved huge pages (hugetlbfs) is mapped",
                "use transparent huge pages instead: no MAP_HUGETLB, JVM: -XX:+UseTransparentHugePages for -XX:+UseLargePages",
            ),
            Code(
                "memory-kernel-object",
                _P,
                "memory of a kernel object that CRIU cannot save is mapped, such as a perf event's",
                "end what mapped it",
            ),
            Code(
                "memory-images",
                _P,
                "the images fit neither into free memory nor onto a disk where they may wait",
                "free memory or disk, or name a folder with room: --staging, setting staging",
            ),
            Code(
                "memory-not-looked",
                _W,
                "a process could not be looked into, so that what it has open is not known",
                "run the check as root",
            ),
            Code("host-criu", _P, "no CRIU works on this machine", "bring one: perdure doctor --bring-criu"),
            Code(
                "host-criu-untested",
                _W,
                "the version of CRIU lies outside the range that this engine was tried with",
                "bring the tested one: perdure doctor --bring-criu",
            ),
            Code(
                "host-privileges",
                _P,
                "root, or a capability that CRIU needs, is missing",
                "run it as root on the host, or start the container with the capabilities that are named",
            ),
            Code(
                "host-prlimit",
                _P,
                "a process belongs to another user, this root lacks CAP_SYS_RESOURCE, and the small library that stands in for it"
                " could not be made",
                "install a C compiler, or start the container with --cap-add=SYS_RESOURCE",
            ),
            Code("store-away", _P, "the store does not answer or cannot be used", "see perdure store ls"),
            Code(
                "store-room",
                _W,
                "the disk of the store has less room than a whole checkpoint may need",
                "free some space, keep fewer checkpoints (--keep), or name another store",
            ),
        ),
    ),
    Group(
        "Restoring here",
        (
            Code(
                "restore-architecture",
                _P,
                "the checkpoint comes from another processor architecture",
                "restore on a machine of that architecture",
            ),
            Code("restore-page-size", _P, "the kernel's memory pages have another size", "restore under a kernel with that page size"),
            Code(
                "restore-kernel-older",
                _W,
                "the kernel is older than the one the checkpoint was made on, and may lack what the workload has open",
                "restore under that kernel or a newer one",
            ),
            Code(
                "restore-cpu",
                _P,
                "the processor lacks instructions that programs may have chosen when they started: they would end with SIGILL",
                "restore on a machine that has them, or, where you know that they are not used, with --cpu-check off",
            ),
            Code(
                "restore-cpu-other",
                _I,
                "the processor lacks features that no program can depend on: speed alone, or the kernel's own use",
                "",
            ),
            Code(
                "restore-criu-older",
                _P,
                "CRIU is older than the one that made the checkpoint, and may not know its images",
                "bring a newer one: perdure doctor --bring-criu",
            ),
            Code(
                "restore-file-missing",
                _P,
                "a file that the workload executes, maps or reads is not here",
                "install the same package, or mount the same file system, at the same path",
            ),
            Code(
                "restore-file-changed",
                _P,
                "a file that the workload executes, maps or reads is another one: its size or build id differs",
                "install the same version, or start the workload afresh: perdure run --fresh",
            ),
            Code(
                "restore-file-touched",
                _W,
                "a file that the workload maps or reads was changed since, its size is the same: what it holds is not compared",
                "make sure that it holds the same",
            ),
            Code(
                "restore-folder-missing", _P, "a folder that the workload works or writes in is not here", "make it, or mount what holds it"
            ),
            Code(
                "restore-mount",
                _W,
                "a file system that files of the workload lie on is not mounted here, or is another kind",
                "mount it at the same place",
            ),
            Code(
                "restore-output-missing",
                _W,
                "a file that the workload writes is gone and is not in the checkpoint: it comes back with what was written before missing",
                "put the file back, or include it next time: perdure run --outputs PATH",
            ),
            Code(
                "restore-output-changed",
                _W,
                "a file that the workload writes is shorter than it was, or another file: what it held before cannot be brought back",
                "put the file back as it was",
            ),
            Code("restore-port-taken", _P, "a port that the workload listens on is taken", "end who holds it, or wait until it is free"),
            Code("restore-pid", _P, "a PID of the workload is beyond what this kernel hands out", "raise it: sysctl kernel.pid_max"),
            Code("restore-memory", _P, "free memory is less than the workload needs", "free memory, or restore on another machine"),
            Code(
                "restore-disk",
                _P,
                "neither free memory nor a disk has room for the images while they are read",
                "free space, or name a folder: --staging",
            ),
            Code(
                "restore-user-missing",
                _W,
                "a user of the workload is not known here: its processes run under a number",
                "create the user with that number",
            ),
            Code("restore-host", _I, "the checkpoint was made on another machine", ""),
            Code("restore-connection", _I, "a connection of the checkpoint is closed by restoring", ""),
        ),
    ),
)

CODES: dict[str, Code] = {code.name: code for group in GROUPS for code in group.codes}


def finding(
    name: str,
    subject: str,
    message: str,
    *,
    pid: int | None = None,
    fd: int | None = None,
    path: str | None = None,
    flag: str | None = None,
    remedy: str | None = None,
) -> Finding:
    """Return a finding with code `name` about `subject`.

    `message` says what is there; `remedy` replaces the code's own where something better is known.
    """
    code = CODES[name]
    return Finding(
        code=name,
        severity=code.severity,
        subject=_as_text(subject),
        message=_as_text(message),
        remedy=_as_text(remedy or code.remedy) or None,
        pid=pid,
        fd=fd,
        path=None if path is None else text.storable(path),
        flag=None if flag is None else _as_text(flag),
    )


def _as_text(name: str) -> str:
    """Make bytes of a name that are no text visible as ``\\xff``: a finding has to be JSON."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
