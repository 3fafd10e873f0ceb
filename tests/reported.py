"""Whole evaluations in a folder, locked and run on paper: a clean one, a rigged one, one whose every text is hostile. For tests."""

from __future__ import annotations

from pathlib import Path

import evaluations
import msgspec
import synthetic_runs
from synthetic_runs import Script

from perdure.evaluation import folder as folders
from perdure.evaluation import lock, plan, report
from perdure.evaluation.folder import Folder
from perdure.evaluation.outcome import KEY, RecipeOutcome
from perdure.evaluation.report import Report
from perdure.evaluation.this_machine import Signature
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind, Run

SIGNED = Signature(1_700_000_000.0, "auditor", "node1")
ENVIRONMENT = msgspec.structs.replace(synthetic_runs.ENVIRONMENT, host=evaluations.HOST)
HOSTILE = '</td><script>window.canary=1</script><img src=x onerror="window.canary=1">{{ 7*7 }}\x1b[31m\u202egpj.exe'
FAULTS = ((30, FaultKind.KILL), (55, FaultKind.NODE_LOST), (80, FaultKind.HANG))


def clean(place: Path, *, pairs: int = 6) -> Folder:
    """An evaluation as it should be: locked before its runs, both arms broken the same way, cold starts and a matrix beside."""
    there = begin(place)
    append(there, arms(there, pairs))
    append(there, cold_starts(there))
    append(there, matrix(there))
    return there


def rigged(place: Path) -> Folder:
    """An evaluation that flatters: no lock, one pair, no fault on the unmanaged side, another command on the managed one."""
    place.mkdir(exist_ok=True)
    there = evaluations.begin(place, made_for_evaluation="made_for_evaluation = true")
    unmanaged = synthetic_runs.play(Script(steps=40), Arm.UNMANAGED)
    managed = synthetic_runs.play(Script(steps=100, every=10, faults=FAULTS[:1]), Arm.MANAGED, command=("./faster", "--cheat"))
    append(there, [fitted(there, unmanaged, keep_command=True), fitted(there, managed, keep_command=True)])
    return there


def hostile(place: Path) -> Folder:
    """An evaluation whose runs hold text that wants to be markup, a template, a formula or a terminal's order."""
    there = begin(place)
    environment = msgspec.structs.replace(ENVIRONMENT, cpu_model=HOSTILE, versions={"torch": HOSTILE})
    runs = [msgspec.structs.replace(run, environment=environment) for run in arms(there, 2)]
    runs[0] = msgspec.structs.replace(runs[0], id="=cmd|' /C calc'!A0", excluded=HOSTILE)
    append(there, runs)
    append(there, matrix(there, detail=HOSTILE, recipe=HOSTILE, codes=(HOSTILE,)))
    return there


def begin(place: Path) -> Folder:
    """A locked evaluation without runs of the arms."""
    place.mkdir(exist_ok=True)
    there = evaluations.begin(place, kinds='kinds = ["kill", "node-lost", "hang"]', at_progress="at_progress = [30, 55, 80]")
    for number in range(2):
        folders.append_run(there, evaluations.run(there, number, environment=ENVIRONMENT))
    lock.fix(there, signed=SIGNED)
    return there


def read(there: Folder) -> Report:
    """The report of an evaluation."""
    return report.read(there)


def arms(there: Folder, pairs: int) -> list[Run]:
    """Pairs of runs of which the managed side loses much less."""
    noise = synthetic_runs.noise(7, 0.02)
    made = synthetic_runs.pairs(
        pairs,
        lambda _pair: Script(faults=FAULTS, noise=noise, restart_s=8.0),
        lambda _pair: Script(faults=FAULTS, noise=noise, every=10, stopped_s=0.5),
    )
    return [fitted(there, run) for run in made]


def fitted(there: Folder, run: Run, *, keep_command: bool = False) -> Run:
    """Make a played run one of this evaluation: its node, its environment, its plan."""
    planned = plan.load(there.plan)
    like = evaluations.run(there, run.pair, purpose="arms")
    return msgspec.structs.replace(
        run,
        node=evaluations.HOST,
        nodes=1,
        gpus=0,
        environment=ENVIRONMENT,
        plan_hash=like.plan_hash,
        command=run.command if keep_command else planned.workload.command,
    )


def cold_starts(there: Folder) -> list[Run]:
    """Native starts and restores, cold and warm, of checkpoints of three sizes."""
    made = []
    for number, size in enumerate((1 << 30, 2 << 30, 4 << 30)):
        for cache, slower in (("cold", 1.5), ("warm", 1.0)):
            native = (Event(0.0, EventKind.LAUNCHED, None, {"cache": cache}), Event(60.0 * slower + number, EventKind.READY), ended("same"))
            begun = {"how": "restore", "cache": cache, "logical_bytes": size, "stored_bytes": size // 2}
            restored_s = (1.0 + 0.9 * number) * slower
            restore = (
                Event(0.0, EventKind.RESTARTED, None, begun),
                Event(restored_s, EventKind.RESTORED),
                Event(restored_s + 0.2, EventKind.READY),
                ended("same"),
            )
            for arm, events in ((Arm.UNMANAGED, native), (Arm.MANAGED, restore)):
                run = evaluations.run(there, number, purpose="coldstart", arm=arm, id=f"cold-{arm}-{cache}-{number}", events=events)
                made.append(msgspec.structs.replace(run, environment=ENVIRONMENT))
    return made


def ended(answers: str) -> Event:
    """The end of a cold start."""
    return Event(200.0, EventKind.ENDED, None, {"exit_status": -9, "completed": False, "answers": answers})


def matrix(there: Folder, **changed: object) -> list[Run]:
    """Three recipes: one that works, one that is refused, one that fails."""
    outcomes = [
        RecipeOutcome(
            recipe="pipeline", result="works", step="done", logical_bytes=3 << 20, stopped_s=0.2, checkpoint_s=0.5, restore_s=0.4
        ),
        RecipeOutcome(recipe="uring", result="refused", step="checkpoint", codes=("file-io-uring",), detail="holds an io_uring"),
        RecipeOutcome(recipe="strange", result="failed", step="compare", detail="standard output differs from line 12 on"),
    ]
    if changed:
        outcomes[2] = msgspec.structs.replace(outcomes[2], **changed)
    return [
        evaluations.run(
            there,
            number,
            purpose="matrix",
            arm=Arm.MANAGED,
            id=f"matrix-{number}",
            command=("sh", outcome.recipe),
            events=(Event(0.0, EventKind.LAUNCHED), Event(9.0, EventKind.ENDED, None, {KEY: msgspec.to_builtins(outcome)})),
        )
        for number, outcome in enumerate(outcomes)
    ]


def append(there: Folder, runs: list[Run]) -> None:
    """Record runs."""
    for run in runs:
        folders.append_run(there, run)
