"""The exit test: does the workload run without Perdure? The plan's own command is run, and what came of it kept. Called by `eval report`.

The commands that remove Perdure are a person's to run: they are shown, never run here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from typing import IO

import msgspec

from perdure import errors
from perdure.evaluation import lines
from perdure.evaluation.folder import Folder
from perdure.evaluation.plan import Plan
from perdure.evaluation.this_machine import Signature

EXIT_TESTS = "exit-tests.jsonl"
_LONGEST_BYTES = 4000
_PATIENCE_S = 3600.0


class ExitTest(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the plan's ``exit.test``."""

    signed: Signature
    command: tuple[str, ...]
    exit_status: int | None
    """None: it did not end in time and was killed."""
    duration_s: float
    output: str
    """Its last words; untrusted."""

    @property
    def passed(self) -> bool:
        """Whether it ended with 0."""
        return self.exit_status == 0


def run(folder: Folder, plan: Plan, *, signed: Signature, clock: Callable[[], float]) -> ExitTest:
    """Run the plan's ``exit.test``, keep what came of it in `EXIT_TESTS`, and return it.

    Raises `errors.UsageError` when the plan has none, `errors.CommandMissing` when it cannot be started, and what writing raises.
    """
    command = plan.way_out.test
    if not command:
        raise errors.UsageError("the plan has no exit test", hint="write exit.test: a command that shows that the workload runs without us")
    with tempfile.TemporaryFile() as said:
        begun_s = clock()
        exit_status = _run(command, plan.workload.working_directory, said)
        duration_s = clock() - begun_s
        said.seek(max(0, said.seek(0, os.SEEK_END) - _LONGEST_BYTES))
        output = said.read().decode("utf-8", "replace")
    test = ExitTest(signed=signed, command=command, exit_status=exit_status, duration_s=duration_s, output=output)
    lines.append(folder.path, EXIT_TESTS, msgspec.json.encode(test))
    return test


def read(folder: Folder) -> tuple[ExitTest, ...]:
    """Return every exit test that was run, in order. Raises `errors.InputFormat`, and what `lines.read` raises."""
    try:
        return tuple(msgspec.json.decode(line, type=ExitTest) for line in lines.read(folder.path, EXIT_TESTS).lines)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.InputFormat(
            f"{folder.path / EXIT_TESTS} holds a line that is no exit test: {error}", hint="put a copy back"
        ) from error


def _run(command: tuple[str, ...], working_directory: str | None, said: IO[bytes]) -> int | None:
    try:
        process = subprocess.Popen(
            command, cwd=working_directory, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        raise errors.CommandMissing(f"exit.test: {command[0]}: {error.strerror}", hint="correct exit.test, with an amendment") from error
    with process:
        try:
            return process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
