"""PID 1 of the namespace that an adopted tree gets at its first restore, and its init for as long as it lives. Run by `adopt` as a
program of its own, never imported.

A tree that was not started by us brings no init. This program makes a PID namespace whole: it lets CRIU bring the tree back as its child,
reaps orphans, passes signals on to the tree's first process and ends with its status. CRIU reads /proc of its own namespace, for which it
needs a mount namespace; so does the tree, in which its processes have the numbers that they had. The clocks that count from the boot go on
from where they stood: that is a time namespace, which CRIU would make for the tree alone, and then not save together with us.

Descriptors 0, 1 and 2 are the tree's streams. Descriptor 3 brings the request as one JSON line and takes back one line: ``pid`` of the
restored process in this namespace, or ``status`` of a CRIU that failed, or ``errno`` and ``path``.
"""

import ctypes
import errno
import json
import os
import signal
import stat
import sys
import time
from typing import Any

_CONTROL = 3
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS = 0x00020000
_CLONE_NEWTIME = 0x00000080
_MS_REC, _MS_SLAVE = 0x4000, 0x80000

_libc = ctypes.CDLL(None, use_errno=True)


def _enter() -> None:
    """Make the namespaces, and start again inside.

    The time namespace is entered by starting a program, and what this one maps has to come from the mounts of its own namespace.
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    with os.fdopen(os.dup(_CONTROL), "rb") as channel:
        request = channel.readline()
    told = json.loads(request)
    with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as handle:
        handle.write(str(told["first_pid"] - 1))
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None))
    _check(_libc.unshare(_CLONE_NEWTIME))
    with open("/proc/self/timens_offsets", "w", encoding="ascii") as handle:
        for name, clock in (("monotonic", time.CLOCK_MONOTONIC), ("boottime", time.CLOCK_BOOTTIME)):
            seconds, nanoseconds = divmod(told[f"{name}_ns"] - time.clock_gettime_ns(clock), 1_000_000_000)
            handle.write(f"{name} {seconds} {nanoseconds}\n")
    os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, request.decode("ascii")], {})  # noqa: S606 - itself


def _keep(request: dict[str, Any]) -> None:
    if os.readlink("/proc/self/ns/time") != os.readlink("/proc/self/ns/time_for_children"):
        # Linux before 6.1 does not enter it by starting a program.
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), "time namespace")
    _check(_libc.mount(b"proc", b"/proc", b"proc", 0, None))
    os.setsid()
    _reopen()
    os.chdir("/")
    os.closerange(_CONTROL + 1, 1 << 20)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    status = _restore(request["argv"])
    if status != 0:
        _say({"status": status})
        os._exit(1)
    with open(request["pid_file"], encoding="ascii") as handle:
        first = int(handle.read())
    _say({"pid": first})
    os.close(_CONTROL)
    _reap(first)


def _reopen() -> None:
    """Let go of files that were opened on mounts of another namespace; pipes and terminals belong to none that matters."""
    for number in range(3):
        if not (stat.S_ISFIFO(os.fstat(number).st_mode) or os.isatty(number)):
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            os.close(null)


def _restore(argv: list[str]) -> int:
    null = os.open(os.devnull, os.O_RDWR)
    # The tree's streams are handed over under numbers of their own: what CRIU itself says must not go there.
    actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, number, number + 10) for number in range(3)]
    actions += [(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)]
    actions += [(os.POSIX_SPAWN_CLOSE, null), (os.POSIX_SPAWN_CLOSE, _CONTROL)]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/"}
    criu = os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsigmask=[])
    os.close(null)
    return os.waitstatus_to_exitcode(os.waitpid(criu, 0)[1])


def _reap(first: int) -> None:
    while True:
        number = signal.sigwait(signal.valid_signals())
        if number != signal.SIGCHLD:
            _send(first, number)
            continue
        while True:
            try:
                pid, raw = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                os._exit(1)  # the first one cannot have been missed
            if pid == 0:
                break
            if pid == first:
                status = os.waitstatus_to_exitcode(raw)
                os._exit(status if status >= 0 else 128 - status)


def _send(first: int, number: int) -> None:
    try:
        os.kill(first, number)
    except ProcessLookupError:
        return


def _say(told: dict[str, object]) -> None:
    os.write(_CONTROL, json.dumps(told).encode("ascii") + b"\n")


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    try:
        if len(sys.argv) == 1:
            _enter()
        else:
            _keep(json.loads(sys.argv[1]))
    except OSError as error:
        _say({"errno": error.errno, "path": error.filename and os.fsdecode(error.filename)})
        os._exit(1)
