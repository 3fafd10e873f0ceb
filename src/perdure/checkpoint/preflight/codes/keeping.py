"""Codes of what befalls a workload while it is brought back and kept: said by `run` and `restore`, and told to programs as events."""

from __future__ import annotations

from perdure.checkpoint.preflight.codes.code import Code, Group
from perdure.model.finding import Severity

_W = Severity.WARNING

GROUP = Group(
    "While a workload is kept",
    (
        Code("restore-log-cut", _W, "what the log held beyond the checkpoint was cut off, and is kept beside it", ""),
        Code(
            "restore-stream-changed",
            _W,
            "the file that stdout or stderr leads to was brought to what it was at the checkpoint; what was cut off is kept beside it",
            "",
        ),
        Code("process-left-behind", _W, "a supervisor that was killed left something of the workload, which is ended or cleared away", ""),
        Code("process-still", _W, "no process of the workload has run since the checkpoint before: it waits for something, or hangs", ""),
        Code(
            "process-no-time-to-save",
            _W,
            "a checkpoint takes longer than the scheduler leaves at a preemption: the workload goes back to the one before then",
            "",
        ),
        Code("store-life-unended", _W, "another life of the workload gave no sign of its end: it is watched until that is clear", ""),
        Code(
            "host-output-lost",
            _W,
            "what the workload writes cannot be written to the console's log, or cannot be passed on to where stdout and stderr lead",
            "make room",
        ),
        Code("host-staging-left", _W, "a folder that images lay in cannot be removed", "remove it"),
    ),
)
