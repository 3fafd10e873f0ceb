"""A small evaluation on paper, complete and concrete, and runs to put beside it. For tests."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from perdure.evaluation import canonical, folder, plan
from perdure.evaluation.folder import Folder
from perdure.model.evaluation import Arm, Environment, Event, EventKind, Run

HOST = socket.gethostname()

ENVIRONMENT = Environment(
    host=HOST, boot_id="b", kernel="6.1", cpu_model="cpu", cores=2, memory_bytes=1 << 30, perdure_version="0.1", versions={"torch": "2.9"}
)


def text(place: Path, **replaced: str) -> str:
    """A complete plan whose workload runs in `place`; `replaced` swaps whole lines, by the part left of the equals sign or the header.

    Where a key stands in several tables, ``table.key`` names one of its lines.
    """
    lines = f"""
[evaluation]
name = "trial"
format = 1
[workload]
command = ["sh", "-c", "echo step 1"]
working_directory = "{place}"
owner = "speech group"
made_for_evaluation = false
[workload.progress]
pattern = 'step ([0-9]+)'
[workload.own_checkpoint]
kind = "none"
[baseline]
repetitions = 2
[success.recovery-time]
at_most = 300
reason = "longer and the deadline of the night is missed"
[success.work-lost]
ratio_at_most = 0.2
reason = "the group pays for every lost hour itself"
[success.utilisation]
gain_at_least = 0.05
reason = "less would not pay for the storage"
[success.overhead]
at_most = 0.02
reason = "two percent is what one more node costs"
[exit]
commands = [["sh", "-c", "true"]]
who = "Maria Rossi"
[site]
nodes = ["{HOST}"]
repetitions = 3
[site.window]
duration_s = 3600
[faults]
seed = 7
kinds = ["kill"]
at_progress = [10]
""".strip().splitlines()
    table, said = "", []
    for line in lines:
        key = line.split(" =")[0].strip("[]")
        table = key if line.startswith("[") else table
        said.append(replaced.get(f"{table}.{key}", replaced.get(key, line)))
    return "\n".join(said) + "\n"


def begin(place: Path, **replaced: str) -> Folder:
    """A folder with a complete plan in it."""
    there = Folder(place)
    there.plan.write_text(text(place, **replaced))
    return there


_LINGERING = """
import builtins, glob, os, time
_raw = os.path.join({raw!r}, os.environ["PERDURE_EVAL_RUN"])
with open(os.path.join(_raw, "journal.jsonl")) as _journal:
    _awaits = {by_hand!r} or "fault-planned" in _journal.read()

def print(*words, **options):
    due = None
    if _awaits and words[0] == "step":
        # How many lives there were is asked of names alone: a file that grows while a checkpoint finds it open could not be brought back.
        lives = len(glob.glob(os.path.join(_raw, "life-*-output.log")))
        due = {at!r}[lives - 1] if lives <= {count!r} else None
    if {saved!r} and due is not None and words[1] == due and "-managed-" in _raw:
        end = time.monotonic() + 120
        manifests = os.path.join(_raw, "state/store/workloads/*/manifests", "[0-9]" * 8 + "." + "[0-9]" * 8)
        while not glob.glob(manifests) and time.monotonic() < end:
            time.sleep(0.05)
    builtins.print(*words, **options)
    if due is not None and words[1] >= due:
        time.sleep(1.0)
"""


def linger(there: Folder, program: str, *at: int, by_hand: bool = False, saved: bool = False) -> None:
    """Let a Python program that prints ``step N`` take a second for each step while it waits for a fault, so that the fault is in time.

    The fault of the first life is due at the first of the counters `at`, and so on; it is one that was planned or, with `by_hand`, one that
    the test asks for. A run of which no fault is planned goes on as ever. With `saved`, a managed run does not come to the counter before
    it has a checkpoint.
    """
    path = there.path / program
    path.write_text(_LINGERING.format(raw=str(there.raw), at=at, count=len(at), by_hand=by_hand, saved=saved) + path.read_text())


def run(there: Folder, number: int, *, purpose: str = "baseline", arm: Arm = Arm.UNMANAGED, **changed) -> Run:
    """A run of the plan as it is now: ready after one second, ended after `number` + 10."""
    planned = plan.load(there.plan)
    made = Run(
        id=f"{purpose}-{arm}-{number}",
        arm=arm,
        pair=number,
        repetition=number,
        node=HOST,
        nodes=1,
        gpus=0,
        begun_unix_s=1.0,
        environment=ENVIRONMENT,
        command=planned.workload.command,
        events=(
            Event(0.5, EventKind.LAUNCHED),
            Event(1.5, EventKind.READY, 1.0),
            Event(2.0, EventKind.PROGRESS, 1.0),
            Event(10.0, EventKind.PROGRESS, 100.0),
            Event(10.5 + number, EventKind.ENDED, None, {"exit_status": 0, "completed": True}),
        ),
        plan_hash=canonical.hash_for(planned, purpose),
        purpose=purpose,
    )
    return msgspec.structs.replace(made, **changed)


def with_faults_marked(run: Run, *, comparable: bool = False) -> Run:
    """The run with `comparable` in the data of its killed agents: false is what the harness writes, true lets the measures take them."""
    return msgspec.structs.replace(run, events=tuple(_marked(event, comparable) for event in run.events))


def _marked(event: Event, comparable: bool) -> Event:
    if event.kind is not EventKind.FAULT_INJECTED or event.data.get("kind") != "agent-killed":
        return event
    return msgspec.structs.replace(event, data=event.data | {"comparable": comparable})


def measure_baseline(there: Folder, runs: int = 2) -> None:
    """Record so many good runs of the baseline."""
    for number in range(runs):
        folder.append_run(there, run(there, number))
