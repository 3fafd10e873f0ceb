"""What CRIU is asked for: the records of one start, and its command line. Pure. Called by `run`, which starts it.

CRIU sees no configuration file, no plug-in and no environment but what is given here: each of them could change what a dump means.
"""

from __future__ import annotations

import enum
import math
import os
import shutil
from typing import Literal

import msgspec

from perdure.checkpoint.criu.log import Explanation

PLUGINS = "/proc/self/ns"
"""A folder that never holds a plug-in. CRIU's own CUDA plug-in disables itself with only a warning, and one of another version ends
the dump with an undefined symbol: GPU state is handled before CRIU is started."""


class Criu(msgspec.Struct, frozen=True):
    """A CRIU that can be started. Made by `locate.find`."""

    argv: tuple[str, ...]
    version: str
    origin: str
    """Why this one, as a sentence."""
    prefix: str | None = None
    """The private prefix it comes from; None for the system's or one that was named."""
    needs_prlimit_preload: bool = False
    """This process lacks CAP_SYS_RESOURCE, so that a dump of another user's task needs `preload`."""
    preload: str | None = None
    """Library with the prlimit() that needs no capability; None when it is not needed or could not be made."""
    network_lock: Literal["iptables", "nftables"] = "iptables"
    """How established connections are held still during a dump. With nftables no other program has to be installed."""

    @property
    def program(self) -> str:
        """Path of the CRIU binary itself."""
        return self.argv[-1]


class Action(enum.StrEnum):
    """What CRIU is asked for."""

    DUMP = "dump"
    PRE_DUMP = "pre-dump"
    RESTORE = "restore"
    CHECK = "check"
    LAZY_PAGES = "lazy-pages"
    CPUINFO = "cpuinfo"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One start of CRIU.

    `images` and `work` are existing folders, `work` a private one: the log is written there as `log_name`. `options` follow the ones
    that are set here, and are passed as they are. `pass_fds` are inherited under their own numbers, for `inherit_fd`.
    """

    action: Action
    images: str
    work: str
    timeout_s: float
    options: tuple[str, ...] = ()
    pass_fds: tuple[int, ...] = ()
    log_name: str | None = None
    """Default: the action's name with ``.log``."""
    verbosity: int = 4
    action_script: str | None = None
    """Path of a program that CRIU calls at each stage, named in CRTOOLS_SCRIPT_ACTION."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables for that program."""
    folders: tuple[int, int] | None = None
    """Descriptors of `images` and `work`, both passed on, for a CRIU that works among other mounts than ours."""
    root: int | None = None
    """Of a dump: the host's PID of the tree's first process."""
    is_inside: bool = False
    """CRIU is started in the PID namespace of `root`, and gives processes the numbers that they have there."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How one start of CRIU ended."""

    action: Action
    returncode: int
    """Exit status, or the negative number of the signal that ended it."""
    wall_s: float
    log_path: str
    timed_out: bool = False
    cancelled: bool = False
    explanation: Explanation | None = None
    """Why it failed; None when it did not."""
    tree_ended: bool = False
    """CRIU was in the PID namespace of a tree that ended, so that the kernel ended it as well."""
    run_id: str = ""
    """CRIU's own id of this run, for `netlock.release`."""
    root_pid: int | None = None
    """PID here of the restored root task; None for other actions, after a failure, and with a verbosity below 4."""

    @property
    def succeeded(self) -> bool:
        """Tell whether CRIU did what was asked."""
        return self.returncode == 0


def inherit_fd(descriptor: int, resource: str) -> str:
    """Return the option that gives the restored tree `descriptor` for `resource`, such as ``pipe:[1234]`` or ``tty[8800:a]``."""
    return f"--inherit-fd=fd[{descriptor}]:{resource}"


def external(resource: str) -> str:
    """Return the option that makes a dump leave out `resource`, such as ``unix[1234]`` or ``tty[8800:a]``."""
    return f"--external={resource}"


def command(criu: Criu, call: Call) -> list[str]:
    """Return the whole command line of `call`."""
    verb = ["cpuinfo", "dump"] if call.action is Action.CPUINFO else [call.action.value]
    arguments = [*_program(criu, call.action), *verb, "--no-default-config", f"-v{call.verbosity}"]
    images, work = (call.images, call.work) if call.folders is None else (f"/proc/self/fd/{folder}" for folder in call.folders)
    if call.action is not Action.CHECK:
        arguments += ["-D", images]
    arguments += ["-W", work, "-o", log_name_of(call), "-L", PLUGINS]
    if call.action in (Action.DUMP, Action.PRE_DUMP):
        arguments += ["--timeout", str(max(1, math.ceil(call.timeout_s))), f"--network-lock={criu.network_lock}"]
    if call.action_script:
        arguments += ["--action-script", call.action_script]
    if call.root is not None:
        arguments += ["--tree", "1" if call.is_inside else str(call.root)]
    return [*arguments, *call.options]


def _program(criu: Criu, action: Action) -> list[str]:
    if criu.prefix is None or not wants_preload(criu, action):
        return list(criu.argv)
    # Through the prefix's own loader, so that what CRIU starts itself does not inherit it.
    loader, *rest = criu.argv
    return [loader, "--preload", str(criu.preload), *rest]


def wants_preload(criu: Criu, action: Action) -> bool:
    """Tell whether `action` needs the prlimit library here."""
    return criu.needs_prlimit_preload and criu.preload is not None and action in (Action.DUMP, Action.PRE_DUMP)


def log_name_of(call: Call) -> str:
    """Return the name of the log in the folder `work`."""
    return call.log_name or f"{call.action.value}.log"


def mortal(criu: Criu) -> Criu:
    """Return `criu`, to be started by this process and ended by the kernel when the thread that starts it ends.

    A dump whose supervisor was killed would otherwise hang for ever: the tree's init, ended by the kernel, waits for its children, which
    CRIU holds, and CRIU waits for the init. Without setpriv the next run ends it.
    """
    setpriv = shutil.which("setpriv", path="/usr/bin:/bin")
    if setpriv is None:
        return criu
    program, *rest = criu.argv
    has_loader = criu.prefix is not None and criu.needs_prlimit_preload and criu.preload is not None
    preload = ("--preload", str(criu.preload)) if has_loader else ()
    # Where we ended before the kernel was asked for that, nobody would end it: then it has another parent by now, and does not begin.
    # A parent outside its PID namespace is 0.
    still_ours = ("/bin/sh", "-c", 'case "$PPID" in "$0" | 0) exec "$@" ;; *) exit 1 ;; esac', str(os.getpid()))
    argv = (setpriv, "--pdeathsig", "KILL", "--", *still_ours, program, *preload, *rest)
    return msgspec.structs.replace(criu, argv=argv, needs_prlimit_preload=criu.needs_prlimit_preload and not has_loader)
