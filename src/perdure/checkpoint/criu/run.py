"""Start CRIU: one action, bounded in time, with its log kept and its failure explained. Called by whoever dumps or restores.

CRIU is a child of the calling process, never of a shell, so that `--restore-sibling` makes the restored root task a child of the
caller, who has to wait for it. What it is asked for is in `calls`.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import subprocess
import threading
import time

from perdure import errors
from perdure.base.proc import process
from perdure.checkpoint import namespaces
from perdure.checkpoint.criu import log, netlock, repair
from perdure.checkpoint.criu.calls import Action, Call, Criu, Result, command, external, inherit_fd, log_name_of, wants_preload

__all__ = ["Action", "Call", "Criu", "Result", "Running", "command", "external", "inherit_fd", "read_run_id", "run", "start"]

GRACE_S = 5.0
"""CRIU stops collecting by itself after the time allowed; only when it does not end this long afterwards is it killed."""

_TAIL_BYTES = 256 * 1024
_ID_BYTES = 4096
_HEAD_BYTES = 64 * 1024 * 1024
"""The PIDs of a restored tree stand behind CRIU's look at the machine; logs of thousands of processes stay below this."""
_SCRUBBED = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/"}


def run(criu: Criu, call: Call) -> Result:
    """Do `call` and wait for its end. Raises `errors.EnvironmentUnfit` when CRIU cannot be started at all."""
    return start(criu, call).wait()


def start(criu: Criu, call: Call) -> Running:
    """Start `call` and return at once.

    Raises `errors.EnvironmentUnfit` when CRIU cannot be started at all, `errors.ProcessGone` when the tree to work in has ended.
    """
    environment = _SCRUBBED | dict(call.variables)
    if criu.prefix is None and wants_preload(criu, call.action):
        environment["LD_PRELOAD"] = str(criu.preload)
    held = repair.Held(call.root) if call.action is Action.DUMP and call.root is not None else None
    place = namespaces.children_inside(call.root) if call.is_inside and call.root is not None else contextlib.nullcontext()
    speech = os.open(_speech_path(call), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with place:
            child = subprocess.Popen(
                command(criu, call),
                stdin=subprocess.DEVNULL,
                stdout=speech,
                stderr=speech,
                env=environment,
                pass_fds=call.pass_fds,
                # CRIU tries the kernel out on children of its own that stop themselves. When it and we are killed, the kernel ends stopped
                # processes only in a group that loses its last tie to us by that; in our own group they would stay for ever.
                process_group=0,
                # Python ignores SIGXFSZ: a dump that inherits this sees a failed write, which is how it is made to give up.
                restore_signals=held is None,
                # What a dump writes is its owner's alone. A restore may not be given a mask: files that it makes again have theirs.
                umask=0o077 if call.action in (Action.DUMP, Action.PRE_DUMP) else -1,
            )
    except OSError as error:
        if call.is_inside and call.root is not None and _is_ending(call.root):
            raise errors.ProcessGone(f"process {call.root} ended while it was saved") from error
        raise errors.EnvironmentUnfit(f"cannot start CRIU ({criu.program}): {error.strerror}", hint="see perdure doctor") from error
    finally:
        os.close(speech)
    return Running(child, call, held)


class Running:
    """A CRIU that was started. Exactly one `wait` ends it; `cancel` may be called from another thread.

    After a restore that was cancelled or failed nothing of the tree is left.
    """

    def __init__(self, child: subprocess.Popen[bytes], call: Call, held: repair.Held | None) -> None:
        self._child = child
        self._call = call
        self._held = held
        self._began = time.monotonic()
        self._pidfd = os.pidfd_open(child.pid)
        self._start_ticks = _start_ticks(child.pid)
        self._cancel, self._cancelled = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._lock = threading.Lock()
        self._ended = False

    @property
    def pid(self) -> int:
        """PID of CRIU itself."""
        return self._child.pid

    def cancel(self) -> None:
        """Let CRIU give up: a dump lets go of the tree at the next thing it writes. `wait` returns then; without effect after it."""
        with self._lock:
            if not self._ended:
                os.write(self._cancelled, b".")

    def wait(self) -> Result:
        """Wait for the end, at most the call's time and the grace; clean up after a failure, and explain it."""
        limit_s = self._began + self._call.timeout_s + GRACE_S - time.monotonic()
        event = self._await(self._pidfd, self._cancel, limit_s=limit_s)
        if event != self._pidfd:
            self._give_up()
        # Until CRIU is reaped, the init of the PID namespace that it is in cannot end for good: it is still found on its way.
        tree_ended = self._call.is_inside and self._call.root is not None and _is_ending(self._call.root)
        self._end_group_of_a_killed_one()
        returncode = self._child.wait()
        with self._lock:
            self._ended = True
            for descriptor in (self._pidfd, self._cancel, self._cancelled):
                os.close(descriptor)
        tree_ended = tree_ended and returncode == -signal.SIGKILL
        return self._judge(returncode, timed_out=event is None, cancelled=event == self._cancel, tree_ended=tree_ended)

    def _await(self, *descriptors: int, limit_s: float) -> int | None:
        """Return the first of `descriptors` that is ready, or None when the time is over."""
        ready = select.poll()  # not select(): descriptors may have numbers above 1023
        for descriptor in descriptors:
            ready.register(descriptor, select.POLLIN)
        found = [descriptor for descriptor, _ in ready.poll(max(limit_s, 0.0) * 1000.0)]
        return next((descriptor for descriptor in descriptors if descriptor in found), None)

    def _give_up(self) -> None:
        """End CRIU: gently where processes have its code inside, and for good when it does not answer."""
        with contextlib.suppress(ProcessLookupError):
            if self._held is not None:
                # Killed in the middle of a dump, CRIU takes processes with it. It survives a file that cannot be written: then it undoes
                # what it did.
                resource.prlimit(self._child.pid, resource.RLIMIT_FSIZE, (0, 0))
                if self._await(self._pidfd, limit_s=GRACE_S) is not None:
                    return
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _end_group_of_a_killed_one(self) -> None:
        """Wait for CRIU's end, and where that was a signal's, end what is left of its process group: children that it tried the kernel on.

        Whoever had itself traced when CRIU was gone would stay stopped for ever. The group was made for this CRIU; as long as that is not
        reaped, nobody else's can have its number.
        """
        group = self._child.pid
        try:
            ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
            if ended is None or ended.si_code == os.CLD_EXITED:
                return
        except ChildProcessError:
            return  # somebody else has reaped it
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        for pid in process.children(os.getpid()):
            # To the one that takes over orphans they are children.
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if pid != group and os.getpgid(pid) == group:
                    os.waitpid(pid, 0)

    def _judge(self, returncode: int, *, timed_out: bool, cancelled: bool, tree_ended: bool) -> Result:
        wall_s = time.monotonic() - self._began
        path = os.path.join(self._call.work, log_name_of(self._call))
        head = _read(path, _HEAD_BYTES if self._call.action is Action.RESTORE else _ID_BYTES)
        tasks = [int(pid) for pid in re.findall(r"PID: real (\d+) virt", head)] if self._call.action is Action.RESTORE else []
        explanation = None
        if returncode != 0:
            for pid in tasks:
                self._end_half_restored(pid)
            said = _tail(path) + "\n" + _tail(_speech_path(self._call))
            explanation = log.explain(said, action=self._call.action.value, returncode=returncode, timed_out=timed_out, cancelled=cancelled)
        if returncode < 0:
            self._end_half_dumped(_run_id(head))
        return Result(
            action=self._call.action,
            returncode=returncode,
            wall_s=wall_s,
            log_path=path,
            timed_out=timed_out,
            cancelled=cancelled and returncode != 0,
            explanation=explanation,
            tree_ended=tree_ended,
            run_id=_run_id(head),
            root_pid=tasks[0] if tasks and returncode == 0 else None,
        )

    def _end_half_restored(self, pid: int) -> None:
        """Kill and reap a task that waits for a CRIU that is gone: with `--restore-sibling` the root is our own child."""
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                # A process that is older than CRIU only has the number of one that is gone.
                if _start_ticks(pid) >= self._start_ticks:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, 0)
            finally:
                os.close(descriptor)

    def _end_half_dumped(self, run_id: str) -> None:
        """After CRIU was killed: let connections go on that it held still, and no process run before they do."""
        if self._held is not None:
            self._held.stop()
            repair.end(self._held.pids())
        netlock.release(run_id)
        if self._held is not None:
            self._held.resume()


def _is_ending(pid: int) -> bool:
    try:
        return process.stat(pid).is_exiting
    except errors.ProcessGone:
        return True


def read_run_id(log_path: str) -> str:
    """Return CRIU's id of the run that wrote this log, for `netlock.release` after a crash of the caller; empty when it has none."""
    return _run_id(_read(log_path, _ID_BYTES))


def _run_id(text: str) -> str:
    match = re.search(r"CRIU run id = (\S+)", text)
    return match[1] if match else ""


def _speech_path(call: Call) -> str:
    return os.path.join(call.work, log_name_of(call) + ".stderr")


def _start_ticks(pid: int) -> int:
    """Return when the process started, in clock ticks after boot; -1 when it is gone."""
    content = _read(f"/proc/{pid}/stat", 4096)
    # The command's name may hold spaces and parentheses; field 22 is the 20th behind it.
    fields = content.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else -1


def _read(path: str, limit_bytes: int) -> str:
    try:
        with open(path, "rb") as handle:
            return handle.read(limit_bytes).decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _tail(path: str) -> str:
    """Return the end of the file: a log at the highest verbosity is long, and the reason stands near its end."""
    try:
        with open(path, "rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - _TAIL_BYTES))
            return handle.read(_TAIL_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
