"""Every deliberate error of Perdure.

An error says what happened, why, and what to do next, in that order: the message holds the first two, `hint` the third.
Callers decide on `code` and `retryable`, never on text. `exit_status` is what the command line ends with.

::

    PerdureError                    code              exit
    ├── UsageError                  usage             2    the request itself is wrong
    │   ├── SettingError            setting           2    a configuration key or value is wrong
    │   ├── QuantityError           quantity          2    a duration, size or number cannot be read
    │   ├── CommandRefused          command-refused   126  the command to run may not be executed
    │   └── CommandMissing          command-missing   127  the command to run is not there
    ├── InputError                  input             2    a file given by the caller cannot be used
    │   ├── InputMissing            input-missing     2    it is not there, or is not a file
    │   ├── InputDenied             input-denied      2    the caller may not read it
    │   │   └── LinkInPath          link-in-path      2    a part of the path is a link, or not what it should be
    │   ├── InputFormat             input-format      2    it is not what it should be
    │   └── InputEmpty              input-empty       2    there is nothing in it to work on
    ├── OutputError                 output            20   a result cannot be written where it was asked for
    ├── PartialResult               partial           3    done in part; what is missing is named
    ├── Findings                    findings          4    a check found something
    │   ├── PlanUnfinished          plan-unfinished   4    the plan of an evaluation lacks something; it is named
    │   └── PlanChanged             plan-changed      4    the plan is not the one that was locked, and no amendment says why
    ├── EnvironmentUnfit            environment       20   something this machine lacks
    │   ├── GpuUnavailable          gpu-unavailable   20   there is no CUDA driver that answers, or nothing to speak to it with
    │   └── MissingExtra            missing-extra     20   an optional dependency is not installed
    ├── Unsupported                 unsupported       22   known, and not done by Perdure
    ├── SchedulerUnavailable        scheduler         30   Slurm's commands or daemons do not answer (retryable)
    ├── AgentUnavailable            agent             75   the node's agent does not answer, or refuses for now (retryable)
    ├── EffectError                 effect            75   an outside step cannot go on as asked
    │   ├── EffectBusy              effect-busy       75   another process is at it (retryable)
    │   ├── EffectInDoubt           effect-in-doubt   75   nobody knows whether it happened
    │   ├── EffectNotDone           effect-not-done   75   raised by a step: nothing reached the outside (retryable)
    │   ├── EffectChanged           effect-changed    2    the key was used with other inputs
    │   ├── EffectLost              effect-lost       75   the holder was replaced; its late result is refused
    │   ├── EffectUnkept            effect-unkept     3    it happened; its result was too large or not JSON
    │   └── EffectUnrecorded        effect-unrecorded 75   it happened; the ledger cannot be written now (retryable)
    ├── StaleLife                   stale-life        11   a newer life of this workload has begun
    ├── StoreError                  store             20   the checkpoint store cannot be used
    │   ├── StoreMissing            store-missing     10   there is none
    │   ├── StoreLocked             store-locked      11   somebody else is at work in it (retryable)
    │   ├── StoreKeyWrong           store-key         12   the key file is not the one it was made with
    │   ├── StoreCorrupt            store-corrupt     13   something in it is damaged; the object is named
    │   │   ├── CheckpointDamaged   checkpoint-damaged 13  found while it was being restored; an older one may be whole
    │   │   └── ObjectUnreadable    object-unreadable 13   the disk gives out other objects, and not this one
    │   ├── StoreFormat             store-format      22   made by a newer Perdure
    │   ├── StoreUnavailable        store-away        75   it does not answer, or refuses for now (retryable)
    │   │   └── StoreFull           store-full        75   no room for what was to be written (retryable)
    │   ├── ObjectMissing           object-missing    13   an object is not there
    │   └── ObjectExists            object-exists     11   create-if-absent met an object of that name
    ├── CheckpointFailed            checkpoint        20   no checkpoint was made; the workload goes on
    │   ├── CheckpointLater         checkpoint-later  75   the workload must not be saved at this very moment (retryable)
    │   ├── CheckpointRefused       checkpoint-refused 22  a check found what forbids it; the findings are attached
    │   └── WorkloadLost            workload-lost     20   CRIU or the CUDA driver took the workload with it; it can be resumed
    ├── GpuFailed                   gpu               20   the CUDA driver did not do what it was asked; what became of it is said
    ├── RestoreFailed               restore           20   the workload was not brought back; nothing was lost
    │   └── RestoreRefused          restore-refused   22   a check found what forbids it here; the findings are attached
    ├── WorkloadMissing             workload-missing  21   there is no such workload, checkpoint or process, or not any more
    │   └── ProcessGone             process-gone      21   a process is not there, or not any more
    ├── WorkloadBusy                workload-busy     11   it is running already, here or elsewhere (retryable)
    └── LedgerError                 ledger            20   the effects ledger cannot be used
        ├── LedgerMissing           ledger-missing    10   there is none
        ├── LedgerUnavailable       ledger-away       75   it does not answer or has no room (retryable)
        │   └── LedgerLocked        ledger-locked     75   another transaction holds it (retryable)
        ├── LedgerUnsafe            ledger-unsafe     20   somebody else could change it
        ├── LedgerSchema            ledger-schema     22   made by a newer Perdure
        └── LedgerCorrupt           ledger-corrupt    13   it is damaged, or is not a ledger
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "AgentUnavailable",
    "CheckpointFailed",
    "CheckpointLater",
    "CheckpointRefused",
    "CommandMissing",
    "CommandRefused",
    "EffectBusy",
    "EffectChanged",
    "EffectError",
    "EffectInDoubt",
    "EffectLost",
    "EffectNotDone",
    "EffectUnkept",
    "EffectUnrecorded",
    "EnvironmentUnfit",
    "Findings",
    "GpuFailed",
    "GpuUnavailable",
    "InputDenied",
    "InputEmpty",
    "InputError",
    "InputFormat",
    "InputMissing",
    "LedgerCorrupt",
    "LedgerError",
    "LedgerLocked",
    "LedgerMissing",
    "LedgerSchema",
    "LedgerUnavailable",
    "LedgerUnsafe",
    "LinkInPath",
    "MissingExtra",
    "ObjectExists",
    "ObjectMissing",
    "ObjectUnreadable",
    "OutputError",
    "PartialResult",
    "PerdureError",
    "PlanChanged",
    "PlanUnfinished",
    "ProcessGone",
    "QuantityError",
    "RestoreFailed",
    "RestoreRefused",
    "SchedulerUnavailable",
    "SettingError",
    "StaleLife",
    "StoreCorrupt",
    "StoreError",
    "StoreFormat",
    "StoreFull",
    "StoreKeyWrong",
    "StoreLocked",
    "StoreMissing",
    "StoreUnavailable",
    "Unsupported",
    "UsageError",
    "WorkloadBusy",
    "WorkloadLost",
    "WorkloadMissing",
]


class PerdureError(Exception):
    """Base of all deliberate errors: `str(error)` is one line, `hint` (may be empty) says what to do next."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def in_words(self) -> str:
        """What happened and, in brackets, what to do next: for where an error is told and not raised."""
        return f"{self} ({self.hint})" if self.hint else str(self)


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


class CommandRefused(UsageError):
    """The command to run is there and may not be executed. The exit status is the one that shells use for it."""

    code = "command-refused"
    exit_status = 126


class CommandMissing(UsageError):
    """The command to run is not there. The exit status is the one that shells use for it."""

    code = "command-missing"
    exit_status = 127


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


class LinkInPath(InputDenied):
    """A part of a path is a link, or no folder, or no regular file: it does not lead where it was said to lead."""

    code = "link-in-path"


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


class PlanUnfinished(Findings):
    """The plan of an evaluation is not complete or not concrete; `lacks` says in what."""

    code = "plan-unfinished"

    def __init__(self, message: str, *, hint: str = "", lacks: tuple[Any, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.lacks = lacks


class PlanChanged(Findings):
    """The plan of an evaluation, its lock or what the lock stands on was changed afterwards, and no amendment says so."""

    code = "plan-changed"


class EnvironmentUnfit(PerdureError):
    """This machine lacks something that the command needs."""

    code = "environment"
    exit_status = 20


class GpuUnavailable(EnvironmentUnfit):
    """There is no CUDA driver that answers, or no bindings to speak to it with."""

    code = "gpu-unavailable"


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


class AgentUnavailable(PerdureError):
    """The node's agent does not answer, or refuses for now."""

    code = "agent"
    exit_status = 75
    retryable = True


class EffectError(PerdureError):
    """An outside step cannot go on as asked.

    `key` is the step's key. `result` is what the step returned where it ran and its result could not be recorded, so
    that the caller loses nothing; None otherwise.
    """

    code = "effect"
    exit_status = 75

    def __init__(self, message: str, *, hint: str = "", key: str = "", result: Any = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key
        self.result = result


class EffectBusy(EffectError):
    """Another process is doing the step, and did not finish within the time that the caller would wait."""

    code = "effect-busy"
    retryable = True


class EffectInDoubt(EffectError):
    """The step was begun and never recorded as done: it may or may not have happened, and is not run again."""

    code = "effect-in-doubt"


class EffectNotDone(EffectError):
    """Raise it inside a step to say that nothing reached the outside: the step is not in doubt and may run again."""

    code = "effect-not-done"
    retryable = True


class EffectChanged(EffectError):
    """The key was used before with other inputs."""

    code = "effect-changed"
    exit_status = 2


class EffectLost(EffectError):
    """The holder was silent for longer than its lease and was replaced: its late result is refused."""

    code = "effect-lost"


class EffectUnkept(EffectError):
    """The step happened and is recorded as done; its result was too large or not JSON and is not kept."""

    code = "effect-unkept"
    exit_status = 3


class EffectUnrecorded(EffectError):
    """The step happened, and the ledger cannot be written now; the same call in the same process records it later."""

    code = "effect-unrecorded"
    retryable = True


class StaleLife(PerdureError):
    """A newer life of this workload has begun: this one must not act any more."""

    code = "stale-life"
    exit_status = 11


class StoreError(PerdureError):
    """The checkpoint store cannot be used."""

    code = "store"
    exit_status = 20


class StoreMissing(StoreError):
    """There is no store at the place that was named."""

    code = "store-missing"
    exit_status = 10


class StoreLocked(StoreError):
    """Somebody else is at work in the store in a way that excludes this."""

    code = "store-locked"
    exit_status = 11
    retryable = True


class StoreKeyWrong(StoreError):
    """The key file is not the one that the store was made with, or is missing."""

    code = "store-key"
    exit_status = 12


class StoreCorrupt(StoreError):
    """Something in the store is damaged. `object_key` names it."""

    code = "store-corrupt"
    exit_status = 13

    def __init__(self, message: str, *, hint: str = "", object_key: str = "") -> None:
        super().__init__(message, hint=hint)
        self.object_key = object_key


class CheckpointDamaged(StoreCorrupt):
    """A checkpoint was found to be damaged while it was being restored; an older one may be whole."""

    code = "checkpoint-damaged"


class ObjectUnreadable(StoreCorrupt):
    """The disk does not give out one object, asked twice, and does give out others: to the store it is as good as damaged."""

    code = "object-unreadable"


class StoreFormat(StoreError):
    """The store, or one object in it, was made by a newer Perdure."""

    code = "store-format"
    exit_status = 22


class StoreUnavailable(StoreError):
    """The store does not answer, or refuses for now."""

    code = "store-away"
    exit_status = 75
    retryable = True


class StoreFull(StoreUnavailable):
    """The store has no room for what was to be written."""

    code = "store-full"


class ObjectMissing(StoreError):
    """An object is not there. `object_key` names it."""

    code = "object-missing"
    exit_status = 13

    def __init__(self, message: str, *, hint: str = "", object_key: str = "") -> None:
        super().__init__(message, hint=hint)
        self.object_key = object_key


class ObjectExists(StoreError):
    """Create-if-absent met an object of that name."""

    code = "object-exists"
    exit_status = 11


class CheckpointFailed(PerdureError):
    """No checkpoint was made; the workload goes on and the checkpoint before is untouched."""

    code = "checkpoint"
    exit_status = 20


class CheckpointLater(CheckpointFailed):
    """The workload must not be saved at this very moment; a moment later it may."""

    code = "checkpoint-later"
    exit_status = 75
    retryable = True


class CheckpointRefused(CheckpointFailed):
    """A check found what forbids a checkpoint now; `findings` says what."""

    code = "checkpoint-refused"
    exit_status = 22

    def __init__(self, message: str, *, hint: str = "", findings: tuple[Any, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.findings = findings


class WorkloadLost(CheckpointFailed):
    """CRIU was killed in the middle of a dump, or the CUDA driver does not let it go on: it did not end by itself, and may be resumed."""

    code = "workload-lost"


class GpuFailed(PerdureError):
    """The CUDA driver did not do what it was asked. The workload runs again, unless the message says otherwise."""

    code = "gpu"
    exit_status = 20


class RestoreFailed(PerdureError):
    """The workload was not brought back; its checkpoint is untouched."""

    code = "restore"
    exit_status = 20


class RestoreRefused(RestoreFailed):
    """A check found what forbids restoring here; `findings` says what."""

    code = "restore-refused"
    exit_status = 22

    def __init__(self, message: str, *, hint: str = "", findings: tuple[Any, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.findings = findings


class WorkloadMissing(PerdureError):
    """There is no such workload, checkpoint or process, or not any more."""

    code = "workload-missing"
    exit_status = 21


class ProcessGone(WorkloadMissing):
    """A process is not there, or not any more: an expected outcome of looking at what may end at any time."""

    code = "process-gone"


class WorkloadBusy(PerdureError):
    """The workload is running already, here or on another machine."""

    code = "workload-busy"
    exit_status = 11
    retryable = True


class LedgerError(PerdureError):
    """The effects ledger cannot be used."""

    code = "ledger"
    exit_status = 20


class LedgerMissing(LedgerError):
    """There is no ledger at the place that was named."""

    code = "ledger-missing"
    exit_status = 10


class LedgerUnavailable(LedgerError):
    """The ledger does not answer or has no room."""

    code = "ledger-away"
    exit_status = 75
    retryable = True


class LedgerLocked(LedgerUnavailable):
    """Another transaction holds the ledger, or the step, for longer than one takes."""

    code = "ledger-locked"


class LedgerUnsafe(LedgerError):
    """Somebody else could change the ledger's file or where its path leads."""

    code = "ledger-unsafe"


class LedgerSchema(LedgerError):
    """The ledger was made by a newer Perdure."""

    code = "ledger-schema"
    exit_status = 22


class LedgerCorrupt(LedgerError):
    """The ledger is damaged, or is something else."""

    code = "ledger-corrupt"
    exit_status = 13
