"""Small real programs that each have one thing that a checkpoint may stumble over, and a stage to run them on.

Each runs as a workload does: under a static init, in a session, a PID and an IPC namespace of its own. `found` is what preflight says of
it, `outcome` what a real CRIU makes of it; the tests hold both to be true together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from perdure import errors
from perdure.base import settings
from perdure.base.proc import process
from perdure.checkpoint.criu import locate, run
from perdure.checkpoint.criu.run import Action, Call, Criu

Outcome = Literal["restored", "dump fails", "restore fails", "altered", "by number"]
"""What CRIU does: all is well; it refuses to dump; it dumps and refuses to restore; it does both, and the program is not as it was; it
opens what belongs to the process that has the same number at the restore, and fails where there is none."""

_START_S = 120.0
_STANDING = ("--file-locks", "--link-remap", "--ext-unix-sk", "--manage-cgroups=ignore")

_PREAMBLE = """
import ctypes, errno, fcntl, mmap, os, pty, select, signal, socket, struct, subprocess, sys, threading, time, traceback
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.shmat.restype = ctypes.c_long
def call(number, *arguments):
    words = [a if isinstance(a, (bytes, ctypes.Array)) or hasattr(a, "_obj") else ctypes.c_long(a) for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def must(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def attributes(*words, size=128):
    return ctypes.create_string_buffer(struct.pack("%dI" % len(words), *words), size)
told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
told.connect(sys.argv[2])
def tell(text):
    told.send(text.encode())
    told.close()
def wait():
    while True:
        time.sleep(3600)
# While a tree is saved and not yet back, the kernel gives to others what it had from the kernel: ports of its range for everybody, and the
# lowest free number of a terminal. So these take others. (CRIU finds no terminal that is 32 above the lowest free.)
def bound(one, host="127.0.0.1"):
    while True:
        try:
            one.bind((host, 20000 + int.from_bytes(os.urandom(2), "little") % 12000))
            return one
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
def server(family=socket.AF_INET, host="127.0.0.1"):
    one = socket.socket(family)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound(one, host).listen()
    return one
def high(opened):
    many = [opened() for _ in range(16)]
    kept = max(many, key=lambda ends: struct.unpack("I", fcntl.ioctl(ends[0], 0x80045430, bytes(4))))
    for end in (end for ends in many if ends is not kept for end in ends):
        os.close(end)
    return kept
def child(action):
    pid = os.fork()
    if pid == 0:
        action()
        wait()
    return pid
def thread(action):
    started = threading.Event()
    def body():
        action()
        started.set()
        wait()
    threading.Thread(target=body, daemon=True).start()
    started.wait()
try:
    pass
"""
_EPILOGUE = """
except OSError as error:
    # What a kernel or a container may be without: not permitted, no such device, not implemented, not supported…
    tell("lacking " + str(error) if error.errno in (1, 2, 6, 13, 19, 22, 38, 65, 92, 93, 94, 95, 97) else traceback.format_exc())
    os._exit(1)
except BaseException:
    tell(traceback.format_exc())
    os._exit(1)
tell("up")
wait()
"""


@dataclasses.dataclass(frozen=True)
class Specimen:
    """A program, what preflight finds (problems and warnings), and what CRIU makes of it."""

    name: str
    program: str
    outcome: Outcome = "restored"
    found: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()


class Lacking(Exception):
    """This kernel or machine has not what the specimen needs."""


def the_criu() -> tuple[Criu, str]:
    """Return the CRIU that works here and the path of a static init."""
    places = locate.places(settings.load({}, working_directory=Path("/")), os.environ)
    criu = locate.find(places)
    return criu, locate.find_init(places, beside=criu).path


@dataclasses.dataclass
class Stage:
    """A specimen that runs. `root` is the host's PID of its init."""

    root: int
    launcher: subprocess.Popen[bytes]

    @property
    def program(self) -> int:
        """The host's PID of the specimen itself."""
        return process.children(self.root)[0]


@contextlib.contextmanager
def staged(
    specimen: str,
    folder: Path,
    init: str,
    *,
    pass_fds: tuple[int, ...] = (),
    prepare: str = "",
    cwd: Path | None = None,
    namespaces: tuple[str, ...] = ("--pid", "--ipc"),
) -> Iterator[Stage]:
    """Run the program text `specimen` in `folder` until the block ends. Raises `Lacking`.

    `prepare` is Python that the init's process runs before it becomes the init; `cwd` is the init's working directory; None: `folder`.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    address = str(folder / "up")
    channel.bind(address)
    lines = "\n".join("    " + line for line in specimen.splitlines())
    program = [sys.executable, "-I", "-S", "-c", f"{_PREAMBLE}{lines}\n{_EPILOGUE}", str(folder), address]
    starter = f"import os, sys, fcntl\nos.setsid()\n{prepare}\nos.execv(sys.argv[1], sys.argv[1:])"
    launcher = subprocess.Popen(
        ["unshare", *namespaces, "--fork", "--kill-child=SIGKILL", sys.executable, "-I", "-S", "-c", starter, init, "-g", "--", *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=pass_fds,
        # CRIU makes a folder of one name there while it dumps: two trees must not share it.
        cwd=cwd or folder,
    )
    try:
        with channel:
            said = _hear(channel, launcher)
        (folder / "up").unlink()
        if said.startswith("lacking "):
            raise Lacking(said.removeprefix("lacking "))
        assert said == "up", said
        yield Stage(process.children(launcher.pid)[0], launcher)
    finally:
        # One that lacks what it needs ends by itself, at this very moment perhaps.
        with contextlib.suppress(errors.ProcessGone, ProcessLookupError):
            for pid in process.children(launcher.pid):
                os.kill(pid, signal.SIGKILL)
        launcher.kill() if launcher.poll() is None and not _has_children(launcher.pid) else None
        launcher.wait()


def _has_children(pid: int) -> bool:
    try:
        return bool(process.children(pid))
    except errors.ProcessGone:
        return False


def _hear(channel: socket.socket, launcher: subprocess.Popen[bytes]) -> str:
    ended = os.pidfd_open(launcher.pid)
    try:
        ready, _, _ = select.select([channel, ended], [], [], _START_S)
    finally:
        os.close(ended)
    assert channel in ready, "the specimen did not start"
    return channel.recv(1 << 16).decode()


def dump(criu: Criu, root: int, folder: Path, *options: str, timeout_s: float = 120.0) -> run.Result:
    """Dump the tree of `root` into ``folder/images``, with the options of the engine; it runs on."""
    images, work = folder / "images", folder / "criu"
    images.mkdir(exist_ok=True)
    work.mkdir(exist_ok=True)
    return run.run(
        criu,
        Call(
            action=Action.DUMP,
            images=str(images),
            work=str(work),
            timeout_s=timeout_s,
            root=root,
            options=("--leave-running", "--tcp-close", "--skip-in-flight", "--ghost-limit=1G", *_STANDING, *options),
        ),
    )


@contextlib.contextmanager
def restored(criu: Criu, folder: Path, *options: str) -> Iterator[tuple[run.Result, int | None]]:
    """Restore ``folder/images`` until the block ends: yields how that went, and the PID of its init."""
    record = folder / "restored.pid"
    result = run.run(
        criu,
        Call(
            action=Action.RESTORE,
            images=str(folder / "images"),
            work=str(folder / "criu"),
            timeout_s=120.0,
            options=(
                *("--restore-detached", "--restore-sibling", "--pidfile", str(record), "--tcp-close", "--ghost-limit=1G"),
                *(*_STANDING, *options),
            ),
        ),
    )
    pid = int(record.read_text()) if result.succeeded else None
    try:
        yield result, pid
    finally:
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def kinds(*names: str) -> frozenset[str]:
    """Codes as a set."""
    return frozenset(names)


def _anonymous(name: str, program: str, *codes: str) -> Specimen:
    return Specimen(name, program, "dump fails" if codes else "restored", frozenset(codes))


IO_URING = "parameters = (ctypes.c_char * 120)()\nfd = call(425, 8, parameters)"
PERF = "perf = attributes(1, 112, 0)\nfd = call(298, perf, 0, -1, -1, 0)"

SPECIMENS: tuple[Specimen, ...] = (
    Specimen("nothing", ""),
    # Kernel objects
    _anonymous("eventfd", "fd = os.eventfd(3)"),
    _anonymous("epoll", "poll = select.epoll(); ends = os.pipe(); poll.register(ends[0])"),
    _anonymous("inotify", 'fd = libc.inotify_init(); must(libc.inotify_add_watch(fd, b"/usr", 2))'),
    _anonymous("inotify-tmpfs", 'fd = libc.inotify_init(); must(libc.inotify_add_watch(fd, b"/dev/shm", 2))'),
    _anonymous("inotify-proc", 'fd = libc.inotify_init(); must(libc.inotify_add_watch(fd, b"/proc/self", 2))', "file-watch"),
    _anonymous("inotify-sysfs", 'fd = libc.inotify_init(); must(libc.inotify_add_watch(fd, b"/sys/kernel", 2))', "file-watch"),
    _anonymous("fanotify", 'fd = must(libc.fanotify_init(0, 0)); must(libc.fanotify_mark(fd, 1, ctypes.c_uint64(2), -100, b"/usr"))'),
    _anonymous("signalfd", "mask = (ctypes.c_ulong * 16)(); mask[0] = 2; fd = must(libc.signalfd(-1, mask, 0))"),
    _anonymous("timerfd", "fd = must(libc.timerfd_create(1, 0))"),
    _anonymous("timerfd-alarm", "fd = must(libc.timerfd_create(8, 0))", "file-timer-clock"),
    _anonymous("memfd", 'fd = os.memfd_create("x"); os.write(fd, b"abc"); memory = mmap.mmap(fd, 3)'),
    _anonymous("memfd-sealed", 'fd = os.memfd_create("x", 3); os.write(fd, b"abc"); fcntl.fcntl(fd, 1033, 15)'),
    _anonymous("memfd-huge", 'fd = os.memfd_create("x", 4)', "file-mount-unknown"),
    _anonymous("memfd-secret", "fd = call(447, 0); os.ftruncate(fd, 4096)", "file-mount-unknown"),
    _anonymous("pidfd-self", "fd = os.pidfd_open(os.getpid())"),
    _anonymous("pidfd-child", "fd = os.pidfd_open(child(lambda: None))"),
    _anonymous("pidfd-dead", "pid = os.fork()\nif pid == 0:\n    os._exit(0)\nfd = os.pidfd_open(pid); os.waitpid(pid, 0)"),
    _anonymous("userfaultfd", "fd = call(323, 1)", "file-kernel-object"),
    _anonymous("io-uring", IO_URING, "file-io-uring"),
    _anonymous(
        "io-uring-mapped", f"{IO_URING}\nmust(libc.mmap(0, ctypes.c_long(4096), 3, 1, fd, ctypes.c_long(0))); os.close(fd)", "file-io-uring"
    ),
    _anonymous("bpf-map", "fd = call(321, 0, attributes(2, 4, 8, 4), 64)", "file-kernel-object"),
    _anonymous("perf-event", PERF, "file-kernel-object"),
    _anonymous(
        "perf-mapped", f"{PERF}\nmust(libc.mmap(0, ctypes.c_long(8192), 3, 1, fd, ctypes.c_long(0))); os.close(fd)", "memory-kernel-object"
    ),
    _anonymous("fscontext", 'fd = call(430, b"tmpfs", 0)', "file-kernel-object"),
    _anonymous("landlock-ruleset", "fd = call(444, ctypes.create_string_buffer(struct.pack('Q', 1), 8), 8, 0)", "file-kernel-object"),
    _anonymous(
        "seccomp-listener",
        "libc.prctl(38, 1, 0, 0, 0)\nallow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n"
        "fd = call(317, 1, 8, ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(allow))))",
        "file-kernel-object",
    ),
    _anonymous("aio", "context = ctypes.c_ulong(0); call(206, 8, ctypes.byref(context))"),
    # Files
    _anonymous("detached-mount", 'fd = call(428, -100, b"/usr", 1)', "file-mount-unknown"),
    _anonymous("posix-queue", 'fd = call(240, b"perdure-specimen", 0o102, 0o600, 0); call(241, b"perdure-specimen")', "file-mount-unknown"),
    Specimen("of-process", 'fd = os.open("/proc/self/status", 0)', "by number", kinds("file-of-process")),
    Specimen("of-process-folder", 'fd = os.open("/proc/self/task", 0)', "by number", kinds("file-of-process")),
    Specimen("of-proc", 'fd = os.open("/proc/meminfo", 0)'),
    Specimen("of-sysfs", 'fd = os.open("/sys/kernel/uevent_seqnum", 0)'),
    Specimen("namespace", 'fd = os.open("/proc/self/ns/net", 0)', "by number", kinds("file-namespace")),
    Specimen("path-only", 'fd = os.open("/usr", os.O_PATH)'),
    Specimen("deleted", 'fd = os.open("gone", os.O_RDWR | os.O_CREAT); os.write(fd, b"abc"); os.unlink("gone")'),
    Specimen(
        "deleted-mapped",
        'fd = os.open("gone", os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 8192); m = mmap.mmap(fd, 0); os.close(fd); os.unlink("gone")',
    ),
    Specimen("deleted-sparse", 'fd = os.open("gone", os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 3 << 30); os.unlink("gone")'),
    Specimen(
        "deleted-linked",
        'fd = os.open("gone", os.O_RDWR | os.O_CREAT); os.link("gone", "kept"); os.unlink("gone")',
        "restore fails",
        kinds("file-deleted-linked"),
    ),
    Specimen("deleted-folder", 'os.mkdir("gone"); fd = os.open("gone", 0); os.rmdir("gone")'),
    Specimen("directory-deleted", 'os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")'),
    Specimen("nameless", 'fd = os.open(".", os.O_TMPFILE | os.O_RDWR); os.write(fd, b"a")'),
    Specimen("locks", 'fd = os.open("locked", os.O_RDWR | os.O_CREAT); fcntl.flock(fd, 2); fcntl.lockf(fd, 2)'),
    Specimen("lease", 'fd = os.open("leased", os.O_WRONLY | os.O_CREAT); fcntl.fcntl(fd, 1024, 1)'),
    Specimen("direct", 'fd = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)'),
    Specimen("fifo", 'os.mkfifo("named"); fd = os.open("named", os.O_RDWR)'),
    Specimen(
        "overwritten",
        'fd = os.open("big", os.O_WRONLY | os.O_CREAT); [os.write(fd, bytes(1 << 20)) for _ in range(100)]',
        "restored",
        kinds("file-overwrite-unsaved"),
    ),
    Specimen("sparse", 'fd = os.open("big", os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 100 << 20)'),
    Specimen("appended", 'fd = os.open("big", os.O_WRONLY | os.O_CREAT | os.O_APPEND); os.ftruncate(fd, 100 << 20)'),
    # Devices
    *(Specimen(f"device-{name}", f'fd = os.open("/dev/{name}", os.O_RDWR)') for name in ("null", "zero", "full", "random", "urandom")),
    _anonymous("device-fuse", 'fd = os.open("/dev/fuse", os.O_RDWR)', "file-device"),
    _anonymous("device-tun", 'fd = os.open("/dev/net/tun", os.O_RDWR)', "file-tun-device"),
    _anonymous("device-loop-control", 'fd = os.open("/dev/loop-control", os.O_RDWR)', "file-device"),
    _anonymous("device-block", 'fd = os.open("/dev/loop0", 0)', "file-device"),
    Specimen(
        "device-zero-mapped", 'fd = os.open("/dev/zero", 2); one = mmap.mmap(fd, 8192); two = mmap.mmap(fd, 8192, flags=mmap.MAP_PRIVATE)'
    ),
    Specimen("terminal", "ends = high(pty.openpty)"),
    Specimen("terminal-ptmx", 'fd = high(lambda: (os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY),))'),
    # Pipes and sockets
    Specimen("pipe", 'ends = os.pipe(); os.write(ends[1], b"x")'),
    _anonymous("pipe-packets", "ends = os.pipe2(os.O_DIRECT)", "file-packet-pipe"),
    Specimen("unix-pair", 'a, b = socket.socketpair(); a.send(b"x")'),
    Specimen("unix-half", "a, b = socket.socketpair(); b.close()"),
    Specimen(
        "unix-listening",
        'a = socket.socket(socket.AF_UNIX); a.bind("listening"); a.listen(); b = socket.socket(socket.AF_UNIX); b.connect("listening")',
    ),
    Specimen("unix-descriptor", 'a, b = socket.socketpair(); fd = os.open("/dev/null", 0); socket.send_fds(a, [b"x"], [fd])'),
    Specimen("tcp-listening", 'a = server(); b = server(socket.AF_INET6, "::1")'),
    Specimen("tcp-pair", "a = server(); b = socket.create_connection(a.getsockname()); c = a.accept()"),
    Specimen("tcp-waiting", "a = server(); b = socket.create_connection(a.getsockname())"),
    Specimen("udp", "a = bound(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))"),
    _anonymous(
        "udp-corked",
        'a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); a.connect(("127.0.0.1", 9)); a.setsockopt(17, 1, 1); a.send(b"x")',
        "network-datagram-corked",
    ),
    Specimen("raw", "a = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    Specimen("packet", "a = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)"),
    Specimen("netlink", "a = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); a.bind((0, 0))"),
    _anonymous(
        "netlink-pending",
        "a = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); a.bind((0, 0))\n"
        'a.send(struct.pack("IHHII", 20, 18, 0x301, 1, 0) + bytes(4)); a.recv(1, socket.MSG_PEEK)',
        "network-netlink-pending",
    ),
    _anonymous("vsock", "a = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)", "network-family"),
    _anonymous("xdp", "a = socket.socket(44, socket.SOCK_RAW, 0)", "network-family"),
    _anonymous("mptcp", "a = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)", "network-protocol"),
    # Memory
    Specimen("shared-memory", "m = mmap.mmap(-1, 8192); m[0] = 1"),
    Specimen("locked-memory", "must(libc.mlockall(3))"),
    Specimen(
        "system-v",
        "i = must(libc.shmget(77, 4096, 0o1600)); must(libc.shmat(i, 0, 0))\n"
        "must(libc.semget(77, 1, 0o1600)); must(libc.msgget(77, 0o1600))",
    ),
    Specimen("reserved-address-space", "must(libc.mmap(0, ctypes.c_long(1 << 40), 0, 0x4022, -1, ctypes.c_long(0)))"),
    _anonymous("huge-pages", "must(libc.mmap(0, ctypes.c_long(2 << 20), 3, 0x44022, -1, ctypes.c_long(0)))", "memory-huge-pages"),
    # Processes
    Specimen("zombie", "pid = os.fork()\nif pid == 0:\n    os._exit(3)\nos.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)"),
    Specimen("stopped", "pid = child(lambda: None); os.kill(pid, signal.SIGSTOP); os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)"),
    _anonymous("traced", "pid = child(lambda: None); must(libc.ptrace(0x4206, pid, 0, 0))", "process-traced"),
    _anonymous(
        "shares-memory",
        "stack = mmap.mmap(-1, 1 << 16)\nbase = ctypes.addressof(ctypes.c_char.from_buffer(stack))\n"
        "pause = ctypes.cast(libc.pause, ctypes.c_void_p)\n"
        "must(libc.clone(pause, ctypes.c_void_p(base + (1 << 15)), 0x100 | signal.SIGCHLD, None))",
        "process-shared-memory",
    ),
    Specimen("sessions", "child(os.setsid)"),
    Specimen("other-user", "os.setgid(65534); os.setuid(65534)"),
    Specimen("other-root", 'os.mkdir("root"); os.chroot("root")'),
    Specimen(
        "seccomp",
        "libc.prctl(38, 1, 0, 0, 0)\nallow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n"
        "must(libc.prctl(22, 2, ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(allow)))))",
    ),
    *(
        _anonymous(f"namespace-{kind}", f"must(libc.unshare({flag}))", "process-namespace")
        for kind, flag in (("uts", 0x4000000), ("ipc", 0x8000000), ("cgroup", 0x2000000), ("time", 0x80), ("user", 0x10000000))
    ),
    _anonymous("namespace-pid", "must(libc.unshare(0x20000000)); child(lambda: None)", "process-namespace"),
    Specimen("namespace-mount", "must(libc.unshare(0x20000))", "restore fails", kinds("process-namespace")),
    Specimen("namespace-network", "must(libc.unshare(0x40000000))", "restore fails", kinds("process-namespace")),
    Specimen("thread-files", "thread(lambda: (must(libc.unshare(0x400)), os.close(0)))", "altered", kinds("process-thread-files")),
    Specimen("thread-directory", "thread(lambda: must(libc.unshare(0x200)))", "altered", kinds("process-thread-directory")),
    Specimen("thread-namespace", "thread(lambda: must(libc.unshare(0x40000000)))", "altered", kinds("process-thread-namespace")),
    Specimen("real-time", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"),
    Specimen(
        "deadline",
        'call(314, 0, ctypes.create_string_buffer(struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10**6, 10**7, 10**7)), 0)',
        "restore fails",
        kinds("process-deadline"),
    ),
    Specimen(
        "timers",
        "t = ctypes.c_int(); call(222, 1, 0, ctypes.byref(t)); signal.signal(14, lambda *a: None); signal.setitimer(0, 0.01, 0.01)",
    ),
)
