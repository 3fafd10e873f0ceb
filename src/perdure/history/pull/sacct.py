"""Run sacct for one question and judge the answer: its exit status, and what it said on stderr, for it can fail with 0.

The only module that starts Slurm's accounting command. It never goes through a shell.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure.history.pull import windows

DELIMITER = "|#"
"""Two characters: a single ``|`` occurs in job names, and sacct escapes nothing."""

_ENVIRONMENT = {
    "TZ": "UTC",  # local times are ambiguous once a year
    "SLURM_TIME_FORMAT": "%Y-%m-%dT%H:%M:%S",  # a user's own setting would change every time
    "SLURM_BITSTR_LEN": "0",  # pending arrays: the whole list of tasks, not its first 64 characters
    "LC_ALL": "C",
}
_STDERR_LIMIT_BYTES = 64 * 1024

_TOO_WIDE = re.compile(r"too wide of a date range", re.IGNORECASE)
_INVALID = re.compile(r"invalid field requested|has been removed|unrecognized option|invalid option", re.IGNORECASE)
_NO_ACCOUNTING = re.compile(r"accounting storage is disabled|not running a supported accounting_storage", re.IGNORECASE)
_CONFIGURATION = re.compile(r"could not establish a configuration source|unable to (?:process|open) configuration file", re.IGNORECASE)
_DENIED = re.compile(r"access/permission denied|permission denied", re.IGNORECASE)
_TROUBLE = re.compile(r"\b(?:error|fatal|failed|failure|refused|timed out)\b", re.IGNORECASE)


class Answer(enum.Enum):
    """What became of a question."""

    GOOD = "good"
    TOO_WIDE = "too wide"
    """The site limits how much time one question may span (MaxQueryTimeRange), or it took too long."""
    TRANSIENT = "transient"
    """The database or the network failed; asking again may help."""


class Result(msgspec.Struct, frozen=True):
    """One answer. `said` holds the lines on stderr that count: for GOOD, notes; else, why it failed."""

    answer: Answer
    said: tuple[str, ...] = ()


class Sacct:
    """One site's sacct, found and probed.

    `program` is a path or a name on PATH; `environ` the environment it gets, besides what Perdure sets; `timeout_s` the
    time one question may take; `cluster` the value of ``--clusters``, None for the local one.

    Raises `errors.SchedulerUnavailable` when there is no such program.
    """

    def __init__(self, program: str, *, environ: Mapping[str, str], timeout_s: float, cluster: str | None = None) -> None:
        found = shutil.which(program, path=environ.get("PATH"))
        if found is None:
            raise errors.SchedulerUnavailable(
                f"{program}: no such program",
                hint="run on a login node with Slurm's commands, give --sacct PATH, or import a dump with: perdure history import",
            )
        self.path = found
        self._environ = {**{key: value for key, value in environ.items() if not key.startswith("SACCT_")}, **_ENVIRONMENT}
        self._timeout_s = timeout_s
        self._cluster = cluster
        self._noise: frozenset[str] = frozenset()

    def probe(self) -> tuple[str, str]:
        """Ask for the version and for the fields; return both texts.

        What sacct says on stderr here, before any question, is about this machine's set-up and not about the answers; it is
        not taken for a failure later.

        Raises `errors.EnvironmentUnfit` when sacct cannot run here, `errors.SchedulerUnavailable` when it does not answer.
        """
        version, _ = self._ask_text("--version")
        listed, stderr = self._ask_text("--helpformat")
        self._noise = frozenset(_lines(stderr))
        return version.strip(), listed

    def ask(self, window: windows.Window, names: tuple[str, ...], target: Path) -> Result:
        """Ask for all attempts that overlap `window` and write sacct's text to `target` (a file that exists, and is emptied).

        Raises `errors.EnvironmentUnfit` and `errors.Unsupported` for failures that asking again cannot mend.
        """
        arguments = [
            *("--allusers", "--duplicates", "--allocations", "--parsable2", "--noconvert"),
            f"--delimiter={DELIMITER}",
            f"--starttime={window.start.isoformat()}",
            f"--endtime={window.end.isoformat()}",
            f"--format={','.join(names)}",
        ]
        if self._cluster is not None:
            arguments.append(f"--clusters={self._cluster}")
        with open(target, "wb") as output:
            status, stderr = self._run(arguments, output.fileno())
        return self._judge(status, stderr, target, names)

    def _judge(self, status: int | None, stderr: str, target: Path, names: tuple[str, ...]) -> Result:
        said = tuple(line for line in _lines(stderr) if line not in self._noise)
        if status is None:
            return Result(Answer.TOO_WIDE, (f"no answer within {self._timeout_s:g} s",))
        if _TOO_WIDE.search(stderr):
            return Result(Answer.TOO_WIDE, said)
        _raise_for_good(stderr)
        # sacct reports a lost database on stderr and still ends with 0: what it printed is then only a part.
        if status != 0 or any(_TROUBLE.search(line) for line in said):
            return Result(Answer.TRANSIENT, said or (f"exit status {status}",))
        flaw = _find_flaw(target, DELIMITER.join(names))
        if flaw is not None:
            return Result(Answer.TRANSIENT, (*said, flaw))
        return Result(Answer.GOOD, said)

    def _ask_text(self, argument: str) -> tuple[str, str]:
        with tempfile.TemporaryFile() as output:
            status, stderr = self._run([argument], output.fileno())
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        _raise_for_good(stderr)
        if status != 0:
            why = "no answer" if status is None else next(iter(reversed(_lines(stderr))), f"exit status {status}")
            raise errors.SchedulerUnavailable(
                f"{self.path} {argument}: {why}", hint=f"does it work in a shell? Try: {self.path} {argument}"
            )
        return text, stderr

    def _run(self, arguments: list[str], stdout: int) -> tuple[int | None, str]:
        """Run sacct; return its exit status (None: it was stopped, having run out of time) and what it said on stderr."""
        with tempfile.TemporaryFile() as said:
            try:
                # A session of its own: a Ctrl-C reaches us alone, and we stop sacct and whatever a wrapper started.
                process = subprocess.Popen(
                    [self.path, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=said,
                    env=self._environ,
                    start_new_session=True,
                )
            except OSError as error:
                raise errors.EnvironmentUnfit(f"cannot run {self.path}: {error.strerror}", hint="give --sacct PATH") from error
            status: int | None = None
            try:
                status = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            said.seek(0)
            return status, said.read(_STDERR_LIMIT_BYTES).decode("utf-8", "replace")


def _raise_for_good(stderr: str) -> None:
    """Raise for what asking again cannot mend."""
    last = next(iter(reversed(_lines(stderr))), "")
    if _NO_ACCOUNTING.search(stderr):
        raise errors.EnvironmentUnfit(
            f"sacct: {last}", hint="the site keeps no accounting database (AccountingStorageType); there is no history to pull"
        )
    if _CONFIGURATION.search(stderr):
        raise errors.EnvironmentUnfit(f"sacct: {last}", hint="set SLURM_CONF, or run on a node that belongs to the cluster")
    if _INVALID.search(stderr):
        raise errors.Unsupported(f"sacct: {last}", hint="its --helpformat lists fields that it then refuses: is --sacct a wrapper?")
    if _DENIED.search(stderr):
        raise errors.EnvironmentUnfit(f"sacct: {last}", hint="ask for operator rights: sacctmgr modify user NAME set adminlevel=Operator")


def _lines(text: str) -> list[str]:
    return [line.strip().removeprefix("sacct: ") for line in text.splitlines() if line.strip()]


def _find_flaw(path: Path, header: str) -> str | None:
    """Say what is wrong with an answer that sacct itself takes for good, if anything is."""
    with open(path, "rb") as handle:
        if handle.readline().rstrip(b"\r\n").decode("utf-8", "replace").casefold() != header.casefold():
            return "the answer does not begin with the fields that were asked for"
        handle.seek(-1, os.SEEK_END)
        # sacct does not notice a full disk: what it printed then ends anywhere.
        return None if handle.read(1) == b"\n" else "the answer is cut off within a line: is the disk full?"
