"""What a job writes is whole at its end, on a site that appends to output files when a job runs again and on one that empties them first.

On a real cluster, with each value of JobFileAppend: a node is lost and a job is requeued, its two streams in two files and in one.
"""

from __future__ import annotations

import dataclasses

import pytest
from cluster import installed, work
from cluster.machine import wait_until
from cluster.shape import Shape
from cluster.slurm import Cluster

pytestmark = pytest.mark.cluster

ALICE = 2001
LONG_S = 400
LINES = 60

# Reads a file that is changed meanwhile, and says each thing on both streams.
_BOTH = """\
import sys, time
aside = open(sys.argv[2])
for number in range(int(sys.argv[1])):
    print("out", number, flush=True)
    print("err", number, file=sys.stderr, flush=True)
    time.sleep(0.5)
"""


@dataclasses.dataclass
class Story:
    """What happened."""

    cluster: Cluster
    jobs: dict[str, int] = dataclasses.field(default_factory=dict)

    def read(self, name: str) -> str:
        """Return what is in a file of alice's home."""
        return (self.cluster.home / "alice" / name).read_text(errors="replace")

    def said_by(self, stream: str, name: str) -> list[str]:
        """Return the numbers that the job has written to `stream`, as they are in the file `name`."""
        return [line.split()[1] for line in self.read(name).splitlines() if line.startswith(f"{stream} ")]


@pytest.fixture(scope="module", params=[False, True], ids=["emptied", "appended"])
def story(request, tmp_path_factory):
    shape = Shape(nodes=("n1", "n2"), job_file_append=request.param)
    with installed.running(tmp_path_factory.mktemp("cluster"), shape) as cluster:
        (cluster.shared / "both.py").write_text(_BOTH)
        told = Story(cluster)
        for name, node, options in (
            ("lost", "n1", work.files("lost")),
            ("lost-joined", "n1", ("--output=lost-joined.out",)),
            ("requeued", "n2", work.files("requeued")),
            ("requeued-joined", "n2", ("--output=requeued-joined.out",)),
        ):
            # The shell has its script open for as long as it waits.
            script = f"python3 /shared/both.py {LINES} $HOME/{name}.read\nexit $?\n"
            read = cluster.home / "alice" / f"{name}.read"
            read.write_text("one")
            told.jobs[name] = cluster.submit("alice", script, *options, f"--prefer={node}", env={"PERDURE": "every=2s"})
        for job in told.jobs.values():
            wait_until(lambda job=job: work.checkpoints(cluster, ALICE, job), f"no checkpoint of {job}", timeout_s=LONG_S)
        for name in told.jobs:
            (cluster.home / "alice" / f"{name}.read").write_text("two")
        for name in ("requeued", "requeued-joined"):
            cluster.head("scontrol", "requeue", str(told.jobs[name]), user="alice")
        cluster.kill("n1")
        for job in told.jobs.values():
            cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S)
        yield told


NUMBERS = [str(number) for number in range(LINES)]


@pytest.mark.parametrize("name", ["lost", "requeued"])
def test_both_files_hold_everything_once_and_in_order(story, name):
    assert story.read(f"{name}.out") == "".join(f"out {number}\n" for number in NUMBERS)
    assert story.said_by("err", f"{name}.err") == NUMBERS, story.read(f"{name}.err")


@pytest.mark.parametrize("name", ["lost-joined", "requeued-joined"])
def test_one_file_for_both_streams_holds_everything_once_and_in_order(story, name):
    written = story.read(f"{name}.out")
    own = [line for line in written.splitlines() if line.startswith(("out ", "err "))]
    assert own == [f"{stream} {number}" for number in NUMBERS for stream in ("out", "err")], written


@pytest.mark.parametrize("name", ["lost", "requeued"])
def test_each_life_says_once_where_it_goes_on_and_is_the_same_job(story, name):
    said, job = story.read(f"{name}.err"), story.jobs[name]
    assert said.count(f"slurm-lab-{job}, life 2 on n2, restart 1: goes on from slurm-lab-{job}@1.") == 1, said
    states = [attempt[0] for attempt in story.cluster.attempts(job)]
    assert states == ["NODE_FAIL" if name == "lost" else "REQUEUED", "COMPLETED"]


@pytest.mark.parametrize("name", ["lost", "requeued"])
def test_that_slurm_wrote_the_script_anew_is_not_told_and_what_the_job_reads_is(story, name):
    said = story.read(f"{name}.err")
    assert "slurm_script" not in said
    assert f"/home/alice/{name}.read: was changed since" in said, said
