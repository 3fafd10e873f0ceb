"""Codes of findings about: what a restore needs of the machine."""

from __future__ import annotations

from perdure.checkpoint.preflight.codes.code import Code, Group
from perdure.model.finding import Severity

_P = Severity.PROBLEM
_W = Severity.WARNING
_I = Severity.INFO

GROUP = Group(
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
            "restore on a machine that has them, or, where you know that they are not used, with perdure restore --cpu-check off",
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
        Code("restore-folder-missing", _P, "a folder that the workload works or writes in is not here", "make it, or mount what holds it"),
        Code(
            "restore-mount",
            _W,
            "a file system that files of the workload lie on is not mounted here, or is another kind",
            "mount it at the same place",
        ),
        Code(
            "restore-output-missing",
            _P,
            "a file that the workload writes is gone and is not in the checkpoint: it cannot be opened again",
            "put the file back, or include it next time: perdure run --outputs PATH",
        ),
        Code(
            "restore-output-unreachable",
            _P,
            "a file that the workload writes cannot be looked at here, so that nobody knows whether it is still there",
            "mend the file system, or its permissions",
        ),
        Code(
            "restore-output-changed",
            _W,
            "a file that the workload writes is shorter than it was, or another file: what it held before cannot be brought back",
            "put the file back as it was",
        ),
        Code(
            "restore-output-in-use",
            _P,
            "another process has a file open for writing that would have to be changed: what it writes would be lost, or damage the file",
            "end that process, or give each workload files of its own",
        ),
        Code(
            "restore-output-shared",
            _W,
            "another process appends to a file that is cut: its lines after the checkpoint are cut out too, and kept beside the file",
            "give each workload files of its own",
        ),
        Code(
            "restore-path-elsewhere",
            _P,
            "what an ordinary user's workload had open is another thing now: its path leads elsewhere, or the user may not open it any"
            " more",
            "put the file, its folder and their permissions back as they were",
        ),
        Code(
            "restore-terminal-taken",
            _P,
            "the number of a pseudo terminal within the workload (tmux, expect) is taken here by another terminal",
            "close the terminal that has it, or restore where the number is free",
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
        Code("restore-connection", _W, "a connection of the checkpoint is closed by restoring", ""),
        Code(
            "restore-connection-kept",
            _W,
            "a connection comes back as it was at the checkpoint (--tcp keep): where the peer closed it, sent or received anything since, "
            "both sides wait for each other",
            "where the peer went on since, restore with a checkpoint that closes it: perdure run --tcp close",
        ),
    ),
)
