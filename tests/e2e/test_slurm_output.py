"""What a job writes is whole at its end, where Slurm appends to output files when a job runs again and where it empties them first.

On a real cluster that does the one on two nodes and the other on two: a node of each kind is lost and jobs are requeued, their two
streams in two files and in one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import installed, work
from cluster.machine import Failed, wait_until
from cluster.shape import Shape
from cluster.slurm import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ALICE = 2001
LONG_S = 400
LINES = 60

# Reads a file that is changed meanwhile, and says each thing on both streams. It does not end before it may, and hurries from then on.
_BOTH = """\
import os, sys, time
lines, aside, gate = int(sys.argv[1]), open(sys.argv[2]), sys.argv[3]
for number in range(lines):
    while number == lines - 1 and not os.path.exists(gate):
        time.sleep(0.1)
    print("out", number, flush=True)
    print("err", number, file=sys.stderr, flush=True)
    time.sleep(0.02 if os.path.exists(gate) else 0.5)
"""
_SCRIPT = """\
python3 /shared/both.py {lines} $HOME/{name}.read $HOME/go
exit $?
"""
"""The shell has its script open for as long as it waits."""
_PLAIN = """\
echo attempt $SLURM_RESTART_COUNT
[ -n "$SLURM_RESTART_COUNT" ] || { scontrol requeue $SLURM_JOB_ID; sleep 600; }
"""
_KINDS = {"emptied": ("n1", "n2"), "appended": ("n3", "n4")}
"""What Slurm does to a file that is there already, on which nodes: one that is lost, and one that stays."""


@dataclasses.dataclass
class Story:
    """What happened to the jobs, by kind and name. Their files are called by both."""

    cluster: Cluster
    jobs: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)

    def submit(self, kind: str, name: str, node: str, script: str, *options: str, env: dict[str, str] | None = None) -> None:
        """Submit a job of alice's to the nodes of `kind`, if possible to `node`."""
        stays = _KINDS[kind][1]
        # What need not be on the node that is lost must not be there when it is: Slurm would run it once more.
        others = [one for one in self.cluster.shape.nodes if one not in (node, stays)]
        where = (f"--prefer={node}", f"--exclude={','.join(others)}")
        self.jobs[kind, name] = self.cluster.submit("alice", script, *where, *options, env=env)

    def read(self, name: str) -> str:
        """Return what is in a file of alice's home."""
        return (self.cluster.home / "alice" / name).read_text(errors="replace")

    def said_by(self, stream: str, name: str) -> list[str]:
        """Return the numbers that the job has written to `stream`, as they are in the file `name`."""
        return [line.split()[1] for line in self.read(name).splitlines() if line.startswith(f"{stream} ")]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    shape = Shape(nodes=("n1", "n2", "n3", "n4"), appends_on=_KINDS["appended"])
    with installed.running(tmp_path_factory.mktemp("cluster"), shape) as cluster:
        (cluster.shared / "both.py").write_text(_BOTH)
        told = Story(cluster)
        for kind in _KINDS:
            _begin(told, kind)
        saved = [job for (_kind, name), job in told.jobs.items() if name != "plain"]
        for job in saved:
            wait_until(lambda job=job: work.checkpoints(cluster, ALICE, job), f"no checkpoint of {job}", timeout_s=LONG_S)
        with _changing([cluster.home / "alice" / f"{kind}-{name}.read" for kind, name in told.jobs if name != "plain"]):
            for (_kind, name), job in told.jobs.items():
                if name.startswith("requeued"):
                    cluster.head("scontrol", "requeue", str(job), user="alice")
            for lost, _stays in _KINDS.values():
                cluster.kill(lost)
                cluster.give_up(lost)
            for kind, name in told.jobs:
                if name != "plain":
                    _wait_to_go_on(told, kind, name)
        (cluster.home / "alice/go").write_text("")
        for job in told.jobs.values():
            cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S)
        yield told


@contextlib.contextmanager
def _changing(paths: list[Path]) -> Iterator[None]:
    """Write something else into `paths` again and again: whenever the last checkpoint is taken, a restore finds them changed since.

    They never have another size, with which no process that reads them is brought back.
    """
    over = threading.Event()

    def change() -> None:
        number = 0
        while not over.wait(0.2):
            number = (number + 1) % 1000
            for path in paths:
                with path.open("r+") as file:
                    file.write(f"{number:03}")

    writer = threading.Thread(target=change)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def _wait_to_go_on(told: Story, kind: str, name: str) -> None:
    job = told.jobs[kind, name]
    file = f"{kind}-{name}.{'out' if name.endswith('joined') else 'err'}"
    try:
        wait_until(lambda: ": goes on from " in told.read(file), f"{job} does not go on", timeout_s=LONG_S)
    except Failed as error:
        raise Failed(f"{error}: {told.cluster.job(job)}\n{told.cluster.told_of(job)}\n{told.read(file)}") from None


def _begin(told: Story, kind: str) -> None:
    lost, stays = _KINDS[kind]
    told.submit(kind, "plain", stays, _PLAIN, f"--output={kind}-plain.out")
    for name, node, files in (
        ("lost", lost, work.files(f"{kind}-lost")),
        ("lost-joined", lost, (f"--output={kind}-lost-joined.out",)),
        ("requeued", stays, work.files(f"{kind}-requeued")),
        ("requeued-joined", stays, (f"--output={kind}-requeued-joined.out",)),
    ):
        (told.cluster.home / "alice" / f"{kind}-{name}.read").write_text("000")
        told.submit(kind, name, node, _SCRIPT.format(lines=LINES, name=f"{kind}-{name}"), *files, env={"PERDURE": "every=2s"})


NUMBERS = [str(number) for number in range(LINES)]


kinds = pytest.mark.parametrize("kind", list(_KINDS))
names = pytest.mark.parametrize("name", ["lost", "requeued"])


@kinds
def test_slurm_does_to_the_files_of_other_jobs_what_is_said_of_it_here(story, kind):
    attempts = [line for line in story.read(f"{kind}-plain.out").splitlines() if line.startswith("attempt")]
    assert attempts == (["attempt 1"] if kind == "emptied" else ["attempt", "attempt 1"])


@kinds
@names
def test_both_files_hold_everything_once_and_in_order(story, kind, name):
    assert story.read(f"{kind}-{name}.out") == "".join(f"out {number}\n" for number in NUMBERS)
    assert story.said_by("err", f"{kind}-{name}.err") == NUMBERS, story.read(f"{kind}-{name}.err")


@kinds
@pytest.mark.parametrize("name", ["lost-joined", "requeued-joined"])
def test_one_file_for_both_streams_holds_everything_once_and_in_order(story, kind, name):
    written = story.read(f"{kind}-{name}.out")
    own = [line for line in written.splitlines() if line.startswith(("out ", "err "))]
    assert own == [f"{stream} {number}" for number in NUMBERS for stream in ("out", "err")], written


@kinds
@names
def test_each_life_says_once_where_it_goes_on_and_is_the_same_job(story, kind, name):
    said, job = story.read(f"{kind}-{name}.err"), story.jobs[kind, name]
    stays = _KINDS[kind][1]
    assert said.count(f"slurm-lab-{job}, life 2 on {stays}, restart 1: goes on from slurm-lab-{job}@1.") == 1, said
    states = [attempt[0] for attempt in story.cluster.attempts(job)]
    assert states == ["NODE_FAIL" if name == "lost" else "REQUEUED", "COMPLETED"]


@kinds
@names
def test_that_slurm_wrote_the_script_anew_is_not_told_and_what_the_job_reads_is(story, kind, name):
    said = story.read(f"{kind}-{name}.err")
    assert "slurm_script" not in said
    assert f"/home/alice/{kind}-{name}.read: was changed since" in said, said
