"""Codes of findings about: memory, disks and rights that a checkpoint needs."""

from __future__ import annotations

from perdure.checkpoint.preflight.codes.code import Code, Group
from perdure.model.finding import Severity

_P = Severity.PROBLEM
_W = Severity.WARNING

GROUP = Group(
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
            "memory-policy",
            _W,
            "a process has set a policy for memory of NUMA nodes (numactl, set_mempolicy), which is lost by a restore",
            "start all of it so: numactl … perdure run …, also when it goes on",
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
)
