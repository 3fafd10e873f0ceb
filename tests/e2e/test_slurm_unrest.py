"""Opted-in jobs while all sorts of things happen to them, their nodes, agents and stores, at random and together.

Not among them is what makes Slurm run a job twice, or fail it, with or without Perdure: preemptions (24.11), nodes that are killed and back
within seconds, a node that gets a job in the second in which what it still ran of it is ended (its credential is revoked), a controller
that is killed while it starts a job. Preemptions and lost nodes have tests of their own.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable

import pytest
from cluster import installed, work
from cluster.machine import wait_until
from cluster.slurm import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

ALICE = 2001
JOBS = 7
UNREST_S = 240.0
LONG_S = 600
_LOOK_S = 1.5
"""Between two looks there is a begin of a second: Slurm counts whole ones."""


class Unrest:
    """Does one thing after the other to a cluster and its jobs, and undoes it later."""

    def __init__(self, cluster: Cluster, jobs: dict[str, int], seed: int) -> None:
        self.cluster = cluster
        self.jobs = list(jobs.values())
        self.chance = random.Random(seed)
        self.done: list[str] = []
        """What was done, for whoever wants to know why it failed."""
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._away: set[str] = set()
        """Nodes to which something happens already."""

    def goes_on(self, seconds: float) -> None:
        """Let it go on for so long, and undo all of it then."""
        things = (self.suspend, self.requeue, self.hold, self.stop, self.kill_agent, self.stall_store, self.cut)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._undo(until_s=time.monotonic() + self.chance.uniform(0.2, 4.0))
            thing = self.chance.choice(things)
            thing()
        self._undo()

    def suspend(self) -> None:
        job = self._job("suspend")
        self._ask("scontrol", "suspend", job)
        self._after(
            self.chance.choice((self.chance.uniform(0.1, 3), self.chance.uniform(5, 25))), lambda: self._ask("scontrol", "resume", job)
        )

    def requeue(self) -> None:
        self._ask("scontrol", "requeue", self._job("requeue"), user="alice")

    def hold(self) -> None:
        job = self._job("hold")
        self._ask("scontrol", "requeuehold", job, user="alice")
        self._after(self.chance.uniform(0, 6), lambda: self._ask("scontrol", "release", job, user="alice"))

    def stop(self) -> None:
        job = self._job("stop")
        self._ask("scancel", "--signal=STOP", job, user="alice")
        self._after(self.chance.uniform(0.1, 8), lambda: self._ask("scancel", "--signal=CONT", job, user="alice"))

    def kill_agent(self) -> None:
        node = self._node("kill the agent of")
        if node is not None:
            self.cluster.run(node, "pkill", "-KILL", "-f", "/opt/perdure/bin/perdure agent", cwd="/", check=False)
            self._after(self.chance.uniform(0, 4), lambda: self._back(node, lambda: self.cluster.start_agent(node)))

    def stall_store(self) -> None:
        node = self._node("stall the store of")
        if node is not None:
            signal = "kill -{} $(cat /run/node/serves-shared)"
            self.cluster.run(node, "sh", "-c", signal.format("STOP"), cwd="/")
            again = lambda: self.cluster.run(node, "sh", "-c", signal.format("CONT"), cwd="/")  # noqa: E731
            self._after(self.chance.uniform(0.5, 25), lambda: self._back(node, again))

    def cut(self) -> None:
        node = self._node("cut") if not self._away else None
        if node is not None:
            self.cluster.cut(node)
            self._ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

            def heal() -> None:
                # Until it is resumed, it gets no jobs.
                self._ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=lost")
                self.cluster.heal(node)
                self._after(_LOOK_S, look)

            def look(*, was_empty: bool = False) -> None:
                is_empty = (
                    self.cluster.node_state(node) == "drain" and self.cluster.run(node, "pgrep", "slurmstepd", check=False).returncode == 1
                )
                if is_empty and was_empty:
                    self._back(node, lambda: self._ask("scontrol", "update", f"NodeName={node}", "State=RESUME"))
                else:
                    self._after(_LOOK_S, lambda: look(was_empty=is_empty))

            self._after(self.chance.uniform(5, 60), heal)

    def _job(self, what: str) -> str:
        job = str(self.chance.choice(self.jobs))
        self.done.append(f"{time.strftime('%X')} {what} {job}")
        return job

    def _node(self, what: str) -> str | None:
        left = [name for name in self.cluster.shape.nodes if name not in self._away]
        if not left:
            return None
        node = self.chance.choice(left)
        self.done.append(f"{time.strftime('%X')} {what} {node}")
        self._away.add(node)
        return node

    def _back(self, node: str, how: Callable[[], object]) -> None:
        how()
        self._away.discard(node)

    def _ask(self, *words: str, user: str | None = None) -> bool:
        """Ask Slurm for something that it may refuse: a job may not be in a state for it."""
        return self.cluster.head(*words, user=user, check=False).returncode == 0

    def _after(self, pause_s: float, call: Callable[[], object]) -> None:
        heapq.heappush(self._later, (time.monotonic() + pause_s, next(self._order), call))

    def _undo(self, *, until_s: float | None = None) -> None:
        """Undo what is to be undone until then, or all of it."""
        while self._later and (until_s is None or self._later[0][0] < until_s):
            at_s, _, call = heapq.heappop(self._later)
            time.sleep(max(at_s - time.monotonic(), 0.0))
            call()
        if until_s is not None:
            time.sleep(max(until_s - time.monotonic(), 0.0))


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_to_them_jobs_do_their_work_once(tmp_path, seed):
    sizes = random.Random(seed)
    with installed.running(tmp_path) as cluster:
        work.lay(cluster)
        lengths = {f"job{number}": sizes.randint(60, 200) for number in range(JOBS)}
        jobs = {}
        for name, length in lengths.items():
            every = {"PERDURE": f"every={sizes.choice((1, 2, 5))}s"}
            script = work.count(length, 0.25, name=name, waits=True, hurries=False)
            jobs[name] = cluster.submit("alice", script, *work.files(name), "--open-mode=append", env=every)
        for name, job in jobs.items():
            wait_until(lambda job=job: work.checkpoints(cluster, ALICE, job), f"no checkpoint of {name}", timeout_s=LONG_S)
        unrest = Unrest(cluster, jobs, seed)
        unrest.goes_on(UNREST_S)
        for name, job in jobs.items():
            # What was held while it was being requeued, or suspended again before it went on, was not undone.
            for words in (("scontrol", "resume", str(job)), ("scontrol", "release", str(job)), ("scancel", "--signal=CONT", str(job))):
                cluster.head(*words, check=False)
            (cluster.home / f"alice/{name}.go").write_text("")
        for node in cluster.shape.nodes:
            cluster.head("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        happened = "\n".join(unrest.done)
        for name, job in jobs.items():
            state = cluster.wait_state(job, "COMPLETED", "FAILED", "CANCELLED", timeout_s=LONG_S)
            said = f"{work.written(cluster, 'alice', name, 'err')}\n{happened}\n{cluster.told_of(job)}"
            assert (state, work.written(cluster, "alice", name)) == ("COMPLETED", work.lines(lengths[name])), said
            assert (cluster.home / f"alice/{name}.starts").read_text() == "started\n", said
