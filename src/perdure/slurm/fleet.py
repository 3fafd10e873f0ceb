"""Install and uninstall on many nodes: one first, then the others at once. Called by `perdure slurm install` and `uninstall`.

Each node is a matter of its own: one that fails is as it was, and is named. When the first one fails, no other is touched. The first one
also tells which store it sees, and the others must see the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from perdure.slurm import runner, site
from perdure.slurm.payload import Payload
from perdure.slurm.runner import Answer, Command, Runner
from perdure.slurm.site import Site

_INSTALL_S = 900.0
_UNINSTALL_S = 300.0
_NOT_THERE = (126, 127)
"""What shells, ssh, env and nsenter end with when a program is not there."""


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of one node."""

    node: str
    ok: bool
    outcome: dict[str, Any] | None = None
    """What the node said: an `install.Outcome` or `uninstall.Removed`; of a refusal, its findings."""
    code: str = ""
    error: str = ""
    hint: str = ""
    exit_status: int = 0


def install(
    wanted: Site,
    nodes: tuple[str, ...],
    how: Runner,
    payload: Payload,
    archive: Path,
    *,
    pythons: tuple[str, ...],
    dry_run: bool,
    at_once: int,
) -> Iterator[Result]:
    """Install the packed `archive` of `payload` on `nodes`; yield the results as they come. Ends early when the first node fails."""

    def command(store_id: str) -> Command:
        words = ["slurm", "install", "--here", "--json", "--quiet", "--payload", "{payload}", "--clock-apart", "{apart}"]
        words += [*arguments(wanted), *(["--store-id", store_id] if store_id else []), *(["--dry-run"] if dry_run else [])]
        return runner.boot(payload, archive, prefix=wanted.prefix, pythons=pythons, arguments=words)

    first, *others = nodes
    (answer,) = runner.run(how, [first], lambda: command(""), limit_s=_INSTALL_S)
    result = judge(answer)
    yield result
    if not result.ok or not others:
        return
    mark = str((result.outcome or {}).get("store_id", ""))
    for answer in runner.run(how, others, lambda: command(mark), limit_s=_INSTALL_S, at_once=at_once):
        yield judge(answer)


def arguments(wanted: Site) -> list[str]:
    """Return `wanted` as a command line has it."""
    words = ["--shim-only"] if wanted.shim_only else ["--store", wanted.store, "--lease-ttl", wanted.lease_ttl]
    words += ["--prefix", wanted.prefix]
    return words + (["--slurm", wanted.slurm] if wanted.slurm else []) + (["--replace"] if wanted.replace else [])


def uninstall(
    nodes: tuple[str, ...],
    how: Runner,
    payload: Payload,
    archive: Path,
    *,
    prefix: str = site.PREFIX,
    pythons: tuple[str, ...],
    purge: bool,
    wait: bool,
    at_once: int,
) -> Iterator[Result]:
    """Uninstall on `nodes`; yield the results as they come. With `purge`, the last one removes the checkpoints, when no other needs them.

    What is installed there takes itself out; where it cannot, the payload is sent.
    """
    words = ["slurm", "uninstall", "--here", "--json", "--quiet", *(["--wait"] if wait else [])]
    *others, last = _ordered(nodes, how, prefix=prefix, at_once=at_once) if purge else nodes
    for group, more in ((others, []), ([last], ["--purge-checkpoints"] if purge else [])):
        limit_s = 366 * 86400.0 if wait else _UNINSTALL_S
        here = Command([f"{prefix}/bin/perdure", *words, *more])
        missing = []
        for answer in runner.run(how, group, functools.partial(_same, here), limit_s=limit_s, at_once=at_once):
            if answer.status in _NOT_THERE:
                missing.append(answer.node)
            else:
                yield judge(answer)
        sent = runner.boot(payload, archive, prefix=prefix, pythons=pythons, arguments=[*words, *more])
        for answer in runner.run(how, missing, functools.partial(_same, sent), limit_s=limit_s, at_once=at_once):
            yield judge(answer)


def _ordered(nodes: tuple[str, ...], how: Runner, *, prefix: str, at_once: int) -> tuple[str, ...]:
    """Return `nodes` with one last that has an installation, which knows where the checkpoints are."""
    asked = Command([f"{prefix}/bin/perdure", "slurm", "uninstall", "--here", "--json", "--dry-run"])
    there = set()
    for answer in runner.run(how, nodes, functools.partial(_same, asked), limit_s=_UNINSTALL_S, at_once=at_once):
        document = answer.document()
        if answer.status == 0 and isinstance(document, dict) and document.get("state") == "planned":
            there.add(answer.node)
    last = next((node for node in reversed(nodes) if node in there), nodes[-1])
    return (*(node for node in nodes if node != last), last)


def _same(command: Command) -> Command:
    return command


def judge(answer: Answer) -> Result:
    """Return what `answer` means: a document on standard output and status 0, or an error in words or as a document."""
    document = answer.document()
    outcome = document if isinstance(document, dict) else None
    if answer.status == 0 and outcome is not None:
        return Result(answer.node, ok=True, outcome=outcome)
    error = _error(answer.err)
    message = error.get("message") or (answer.err.strip().splitlines() or ["it said nothing"])[-1]
    if answer.status == 124:
        message = "it took too long"
    return Result(
        answer.node,
        ok=False,
        outcome=outcome,
        code=str(error.get("code", "runner")),
        error=str(message),
        hint=str(error.get("hint", "try the runner by hand")),
        exit_status=answer.status,
    )


def _error(text: str) -> dict[str, Any]:
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return dict(msgspec.json.decode(line, type=dict[str, dict[str, Any]]).get("error", {}))
            except msgspec.DecodeError:
                continue
    return {}
