"""Codes of findings about: descriptors and files of a running workload."""

from __future__ import annotations

from perdure.checkpoint.preflight.codes.code import Code, Group
from perdure.model.finding import Severity

_P = Severity.PROBLEM
_W = Severity.WARNING

GROUP = Group(
    "Descriptors and files of a running workload",
    (
        Code(
            "file-io-uring",
            _P,
            "an io_uring is open or mapped: its queues live in the kernel and CRIU cannot save them",
            "start the program with perdure without-io-uring -- COMMAND, or use its own switch: io_method=worker of PostgreSQL 18",
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
            "the device of a GPU that is not NVIDIA's is open or mapped: there is no way to save its state",
            "let the process close it, or start workers so that they do not inherit it (spawn instead of fork)",
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
            "file-mount-own",
            _P,
            "a file or the working directory lies on a mount that only the workload has: it made it itself, or it was taken away outside",
            "mount it before perdure run, outside the workload",
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
            "a file of /proc/PID is open that cannot be opened again: of a thread, of a process that has ended or is outside,"
            " or of one whose number will be another one; of an ordinary user's workload also one of its init, or one open for writing",
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
            "file-linked-changeable",
            _P,
            "an open file of an ordinary user's workload has lost its name and lives on under another one, in a folder that the user can"
            " change: giving it back its name for an instant is root's work, and could be led elsewhere meanwhile",
            "remove the other name as well, or keep the first",
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
        Code(
            "file-reopened",
            _W,
            "a file is opened, added to and closed again each time, so that no checkpoint knows where it ended: after a restore it holds"
            " twice what was added since",
            "include it, or its folder, in the checkpoint: perdure run --outputs PATH",
        ),
    ),
)
