"""The composition root: the tree of commands, and the one place where errors become exit statuses.

Command modules are named by text and imported when they are called, so that each command pays only for its own room.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, cast

import cyclopts

from perdure import errors
from perdure._version import __version__
from perdure.base import files
from perdure.cli import console, programs

_EPILOGUE = """Examples:

  perdure history simulate --seed 1 -o fleet && perdure advise fleet/sacct.txt

  perdure history pull --days 90 -o attempts.parquet && perdure advise attempts.parquet --html report.html

  perdure run --every 10m -- python train.py

  perdure decide --gpus 1024 --work 24h --mttf 7.9h

Exit status: 0 done, 1 a bug of ours, 2 usage, 3 done in part, 4 findings, 10 no store, 11 locked, 12 wrong key, 13 corrupt,
20 environment unfit, 21 target gone, 22 unsupported, 30 scheduler unavailable, 75 try later, 128+n signal."""

COMMANDS: dict[str, str] = {
    "check": "perdure.cli.check:check",
    "run": "perdure.cli.run:run",
    "ps": "perdure.cli.ps:ps",
    "logs": "perdure.cli.logs:logs",
    "checkpoint": "perdure.cli.checkpoint:checkpoint",
    "restore": "perdure.cli.restore:restore",
    "stop": "perdure.cli.stop:stop",
    "suspend": "perdure.cli.suspend:suspend",
    "resume": "perdure.cli.resume:resume",
    "rm": "perdure.cli.rm:rm",
    "without-io-uring": "perdure.cli.without_io_uring:without_io_uring",
    "agent": "perdure.cli.agent:agent",
    "doctor": "perdure.cli.doctor:doctor",
    "advise": "perdure.cli.advise:advise",
    "decide": "perdure.cli.decide:decide",
    "interval": "perdure.cli.interval:interval",
    "completion": "perdure.cli.completion:completion",
}
GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "history": (
        "Read a cluster's accounting history.",
        {
            "import": "perdure.cli.history_import:import_",
            "pull": "perdure.cli.history_pull:pull",
            "show": "perdure.cli.history_show:show",
            "anonymise": "perdure.cli.history_anonymise:anonymise",
            "simulate": "perdure.cli.history_simulate:simulate",
        },
    ),
    "store": (
        "Look after the store that checkpoints are kept in.",
        {
            "ls": "perdure.cli.store_ls:ls",
            "show": "perdure.cli.store_show:show",
            "verify": "perdure.cli.store_verify:verify_",
            "prune": "perdure.cli.store_prune:prune_",
            "pin": "perdure.cli.store_pin:pin",
            "gc": "perdure.cli.store_gc:gc_",
            "export": "perdure.cli.store_export:export",
            "import": "perdure.cli.store_import:import_",
            "stats": "perdure.cli.store_stats:stats_",
        },
    ),
    "eval": (
        "Did it pay: plan, run both ways, break both, report.",
        {
            "init": "perdure.cli.eval_init:init",
            "baseline": "perdure.cli.eval_baseline:baseline",
            "lock": "perdure.cli.eval_lock:lock",
            "amend": "perdure.cli.eval_amend:amend",
            "run": "perdure.cli.eval_run:run",
            "inject": "perdure.cli.eval_inject:inject",
            "matrix": "perdure.cli.eval_matrix:matrix",
            "report": "perdure.cli.eval_report:report",
            "coldstart": "perdure.cli.eval_coldstart:coldstart",
            "status": "perdure.cli.eval_status:status",
        },
    ),
    "effects": (
        "See and settle what jobs did outside, once.",
        {
            "ls": "perdure.cli.effects_ls:ls",
            "show": "perdure.cli.effects_show:show",
            "resolve": "perdure.cli.effects_resolve:resolve",
            "prune": "perdure.cli.effects_prune:prune",
            "export": "perdure.cli.effects_export:export",
        },
    ),
    "slurm": (
        "Put Perdure on a Slurm cluster, say whom it covers, and take it out again.",
        {
            "install": "perdure.cli.slurm_install:install",
            "uninstall": "perdure.cli.slurm_uninstall:uninstall",
            "payload": "perdure.cli.slurm_payload:payload",
            "policy": "perdure.cli.slurm_policy:policy_",
            "status": "perdure.cli.slurm_status:status",
            "seat": "perdure.cli.slurm_seat:seat",
        },
    ),
    "config": (
        "See what is configured, and where each value came from.",
        {"show": "perdure.cli.config:show"},
    ),
}


def build(*, summaries: bool = False) -> cyclopts.App:
    """Build the command tree. With `summaries`, all command modules are imported, so that lists of commands can describe them."""
    app = cyclopts.App(
        name="perdure",
        help="Retry or resume: which GPU jobs are worth saving, from a cluster's own accounting history.",
        help_epilogue=_EPILOGUE,
        help_format="markdown",
        version=f"perdure {__version__}",
        console=console.Stream(highlight=False),
        exit_on_error=False,
        print_error=False,
        help_on_error=False,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )

    def add(parent: cyclopts.App, name: str, target: str) -> None:
        parent.command(_resolve(target) if summaries else target, name=name, help_epilogue="")

    for name, target in COMMANDS.items():
        add(app, name, target)
    for name, (help_text, members) in GROUPS.items():
        group = cyclopts.App(name=name, help=help_text, help_epilogue="")
        for member, target in members.items():
            add(group, member, target)
        app.command(group)
    return app


def _resolve(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    return cast("Callable[..., Any]", getattr(importlib.import_module(module), function))


def run(argv: list[str]) -> int:
    """Run one command line and return its exit status."""
    as_json = False
    try:
        tree = build(summaries=len(argv) <= 2 and argv[-1] in ("--help", "-h", *GROUPS))
        ours, programs_own = programs.set_apart(tree, argv)
        as_json = "--json" in ours
        status = tree([*ours, *programs_own])
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        raise
    except Exception as error:  # the top of a command
        if _is_interrupted_query(error):
            return _interrupted()
        deliberate = _deliberate(error)
        if deliberate is None:
            return _report_bug(error)
        if isinstance(deliberate, errors.OutputError):
            files.give_up_unwritable_stdout()
        _report(deliberate, as_json=as_json)
        return deliberate.exit_status
    return status if isinstance(status, int) else 0


def _interrupted() -> int:
    console.err().print("perdure: interrupted")
    return 128 + 2


def _is_interrupted_query(error: Exception) -> bool:
    """Tell whether Ctrl-C came while DuckDB worked, which makes an error of its own of it."""
    return type(error).__name__ == "InterruptException" or (isinstance(error, RuntimeError) and str(error) == "Query interrupted")


def _deliberate(error: Exception) -> errors.PerdureError | None:
    """Return what a person should be told, or None when `error` is a bug of ours."""
    match error:
        case errors.PerdureError():
            return error
        case cyclopts.CycloptsError():
            return errors.UsageError(" ".join(str(error).split()), hint="see perdure --help")
        case ImportError():
            return _missing_extra(error)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG, filename=None):
            return errors.OutputError(f"cannot write to stdout: {error.strerror}", hint="free some space, or write elsewhere")
        case OSError(filename=str() | bytes()) if error.errno in _OF_PATHS:
            return errors.EnvironmentUnfit(
                f"{os.fsdecode(error.filename)}: {error.strerror}", hint="name a place that is there and that you may use"
            )
    return None


_OF_PATHS = frozenset(
    (errno.EACCES, errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EROFS, errno.ELOOP)
)  # fmt: skip
"""What a path may have that somebody named. Commands tell of it in better words where they look for it."""


def _report_bug(error: Exception) -> int:
    if os.environ.get("PERDURE_DEBUG"):
        traceback.print_exception(error)
    console.err().print(f"perdure: bug: {type(error).__name__}: {console.printable(str(error))}")
    console.err().print("  This is a fault in Perdure. Run again with PERDURE_DEBUG=1 and report what it prints.")
    return 1


_EXTRAS = {"duckdb": "advise", "numpy": "advise", "scipy": "advise", "altair": "advise", "vl_convert": "advise", "jinja2": "advise"}
"""Libraries of the extras, by the name they are imported with."""


def _missing_extra(error: ImportError) -> errors.MissingExtra | None:
    """Find the library of an extra that `error`, or what led to it, failed to import."""
    cause: BaseException | None = error
    while cause is not None:
        library = (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""
        if library in _EXTRAS:
            return errors.MissingExtra(
                f"this command needs {library}, which is not installed", hint=f"pip install 'perdure[{_EXTRAS[library]}]'"
            )
        cause = cause.__cause__ or cause.__context__
    return None


def _report(error: errors.PerdureError, *, as_json: bool) -> None:
    if as_json:
        import msgspec

        from perdure.base.text import visible

        told: dict[str, Any] = {"code": error.code, "message": visible(str(error)), "hint": visible(error.hint)}
        told["retryable"] = error.retryable
        if isinstance(error, errors.CheckpointRefused | errors.RestoreRefused) and error.findings:
            told["findings"] = error.findings
        console.write_json(sys.stderr, msgspec.json.encode({"error": told}))
        return
    text = f"perdure: {console.printable(str(error))}"
    console.err().print(f"{text} ({console.printable(error.hint)})" if error.hint else text)
