"""What a workload sees of the machine's files: all of them, and a /proc of its own. Called by `launch`, `restore`, `dump` and `adopt`.

A program finds itself in /proc by the number that it knows: libraries that measure memory do so, a debugger does, and the CUDA driver, to
name its threads. A PID namespace's numbers are those of its own /proc only, which needs a mount namespace. CRIU would save that, too, and
could bring it back only where all is mounted as it was; what it shares with a tree it does not save. So it works in the tree's namespaces
when it dumps, and in a new mount namespace when it restores.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base.proc import process, reading
from perdure.checkpoint import frozen
from perdure.checkpoint.criu.calls import Criu

_VIEWER = Path(__file__).with_name("viewer.py")
_REPLY_BYTES = 4096
_PATIENCE_S = 60.0
"""Time for an interpreter to start; it takes milliseconds where its files are at hand."""

_ADDRESS = "view"
_FORBIDDEN = frozenset({errno.EPERM, errno.EACCES, errno.EINVAL})
"""What is answered where nothing may be mounted, or the root directory is no mount: workloads then see the machine's /proc, as it is."""


class View:
    """The mounts of one workload to be. A context manager; leave it when the workload runs, which keeps them from then on.

    `meeting`, for a restore, is the folder where `frozen.sh` looks for us: there it sees the machine's /proc until then.
    """

    def __init__(self, meeting: Path | None = None) -> None:
        shown = ""
        if meeting is not None:
            (meeting / "proc").mkdir(mode=0o700, exist_ok=True)
            shown = str(meeting.resolve() / "proc")
        asked, self._ask = os.pipe2(os.O_CLOEXEC)
        self._told, tell = os.pipe2(os.O_CLOEXEC)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._namespace: int | None = None
        self._is_known = False
        try:
            self._viewer = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_VIEWER), str(theirs.fileno()), shown],
                stdin=asked,
                stdout=tell,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={},
                process_group=0,
            )
        finally:
            theirs.close()
            os.close(asked)
            os.close(tell)

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._ask)
        os.close(self._told)
        self._control.close()
        if self._namespace is not None:
            os.close(self._namespace)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._viewer.wait(_PATIENCE_S)

    @property
    def namespace(self) -> int | None:
        """A descriptor of the mount namespace; None where nothing may be mounted here, so that the tree sees the machine's /proc.

        Raises `errors.EnvironmentUnfit` when the namespace cannot be made for another reason.
        """
        if not self._is_known:
            self._is_known = True
            self._namespace = self._hear()
        return self._namespace

    def _hear(self) -> int | None:
        self._control.settimeout(_PATIENCE_S)
        try:
            said, descriptors, _, _ = socket.recv_fds(self._control, _REPLY_BYTES, 1)
        except OSError as error:
            raise errors.EnvironmentUnfit(f"the program that mounts /proc does not answer: {error}", hint="see perdure doctor") from error
        if descriptors:
            os.set_inheritable(descriptors[0], False)
            return descriptors[0]
        told = json.loads(said or b'{"errno": null}')
        if told["errno"] in _FORBIDDEN:
            return None
        raise _unfit(told["errno"])

    def start_proc(self, pid: int, next_number: int) -> None:
        """Mount the /proc of the new namespace of process `pid`, for whoever enters later, and let `next_number` be the next PID in it.

        What is covered or read-only outside is so in it. Raises `errors.EnvironmentUnfit`.
        """
        self._order(f"start {next_number} {pid}")

    def close_proc(self) -> None:
        """Cover in the /proc that `frozen.sh` has asked for what is covered or read-only outside, once CRIU has set everything there.

        Raises `errors.EnvironmentUnfit`.
        """
        self._order("close")

    def _order(self, line: str) -> None:
        os.write(self._ask, f"{line}\n".encode("ascii"))
        if os.read(self._told, _REPLY_BYTES) != b"done\n":
            raise self.problem() or _unfit(None)

    def leave_address(self, folder: Path) -> None:
        """Tell `frozen.sh` in `folder` how to ask for the /proc of a PID namespace that CRIU has just made."""
        frozen.write_address(folder / _ADDRESS, self._told, self._ask)

    def problem(self) -> errors.EnvironmentUnfit | None:
        """Return why /proc could not be mounted; None when nothing was said of it."""
        self._control.settimeout(0.0)
        with contextlib.suppress(OSError):
            if said := self._control.recv(_REPLY_BYTES):
                return _unfit(json.loads(said)["errno"])
        return None


def is_own(pid: int) -> bool:
    """Tell whether process `pid`, the first of a PID namespace, sees that one's /proc among mounts of its own; its root is ours.

    Then CRIU has to work inside these namespaces. Raises `errors.ProcessGone` and `errors.InputDenied`.
    """
    root = reading.root_for(pid)
    if not root or process.status(pid).inner_pid != 1:
        return False
    with reading.of_process(pid):
        here, there = os.stat("/"), os.stat(f"{root}/")
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino) and not _knows_us(f"{root}/proc")


def _knows_us(proc: str) -> bool:
    """Tell whether we have a number in the PID namespace of what is mounted on `proc`."""
    try:
        os.readlink(f"{proc}/self")
    except FileNotFoundError:
        return False
    return True


def entered(criu: Criu, namespace: str) -> Criu:
    """Return `criu`, to be started in the mount namespace to which the path `namespace` leads."""
    program, *rest = criu.argv
    preload = ["--preload", criu.preload] if criu.prefix is not None and criu.needs_prlimit_preload and criu.preload else []
    nsenter = shutil.which("nsenter", path="/usr/bin:/bin")
    if nsenter is None:
        raise errors.EnvironmentUnfit("nsenter is not there", hint="install util-linux")
    argv = (nsenter, f"--mount={namespace}", "--", program, *preload, *rest)
    return msgspec.structs.replace(criu, argv=argv, needs_prlimit_preload=criu.needs_prlimit_preload and criu.prefix is None)


def _unfit(number: int | None) -> errors.EnvironmentUnfit:
    reason = os.strerror(number) if number else "it ended"
    return errors.EnvironmentUnfit(f"cannot make the mounts of the workload: {reason}", hint="see perdure doctor")
