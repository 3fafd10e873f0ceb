"""One process: its state, its identity, its place in the tree. Called by everything that looks at a workload."""

from __future__ import annotations

import os
import re
import signal as signals

import msgspec

from perdure import errors
from perdure.base.proc import reading

MAX_ENVIRONMENT_BYTES = 4 << 20
"""Longest environment or command line that is read. The kernel allows 6 MiB together; who needs more than this is not named by it."""


_PF_EXITING = 0x00000004
_PF_KTHREAD = 0x00200000
_EXIT_STATUS = 49


class Stat(msgspec.Struct, frozen=True):
    """What /proc/PID/stat says. PIDs are those of the reader's PID namespace."""

    pid: int
    command: str
    """Name of the thread group's leader, at most 15 bytes, any bytes."""
    state: str
    """One letter: R running, S sleeping, D disk, T stopped, t traced, Z zombie, X dead, I idle, P parked."""
    parent: int
    group: int
    session: int
    tty: int
    """Device number of the controlling terminal; 0: none."""
    flags: int
    """The kernel's own flags of it (PF_ in include/linux/sched.h)."""
    user_ticks: int
    system_ticks: int
    threads: int
    start_ticks: int
    """Start after boot in ticks of `os.sysconf("SC_CLK_TCK")`: with the PID it names a process for as long as the machine is up."""
    virtual_bytes: int
    exit_status: int = 0
    """Of a dead one, how it ended, as `os.wait` tells it; 0 for readers who may not trace it."""

    @property
    def ticks(self) -> int:
        """Processor time used so far, in clock ticks."""
        return self.user_ticks + self.system_ticks

    @property
    def is_dead(self) -> bool:
        """Tell whether it has ended and only waits to be reaped."""
        return self.state in "ZXx"

    @property
    def is_stopped(self) -> bool:
        """Tell whether a signal or a tracer has stopped it."""
        return self.state in "Tt"

    @property
    def is_exiting(self) -> bool:
        """Tell whether it has begun to exit: it runs no code of its own any more."""
        return bool(self.flags & _PF_EXITING)

    @property
    def is_of_the_kernel(self) -> bool:
        """Tell whether it is a thread of the kernel's own, which no user started."""
        return bool(self.flags & _PF_KTHREAD)


class Status(msgspec.Struct, frozen=True):
    """What /proc/PID/status says."""

    uids: tuple[int, int, int, int]
    """Real, effective, saved, file system."""
    gids: tuple[int, int, int, int]
    groups: tuple[int, ...]
    namespace_pids: tuple[int, ...]
    """Its PID in each PID namespace from the reader's inwards: the first is `pid`, the last the one it sees itself."""
    tracer: int
    """PID of the process that traces it; 0: none."""
    capabilities: int
    """Effective ones, as a mask."""
    seccomp: int
    """0 off, 1 strict, 2 filter."""
    caught: int
    """Mask of signals with a handler: bit n-1 is signal n."""
    ignored: int
    waiting: int
    """Mask of signals to the process that no thread has taken yet."""
    blocked: int
    voluntary_switches: int
    involuntary_switches: int
    thp_enabled: bool | None

    @property
    def inner_pid(self) -> int:
        """Its PID inside its own PID namespace."""
        return self.namespace_pids[-1]

    @property
    def is_killed(self) -> bool:
        """Tell whether SIGKILL has been sent to it: it may still look alive, and runs no code of its own any more."""
        return bool(self.waiting >> (signals.SIGKILL - 1) & 1)

    def catches(self, signal: int) -> bool:
        """Tell whether it has a handler for `signal`."""
        return bool(self.caught >> (signal - 1) & 1)


def parse_stat(text: bytes) -> Stat:
    """Read the text of /proc/PID/stat. The name stands in parentheses and may hold any byte, parentheses and blanks too."""
    head, _, tail = text.rpartition(b")")
    pid, _, command = head.partition(b" (")
    words = tail.split()
    numbers = [int(word) for word in words[1:22]]
    return Stat(
        pid=int(pid),
        command=os.fsdecode(command),
        state=words[0].decode("ascii"),
        parent=numbers[0],
        group=numbers[1],
        session=numbers[2],
        tty=numbers[3],
        flags=numbers[5],
        user_ticks=numbers[10],
        system_ticks=numbers[11],
        threads=numbers[16],
        start_ticks=numbers[18],
        virtual_bytes=numbers[19],
        exit_status=int(words[_EXIT_STATUS]) if len(words) > _EXIT_STATUS else 0,
    )


def parse_status(text: bytes) -> Status:
    """Read the text of /proc/PID/status. The kernel escapes line ends in the name, so a name cannot forge a line."""
    found = reading.fields(text)

    def four(name: str) -> tuple[int, int, int, int]:
        real, effective, saved, filesystem = (int(word) for word in found[name].split())
        return real, effective, saved, filesystem

    return Status(
        uids=four("Uid"),
        gids=four("Gid"),
        groups=tuple(int(word) for word in found.get("Groups", "").split()),
        namespace_pids=tuple(int(word) for word in found.get("NSpid", found["Pid"]).split()),
        tracer=int(found["TracerPid"]),
        capabilities=int(found["CapEff"], 16),
        seccomp=int(found.get("Seccomp", "0")),
        caught=int(found["SigCgt"], 16),
        ignored=int(found["SigIgn"], 16),
        waiting=int(found.get("ShdPnd", "0"), 16),
        blocked=int(found["SigBlk"], 16),
        voluntary_switches=int(found["voluntary_ctxt_switches"]),
        involuntary_switches=int(found["nonvoluntary_ctxt_switches"]),
        thp_enabled={"0": False, "1": True}.get(found.get("THP_enabled", "")),
    )


def parse_limits(text: bytes) -> dict[str, tuple[int | None, int | None]]:
    """Read the text of /proc/PID/limits: soft and hard by name, such as ``Max open files``; None is unlimited."""
    found: dict[str, tuple[int | None, int | None]] = {}
    for line in text.decode("ascii", "replace").splitlines()[1:]:
        row = re.match(r"(Max \S+(?: \S+)*?) {2,}(\d+|unlimited) +(\d+|unlimited)", line)
        if row:
            soft, hard = (None if word == "unlimited" else int(word) for word in (row[2], row[3]))
            found[row[1]] = (soft, hard)
    return found


def parse_environment(text: bytes) -> dict[str, str]:
    """Read the text of /proc/PID/environ: it is what the process was started with, or what it has since written there. First one wins."""
    found: dict[str, str] = {}
    for entry in text.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


def pids() -> tuple[int, ...]:
    """Return the PIDs of all processes that /proc shows, ascending."""
    return tuple(sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()))


def stat(pid: int) -> Stat:
    """Return the state of process `pid`. Raises `errors.ProcessGone`."""
    return parse_stat(reading.content(pid, "stat"))


def status(pid: int) -> Status:
    """Return identity, signals and switches of process `pid`. Raises `errors.ProcessGone`."""
    return parse_status(reading.content(pid, "status"))


def threads(pid: int) -> tuple[int, ...]:
    """Return the thread ids of process `pid`, ascending. Raises `errors.ProcessGone`."""
    with reading.of_process(pid):
        return tuple(sorted(int(name) for name in os.listdir(f"/proc/{pid}/task")))


def thread_stat(pid: int, thread: int) -> Stat:
    """Return the state of one thread of process `pid`. Raises `errors.ProcessGone`."""
    return parse_stat(reading.content(pid, f"task/{thread}/stat"))


def children(pid: int) -> tuple[int, ...]:
    """Return the children of process `pid`, ascending; complete only while the process stands still. Raises `errors.ProcessGone`."""
    found: set[int] = set()
    for thread in threads(pid):
        with reading.of_process(pid):
            try:
                listed = reading.content(pid, f"task/{thread}/children")
            except errors.ProcessGone:
                # A thread may end in between while its process goes on; its children are then another thread's.
                os.stat(f"/proc/{pid}")
                continue
        found.update(int(word) for word in listed.split())
    return tuple(sorted(found))


def descendants(pid: int) -> tuple[int, ...]:
    """Return the PIDs of everything below process `pid`, parents before children. Raises `errors.ProcessGone` when `pid` is gone."""
    found: list[int] = []
    seen = {pid}
    waiting = list(children(pid))
    while waiting:
        child = waiting.pop(0)
        if child in seen:
            continue
        seen.add(child)
        found.append(child)
        try:
            waiting.extend(children(child))
        except errors.ProcessGone:
            continue
    return tuple(found)


def namespaces(pid: int) -> dict[str, int]:
    """Return the inode numbers of the namespaces of process `pid` by kind: ``pid``, ``mnt``, ``net``, ``ipc``, ``pid_for_children``…

    A zombie has left most of them: those are missing then. Raises `errors.ProcessGone` and `errors.InputDenied`.
    """
    found: dict[str, int] = {}
    with reading.of_process(pid):
        for kind in os.listdir(f"/proc/{pid}/ns"):
            try:
                target = os.readlink(f"/proc/{pid}/ns/{kind}")
            except FileNotFoundError:
                continue
            found[kind] = int(target.partition(":[")[2].rstrip("]"))
        os.stat(f"/proc/{pid}/stat")
    return found


def command_line(pid: int) -> tuple[str, ...]:
    """Return the arguments of process `pid` as it shows them; empty for a zombie. Raises `errors.ProcessGone`."""
    text = reading.content(pid, "cmdline", limit_bytes=MAX_ENVIRONMENT_BYTES)
    return tuple(os.fsdecode(word) for word in text.removesuffix(b"\0").split(b"\0")) if text else ()


def environment(pid: int) -> dict[str, str]:
    """Return the environment that process `pid` was started with, at most `MAX_ENVIRONMENT_BYTES` of it.

    Raises `errors.ProcessGone` and `errors.InputDenied`.
    """
    return parse_environment(reading.content(pid, "environ", limit_bytes=MAX_ENVIRONMENT_BYTES))


def executable(pid: int) -> tuple[str, bool]:
    """Return the path of the program of process `pid` and whether it is deleted. Raises `errors.ProcessGone` (for a zombie too)."""
    shown = reading.link(pid, "exe")
    with reading.of_process(pid):
        there = os.stat(f"/proc/{pid}/exe")
    return reading.told_apart(shown, reading.root_for(pid), there.st_dev, there.st_ino)


def working_directory(pid: int) -> tuple[str, bool]:
    """Return the working directory of process `pid` and whether it is deleted. Raises `errors.ProcessGone` (for a zombie too)."""
    shown = reading.link(pid, "cwd")
    with reading.of_process(pid):
        there = os.stat(f"/proc/{pid}/cwd")
    return reading.told_apart(shown, reading.root_for(pid), there.st_dev, there.st_ino)


def limits(pid: int) -> dict[str, tuple[int | None, int | None]]:
    """Return soft and hard limits of process `pid` by the kernel's name for them; None is unlimited. Raises `errors.ProcessGone`."""
    return parse_limits(reading.content(pid, "limits"))


def cgroups(pid: int) -> dict[str, str]:
    """Return the cgroup of process `pid` by hierarchy; the unified one is called ``""``. Raises `errors.ProcessGone`."""
    found: dict[str, str] = {}
    for line in reading.content(pid, "cgroup").splitlines():
        _, _, rest = os.fsdecode(line).partition(":")
        controllers, _, path = rest.partition(":")
        found[controllers] = path
    return found
