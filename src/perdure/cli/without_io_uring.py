"""`perdure without-io-uring`: start a program that does not find what no checkpoint can hold."""

from __future__ import annotations

import os
import signal
from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.base import syscalls
from perdure.cli import console


def without_io_uring(
    *command: Annotated[str, Parameter(help="Command and its arguments; -- may stand before it.")],
    common: console.Common = console.Common(),  # noqa: ARG001  # errors are told by it
) -> None:
    """Start a program that does not find io_uring, which no checkpoint can hold: it does what it does on kernels without it.

    For programs with no switch of their own, such as `torchrun`. Where you are not root, what they start gains no rights (`sudo`).

    For example:

      perdure without-io-uring -- torchrun --standalone --nproc-per-node=8 train.py

      perdure run -- perdure without-io-uring -- torchrun --standalone --nproc-per-node=8 train.py
    """
    if not command:
        raise errors.UsageError(
            "there is no command to run", hint="write it after --, as in: perdure without-io-uring -- torchrun --standalone train.py"
        )
    try:
        syscalls.deny(syscalls.IO_URING_SETUP)
    except OSError as error:
        raise errors.EnvironmentUnfit(
            f"this kernel cannot keep io_uring from a program: {error.strerror}", hint="as root: sysctl kernel.io_uring_disabled=2"
        ) from error
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and a program would go on so
    try:
        os.execvp(command[0], command)  # noqa: S606  # what the user asks for
    except (FileNotFoundError, NotADirectoryError) as error:
        raise errors.CommandMissing(f"{command[0]}: command not found", hint="check the name, and PATH") from error
    except OSError as error:
        raise errors.CommandRefused(f"{command[0]} cannot be run: {error.strerror}", hint="see that it is a program you may run") from error
