"""A commented plan to begin with. Called by `perdure eval init`.

What is known is written; what only a person can know stands there as a comment with an example, so that it cannot be locked by accident.
The words beside each key are those that the plan's records describe it with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from perdure import errors
from perdure.evaluation import typed_toml
from perdure.evaluation.plan import Plan
from perdure.model.evaluation import FORMAT


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a plan is begun, from flags and from this machine. None: it is not."""

    name: str
    command: tuple[str, ...] = ()
    working_directory: str
    owner: str | None = None
    made_for_evaluation: bool | None = None
    gpus: int = 0
    pattern: str | None = None
    where: str = "local"
    nodes: tuple[str, ...] = ()
    queue: str | None = None
    window_s: float | None = None
    repetitions: int | None = None
    seed: int
    kinds: tuple[str, ...] = ()
    versions: dict[str, tuple[str, ...]] = {}


class _Row(msgspec.Struct, frozen=True):
    key: str
    value: Any
    """None: not known; the example stands there as a comment."""
    example: Any = None


class _Table(msgspec.Struct, frozen=True):
    name: str
    rows: tuple[_Row, ...]
    above: str = ""
    """What a reader should know before the table."""
    is_comment: bool = False
    """The whole table stands there as a comment."""
    brackets: tuple[str, str] = ("[", "]")


def write(known: Known) -> str:
    """Return the text of a plan. Raises `errors.UsageError` for text that is not UTF-8, which TOML cannot hold."""
    described = typed_toml.describe(Plan)
    parts = [_HEAD]
    for table in _tables(known):
        parts.append("\n" + "".join(f"# {line}\n" for line in table.above.splitlines()) + _header(table))
        parts += [_line(table, row, described) for row in table.rows]
    return "".join(parts)


_HEAD = """\
# The plan of an evaluation: does it pay to let Perdure keep this workload?
# A line that begins with # and holds a key is to be filled in, or stays as it is where it does not apply.
# perdure eval status says what is missing; perdure eval lock fixes the plan before there are data. Durations are in seconds.
"""


def _tables(known: Known) -> Iterator[_Table]:
    yield _Table("evaluation", (_Row("name", known.name), _Row("format", FORMAT)))
    yield from _workload(known)
    yield _Table(
        "baseline",
        (_Row("repetitions", 3), _Row("history", None, "attempts.parquet")),
        "2. What it does today: perdure eval baseline measures it, unmanaged, on the nodes below.",
    )
    yield from _success()
    yield _Table(
        "exit",
        (
            _Row("commands", None, [["perdure", "stop", known.name], ["perdure", "rm", known.name]]),
            _Row("who", None, "CHANGE-ME: a person or a group"),
            _Row("test", None, ["python", "train.py", "--steps", "10"]),
        ),
        "4. The way out: how the site stops using Perdure.",
    )
    yield from _schedule(known)


def _workload(known: Known) -> Iterator[_Table]:
    yield _Table(
        "workload",
        (
            _Row("command", list(known.command) or None, ["python", "train.py"]),
            _Row("working_directory", known.working_directory),
            _Row("owner", known.owner, "CHANGE-ME: a person or a group"),
            _Row("made_for_evaluation", known.made_for_evaluation, False),
            _Row("setup", None, ["rm", "-f", "train.log"]),
            _Row("gpus", known.gpus),
            _Row("nodes", 1),
        ),
        "1. The workload, as its owners really run it.",
    )
    yield _Table(
        "workload.progress",
        (
            _Row("kind", "log"),
            _Row("pattern", known.pattern, "step ([0-9]+)"),
            _Row("path", None, "train.log"),
            _Row("url", None, "http://127.0.0.1:8000/metrics"),
            _Row("metric", None, "requests_total"),
            _Row("unit", "step"),
            _Row("target", None, 1000),
            _Row("heartbeat_s", 60),
        ),
        "The workload's own counter: both arms are watched by it.",
        is_comment=known.pattern is None,
    )
    yield _Table(
        "workload.own_checkpoint",
        (_Row("kind", "none"), _Row("pattern", None, "saved at step ([0-9]+)"), _Row("glob", None, "output/step-*.pt")),
        'What survives a fault today: "none", a line in the log, or files.',
        is_comment=True,
    )
    yield _Table(
        "workload.ready",
        (
            _Row("kind", "http"),
            _Row("pattern", None, "ready to serve"),
            _Row("path", None, "ready"),
            _Row("url", "http://127.0.0.1:8000/health"),
            _Row("command", None, ["curl", "-f", "http://127.0.0.1:8000/health"]),
            _Row("timeout_s", 1800),
        ),
        "For perdure eval coldstart: the state at which both clocks end.",
        is_comment=True,
    )
    yield _Table(
        "workload.requests",
        (
            _Row("url", "http://127.0.0.1:8000/embed"),
            _Row("method", "POST"),
            _Row("body", '{"text": "the same question"}'),
            _Row("content_type", "application/json"),
        ),
        "For perdure eval coldstart: requests whose answers must be the same after a restore.",
        is_comment=True,
        brackets=("[[", "]]"),
    )


def _success() -> Iterator[_Table]:
    above = "3. Success: the number that each measure must reach, and why that number. Seconds, hours or shares, from 0 to 1."
    bounds: dict[str, tuple[_Row, ...]] = {
        "recovery-time": (_Row("at_most", 300), _Row("ratio_at_most", None, 0.5)),
        "work-lost": (_Row("at_most", None, 0.25), _Row("ratio_at_most", 0.2)),
        "utilisation": (_Row("at_least", None, 0.9), _Row("gain_at_least", 0.05)),
        "overhead": (_Row("at_most", 0.02),),
    }
    for name, rows in bounds.items():
        reason = _Row("reason", "CHANGE-ME: why this number, such as what is lost beyond it")
        yield _Table(f"success.{name}", (*rows, reason), above, is_comment=True)
        above = ""


def _schedule(known: Known) -> Iterator[_Table]:
    yield _Table(
        "site",
        (
            _Row("where", known.where),
            _Row("nodes", list(known.nodes) or None, ["node001"]),
            _Row("queue", known.queue, "gpu"),
            _Row("repetitions", 5 if known.repetitions is None else known.repetitions),
            _Row("level", 0.9),
        ),
        "Where, when and how often.",
    )
    yield _Table(
        "site.window",
        (
            _Row("start", None, _Bare("2026-12-01T08:00:00Z")),
            _Row("end", None, _Bare("2026-12-15T08:00:00Z")),
            _Row("duration_s", 1209600 if known.window_s is None else known.window_s),
        ),
        is_comment=known.window_s is None,
    )
    yield _Table(
        "site.slurm",
        (
            _Row("options", ["--time=60"]),
            _Row("lose_node", None, ["ssh", "{node}", "echo b >/proc/sysrq-trigger"]),
            _Row("return_node", None, ["power", "on", "{node}"]),
            _Row("exhaust_memory", None, ["site-fault", "memory", "{node}", "{job}"]),
            _Row("fill_disk", None, ["site-fault", "fill-disk", "{node}", "{job}"]),
            _Row("free_disk", None, ["site-fault", "free-disk", "{node}", "{job}"]),
            _Row("kill_agent", None, ["site-fault", "agent", "{node}", "{job}"]),
            _Row("preemptor", None, ["--partition=urgent", "--exclusive"]),
        ),
        "What only this site knows, for runs that Slurm starts." if known.where == "slurm" else "",
        is_comment=True,
    )
    yield _Table(
        "faults",
        (
            _Row("seed", known.seed),
            _Row("kinds", list(known.kinds) or None, ["kill", "node-lost", "hang"]),
            _Row("at_progress", None, [200, 500, 800]),
            _Row("rate_per_hour", None, 0.5),
            _Row("grace_s", 30),
            _Row("time_limit_s", None, 3600),
            _Row("disk_path", None, "output"),
        ),
        "What is broken, the same in both arms: at these counters, or at a rate.",
    )
    yield _Table(
        "arms",
        (_Row("managed_options", None, ["--every", "10m"]), _Row("order", "alternating"), _Row("warm_up_s", 0), _Row("requeue_delay_s", 0)),
        "The one thing that differs: the same command under perdure run, with these options.",
    )
    versions = tuple(_Row(name, list(command)) for name, command in known.versions.items())
    yield _Table(
        "versions",
        versions or (_Row("torch", None, ["python", "-c", "import torch; print(torch.__version__)"]),),
        "Commands whose first line of output is recorded with every run.",
    )


class _Bare(str):
    """A value that TOML writes without quotes."""

    __slots__ = ()


def _header(table: _Table) -> str:
    return f"{'# ' if table.is_comment else ''}{table.brackets[0]}{table.name}{table.brackets[1]}\n"


def _line(table: _Table, row: _Row, described: dict[str, str]) -> str:
    value = row.example if row.value is None else row.value
    is_comment = table.is_comment or row.value is None
    words = described.get(f"{table.name}.{row.key}", "")
    return f"{'# ' if is_comment else ''}{row.key} = {toml(value)}{f'  # {words}' if words else ''}\n"


def toml(value: Any) -> str:
    """Return a value of a plan as TOML. Raises `errors.UsageError` for text that is not UTF-8."""
    match value:
        case _Bare():
            return value
        case str():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise errors.UsageError(
                    f"{value!r} is not UTF-8: a plan cannot hold it", hint="rename it, or start a script that does"
                ) from error
            # JSON's strings are TOML's, but for one control character that JSON leaves as it is.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool():
            return str(value).lower()
        case list() | tuple():
            return f"[{', '.join(toml(item) for item in value)}]"
    return repr(value) if isinstance(value, float) and not value.is_integer() else str(int(value))
