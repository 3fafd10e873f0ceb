"""What CRIU is known to say when it fails: each message with its stable code, what it means, and what helps. Read by `log`.

Every pattern is held by a test on lines that a real CRIU (3.17.1, 4.1.1 or 4.2.1) wrote when the failure was provoked.
"""

from __future__ import annotations

import msgspec


class Pattern(msgspec.Struct, frozen=True):
    """One known message.

    `regex` is searched in an error line; its groups `pid fd path` become fields, and all groups can be used in `message` and `remedy`.
    `also` must be found behind that line, and gives groups that the line itself lacks. `actions` limits it to these; empty: any.
    """

    regex: str
    code: str
    message: str
    remedy: str
    flag: str | None = None
    also: str = ""
    actions: tuple[str, ...] = ()


_BRING = "bring one that works: perdure doctor --bring-criu"
_CLOSE = "close it before the checkpoint, or start the program so that it does not use it"

_CRIU_ITSELF = (
    Pattern(
        r"vdso: Unexpected rt vDSO area bounds",
        "criu-vdso-bounds",
        "this CRIU is too old for this kernel: it does not know where the kernel keeps its time functions (vdso)",
        _BRING,
    ),
    Pattern(
        r"Can't get 1:(?:16|34) opt: Operation not supported",
        "criu-socket-passcred",
        "this CRIU cannot save any INET socket on this kernel: from Linux 6.16 on SO_PASSCRED belongs to Unix sockets alone",
        _BRING,
    ),
    Pattern(
        r"Can't get rlimit (?P<resource>\d+): Operation not permitted",
        "host-prlimit",
        "root lacks CAP_SYS_RESOURCE here, so that CRIU is not told the limits of another user's process",
        "install a C compiler (apt-get install gcc libc6-dev) and run perdure doctor, which then makes the library that helps; or give the"
        " container CAP_SYS_RESOURCE",
    ),
    Pattern(
        r"error while loading shared libraries: (?P<name>[^:\s]+)|symbol lookup error|version `(?P<symbol>\S+)' not found",
        "criu-library",
        "CRIU does not start: its libraries do not fit or are missing {name}",
        _BRING,
    ),
    Pattern(
        r"unrecognized option '(?P<name>[^']*)'", "criu-option", "this CRIU does not know the option {name}", "use CRIU 4.2.1 or newer"
    ),
    Pattern(
        r"Script (?P<path>\S+) exited with",
        "criu-script",
        "the action script {path} failed",
        "see the log for what it said",
    ),
    Pattern(
        r"Timeout reached. Try to interrupt",
        "process-uninterruptible",
        "process {pid} (state {state}) did not stop within the time allowed, so nothing was saved",
        "a process in state D waits for a disk, a network file system or a frozen cgroup: mend that, or allow more time",
        also=r"Unseizable non-zombie (?P<pid>\d+) found, state (?P<state>\w)",
    ),
    Pattern(
        r"Timeout reached. Try to interrupt",
        "criu-timeout",
        "not all processes could be stopped within the time allowed, so nothing was saved",
        "try again, or allow more time",
    ),
    Pattern(r"No space left on device|Disk quota exceeded", "host-disk-full", "there is no room for the images", "free some space"),
    Pattern(r"Input/output error", "host-io", "reading or writing failed in the disk or its file system", "see dmesg"),
    Pattern(
        r"Cannot allocate memory|Out of memory", "memory-short", "there is not enough memory", "free some, or raise the cgroup's limit"
    ),
)

_PROCESS = (
    Pattern(
        # The kernel refuses to hand an io_uring descriptor over; older ones let CRIU see what it is.
        r"send_fds failed \(-22\)|(?:dump file (?P<fd>\d+) of that type .*)?io_uring",
        "file-io-uring",
        "the process has an io_uring descriptor, which no CRIU can save",
        "start it with perdure without-io-uring -- COMMAND",
    ),
    Pattern(
        r"Can't dump file (?P<fd>\d+) of that type \[\w+\] \(chr 231:(?P<minor>\d+)\)",
        "file-rdma-device",
        "descriptor {fd} is an RDMA device (chr 231:{minor}), whose state lives in the network card",
        "start the program over TCP, such as with UCX_TLS=tcp or NCCL_IB_DISABLE=1",
    ),
    Pattern(
        r"Can't dump file (?P<fd>\d+) of that type \[\w+\] \((?P<device>(?:chr|blk) \d+:\d+)\)",
        "file-device",
        "descriptor {fd} is a device ({device}) that CRIU cannot save",
        _CLOSE,
    ),
    Pattern(
        r"Can't dump file (?P<fd>\d+) of that type \[\w+\] \(anon (?:anon_inode:)?(?P<name>[^)]+)\)",
        "file-kernel-object",
        "descriptor {fd} is {name}, which CRIU cannot save",
        _CLOSE,
    ),
    Pattern(
        r"Can't dump file (?P<fd>\d+) of that type", "process-descriptor", "descriptor {fd} is of a kind that CRIU cannot save", _CLOSE
    ),
    Pattern(
        r"Unknown socket collected \(family (?P<family>\d+)\)|Unsupported (?:proto|socket|family)",
        "network-family",
        "the process has a socket of a family that CRIU cannot save (address family {family})",
        _CLOSE,
    ),
    Pattern(
        r"tun: Net namespace is required",
        "file-tun-device",
        "the process has a tun device of the host's network open",
        "run it in a network namespace of its own",
    ),
    Pattern(
        r"Can't dump half of stream unix connection|External socket is used",
        "network-unix-outside",
        "the process has a Unix connection to a process outside the workload",
        "end it before the checkpoint, or start both ends under perdure run",
    ),
    Pattern(
        r"Task (?P<pid>\d+) with SysVIPC shmem map",
        "process-system-v",
        "process {pid} uses System V shared memory that belongs to the whole machine",
        "start it under perdure run, which gives it an IPC namespace of its own",
    ),
    Pattern(
        r"Unseizable non-zombie (?P<pid>\d+) found, state D",
        "process-uninterruptible",
        "process {pid} waits in the kernel and cannot be stopped",
        "mend the disk or network file system it waits for, then try again",
    ),
    Pattern(
        r"Unseizable non-zombie (?P<pid>\d+) found",
        "process-traced",
        "process {pid} is being traced by a debugger, strace or another CRIU",
        "end the tracer (TracerPid in /proc/{pid}/status), then try again",
    ),
    *(
        Pattern(
            regex,
            "process-stopped-meanwhile",
            "process {pid} was told to stop (SIGSTOP or the like) in the middle of the dump",
            "try again; whoever suspends it, a scheduler or a person, does so before a checkpoint or after it",
        )
        # Signals 19 to 22 are those that stop a process, 18 lets it go on; others are held back meanwhile.
        for regex in (
            r"(?P<pid>\d+) was stopped by (?:19|20|21|22) unexpectedly",
            r"Unexpected (?P<pid>\d+) task interruption",
            r"si_code=[56] si_pid=(?P<pid>\d+)",  # told as a child that stopped, or goes on
            r"si_code=4 si_pid=(?P<pid>\d+) si_status=(?:18|19|20|21|22)\b",
            r"Task (?P<pid>\d+) is in unexpected state: [0-9a-f]*7f\b",
        )
    ),
    Pattern(
        r"Can't create a directory \(-17\)",
        "process-directory-taken",
        "the first process's working directory holds the folder proc.crtools, which CRIU has to make",
        "try again; when no dump of anything there is going on, remove the folder",
    ),
    Pattern(
        r"session leader of (?P<pid>\d+)\(\d+\) is outside of its pid namespace",
        "process-session-outside",
        "the workload's session began outside its PID namespace",
        "start it under perdure run",
    ),
    Pattern(
        r"Can't dump a pid namespace without the process init",
        "process-no-init",
        "the process is not the first one of its PID namespace",
        "checkpoint the namespace's init, or from inside the namespace",
    ),
    Pattern(
        r"root process (?P<pid>\d+) is not a session leader",
        "process-session-outside",
        "process {pid} is not the leader of its session",
        "start it under perdure run, or with setsid",
        flag="--shell-job",
    ),
    Pattern(
        r"tty: Found slave peer|tty: Found dangling tty|Task's terminal is in|tty: Found sid \d+ pgid \d+ \(.*\) on peer",
        "file-tty-outside",
        "the process is connected to a terminal outside the workload",
        "start it under perdure run, which owns its terminal",
        flag="--shell-job",
    ),
    Pattern(
        r"Unable to detach from (?P<pid>\d+): No such process",
        "process-gone",
        "process {pid} does not exist (any more)",
        "see perdure ps",
        actions=("dump", "pre-dump"),
    ),
)

_FILES = (
    Pattern(
        r"Can't dump ghost file (?P<path>.+) of (?P<size>\d+) size, increase limit",
        "file-deleted-large",
        "the deleted file {path} that is still open has {size} bytes, more than the limit",
        "raise the limit",
        flag="--ghost-limit",
    ),
    Pattern(
        r"Can't (?:create )?link remap (?:for|to) (?P<path>.+?)(?:\. Use link-remap option)",
        "file-deleted-linked",
        "{path} was deleted and lives on under another name",
        "allow it to be linked back",
        flag="--link-remap",
    ),
    Pattern(
        r"Can't link remap to (?P<path>.+?): File exists",
        "file-link-remap-stale",
        "another checkpoint has its link for {path}, or an earlier one left it behind",
        "try again; when nothing else is saved or brought back, remove link_remap.* beside it",
    ),
    Pattern(
        r"Can't lookup mount=\d+ for fd=(?P<fd>-?\d+) path=(?P<path>.+)",
        "file-mount-unknown",
        "descriptor {fd} ({path}) was opened on a mount that the workload does not have",
        "open it inside the workload, or start the workload without a mount namespace of its own",
    ),
    Pattern(
        r"Some file locks are hold",
        "file-locks",
        "the process holds file locks",
        "allow them to be saved",
        flag="--file-locks",
    ),
)

_NETWORK = (
    Pattern(
        r"Connected TCP socket, consider using --tcp-established",
        "network-tcp-established",
        "the process has an established TCP connection",
        "say what becomes of it: close it on restore, or keep it",
        flag="--tcp-established",
    ),
    Pattern(
        r"Iptables configuration failed|Locking network failed|Unable to write iptables config",
        "network-no-lock",
        "connections cannot be held still: CRIU found neither nftables in the kernel nor the programs of iptables",
        "use a kernel with nf_tables, or: apt-get install iptables",
    ),
    Pattern(
        r"Can't bind inet socket \(id \d+\): Address already in use",
        "restore-port-taken",
        "a port that the workload listens on is taken",
        "see who holds it: ss -antup",
    ),
    Pattern(
        r"Can't bind inet socket \(id \d+\): Cannot assign requested address",
        "restore-address-missing",
        "an address that the workload listens on does not exist on this machine",
        "restore it where it was, or let the program listen on all addresses",
    ),
    Pattern(
        r"unix: Can't bind id \w+ ino \d+ addr (?P<path>\S+): Address already in use",
        "restore-socket-taken",
        "there is something else where the workload's Unix socket {path} was",
        "move {path} away",
    ),
)

_RESTORE = (
    Pattern(
        r"Can't fork for (?P<pid>\d+): File exists|[Pp]id \d+ do(?:es)? not match expected",
        "restore-pid-taken",
        "the PID {pid} is taken: the old workload or its zombie is still there, or another process has it",
        "end or reap it; a workload started under perdure run has PIDs of its own",
    ),
    Pattern(
        r"File (?P<path>.+) has bad size (?P<size>\d+) \(expect (?P<expected>\d+)\)",
        "restore-file-changed",
        "{path} has {size} bytes and had {expected} at the checkpoint",
        "bring the file of the checkpoint back",
    ),
    Pattern(
        r"File (?P<path>.+) has bad build-ID",
        "restore-file-changed",
        "{path} is another build than at the checkpoint",
        "install the version of the checkpoint again",
    ),
    Pattern(
        r"File (?P<path>.+) has bad mode 0?(?P<mode>\d+) \(expect 0?(?P<expected>\d+)\)",
        "restore-file-changed",
        "{path} has mode {mode} and had {expected} at the checkpoint",
        "give it its old type and permissions back",
    ),
    Pattern(
        r"Can't open file (?P<path>.+?)(?: on restore)?: No such file or directory",
        "restore-file-missing",
        "{path} is not there",
        "bring it back: the workload has it open, mapped, or as its working directory",
    ),
    Pattern(
        r"Can't open file (?P<path>.+?)(?: on restore)?: (?P<reason>.+)",
        "restore-file-unusable",
        "{path} cannot be opened: {reason}",
        "bring it back as it was at the checkpoint",
    ),
    Pattern(
        r"(?:Head magic doesn't match for|Failed unpacking object \S+ from|Read \d+ bytes while \d+ expected from|Unexpected EOF on)"
        r" \(?(?P<image>[^\s:)]+)",
        "restore-image-damaged",
        "the image {image} is damaged or missing",
        "restore an older checkpoint; perdure store verify tells which are whole",
    ),
    Pattern(
        r"Can't open dir (?P<path>\S+): (?P<reason>.+)",
        "restore-image-missing",
        "the images folder {path} cannot be opened: {reason}",
        "restore from the store",
    ),
    Pattern(
        r"(?P<pid>\d+) (?:stopped|killed) by signal (?P<signal>\d+)",
        "restore-crashed",
        "a process died of signal {signal} while it was put together: an image is missing or damaged, or this CPU lacks an instruction",
        "restore an older checkpoint, or on a machine with the same CPU; perdure store verify tells which are whole",
        actions=("restore",),
    ),
    Pattern(
        r"cpu: (?P<reason>.*(?:not supported|unsupported|mismatch|lacks|missing).*)",
        "restore-cpu",
        "this CPU lacks something that the workload's had: {reason}",
        "restore it on a machine with the same or a newer CPU",
    ),
)

KNOWN: tuple[Pattern, ...] = (*_CRIU_ITSELF, *_PROCESS, *_FILES, *_NETWORK, *_RESTORE)
"""All of them. Within one line the first that matches counts, so that special cases stand before general ones."""
