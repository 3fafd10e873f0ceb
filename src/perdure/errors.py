"""Every deliberate error of Perdure.

An error says what happened, why, and what to do next, in that order: the message holds the first two, `hint` the third.
Callers decide on `code` and `retryable`, never on text. `exit_status` is what the command line ends with.

::

    PerdureError                    code              exit
    ├── UsageError                  usage             2    the request itself is wrong
    │   ├── SettingError            setting           2    a configuration key or value is wrong
    │   └── QuantityError           quantity          2    a duration, size or number cannot be read
    ├── InputError                  input             2    a file given by the caller cannot be used
    │   ├── InputMissing            input-missing     2    it is not there, or is not a file
    │   ├── InputDenied             input-denied      2    the caller may not read it
    │   ├── InputFormat             input-format      2    it is not what it should be
    │   └── InputEmpty              input-empty       2    there is nothing in it to work on
    ├── OutputError                 output            20   a result cannot be written where it was asked for
    ├── PartialResult               partial           3    done in part; what is missing is named
    ├── Findings                    findings          4    a check found something
    ├── EnvironmentUnfit            environment       20   something this machine lacks
    │   └── MissingExtra            missing-extra     20   an optional dependency is not installed
    ├── Unsupported                 unsupported       22   known, and not done by Perdure
    └── SchedulerUnavailable        scheduler         30   Slurm's commands or daemons do not answer (retryable)
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "EnvironmentUnfit",
    "Findings",
    "InputDenied",
    "InputEmpty",
    "InputError",
    "InputFormat",
    "InputMissing",
    "MissingExtra",
    "OutputError",
    "PartialResult",
    "PerdureError",
    "QuantityError",
    "SchedulerUnavailable",
    "SettingError",
    "Unsupported",
    "UsageError",
]


class PerdureError(Exception):
    """Base of all deliberate errors: `str(error)` is one line, `hint` (may be empty) says what to do next."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(PerdureError):
    """The request itself is wrong."""

    code = "usage"
    exit_status = 2


class SettingError(UsageError):
    """A configuration key is unknown or its value is wrong."""

    code = "setting"


class QuantityError(UsageError):
    """A duration, size or number cannot be read or is out of range."""

    code = "quantity"


class InputError(PerdureError):
    """A file given by the caller cannot be used."""

    code = "input"
    exit_status = 2


class InputMissing(InputError):
    """The input is not there, or is not a file."""

    code = "input-missing"


class InputDenied(InputError):
    """The caller may not read the input."""

    code = "input-denied"


class InputFormat(InputError):
    """The input is not what it should be."""

    code = "input-format"


class InputEmpty(InputError):
    """The input holds nothing to work on."""

    code = "input-empty"


class OutputError(PerdureError):
    """A result cannot be written where it was asked for; nothing half-written is left."""

    code = "output"
    exit_status = 20


class PartialResult(PerdureError):
    """The work was done in part; the message names what is missing."""

    code = "partial"
    exit_status = 3


class Findings(PerdureError):
    """A check found something; the findings themselves are the result."""

    code = "findings"
    exit_status = 4


class EnvironmentUnfit(PerdureError):
    """This machine lacks something that the command needs."""

    code = "environment"
    exit_status = 20


class MissingExtra(EnvironmentUnfit):
    """An optional dependency is not installed."""

    code = "missing-extra"


class Unsupported(PerdureError):
    """A thing that Perdure knows of and does not do."""

    code = "unsupported"
    exit_status = 22


class SchedulerUnavailable(PerdureError):
    """Slurm's commands or daemons do not answer."""

    code = "scheduler"
    exit_status = 30
    retryable = True
