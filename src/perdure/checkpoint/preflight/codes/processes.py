"""Codes of findings about: processes and threads of a running workload."""

from __future__ import annotations

from perdure.checkpoint.preflight.codes.code import Code, Group
from perdure.model.finding import Severity

_P = Severity.PROBLEM
_W = Severity.WARNING
_I = Severity.INFO

GROUP = Group(
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
            "process-scheduler-client",
            _P,
            "a process is Slurm's srun or its like and waits for a step outside the workload: brought back, it would wait for ever",
            "let the step be saved by itself: perdure run behind srun, or a job that is opted in",
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
            "process-other-user",
            _P,
            "a process of an ordinary user's workload has other rights than that user, as set-uid programs have: bringing it back would"
            " give them to whoever can ask for it",
            "let sudo, su, ping and their like end first, or start them elsewhere",
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
)
