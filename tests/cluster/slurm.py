"""The cluster: nodes, jobs, accounting, users, faults. Used by tests and by `scripts/cluster`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cluster import rootfs, shape
from cluster.machine import BOOT_S, Failed, Node, Switch, wait_until
from cluster.shape import Shape

__all__ = ["Cluster", "Failed", "Shape", "running"]

_ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
_OVER = ("", *_ENDS)
"""States of a job that does not run again by itself, as `Cluster.job` tells them; slurmctld has forgotten one that is over for long."""
_UP = ("idle", "mix", "alloc", "plnd", "mix-")
"""States of a node that Slurm counts on: the last two are of one that is meant for jobs that wait."""
LONG_S = 300.0
"""For what takes Slurm seconds, and some minutes on a machine that has much else to do."""
_TELLING = re.compile(r"equeue|not responding|set to DOWN|NODE_FAIL|preempt|Killing|cancel|suspend", re.IGNORECASE)
_LAST_LINES = 8
_LAST_EVENTS = 40


class Cluster:
    """A running cluster."""

    def __init__(self, folder: Path, shape_: Shape, nodes: dict[str, Node]) -> None:
        self.folder = folder
        self.shape = shape_
        self.nodes = nodes

    @property
    def home(self) -> Path:
        """/home of all nodes, as seen from outside."""
        return self.folder / "home"

    @property
    def shared(self) -> Path:
        """/shared of all nodes, as seen from outside."""
        return self.folder / "shared"

    def run(self, node: str, *command: str, **options) -> subprocess.CompletedProcess[str]:
        """Run `command` in a node; see `Node.run`."""
        return self.nodes[node].run(*command, **options)

    def head(self, *command: str, **options) -> subprocess.CompletedProcess[str]:
        """Run `command` on the head, where users log in too."""
        return self.nodes[shape.HEAD].run(*command, **options)

    def kill(self, node: str) -> None:
        """Kill all of a node's processes at once."""
        self.nodes[node].kill()

    def cut(self, node: str) -> None:
        """Cut a node off the network and off the shared folders, with all its processes alive."""
        self.nodes[node].cut()

    def heal(self, node: str) -> None:
        """Connect a node again."""
        self.nodes[node].heal()

    def give_up(self, node: str) -> None:
        """Tell Slurm that a node is lost, as an admin does who knows: its jobs are requeued at once, not after `slurmd_timeout_s`."""
        self.head("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def boot(self, *names: str) -> None:
        """Start nodes and wait until Slurm counts on them."""
        for name in names:
            self.nodes[name].start()
        for name in names:
            self.nodes[name].wait_ready()
        self._wait_up(*names)

    def give_back(self, node: str) -> None:
        """Tell Slurm that a node it was told is lost is back, and wait until it counts on it."""
        self.head("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self._wait_up(node)

    def _wait_up(self, *names: str) -> None:
        wait_until(lambda: all(self.node_state(name) in _UP for name in names), f"{names}: not idle", timeout_s=LONG_S)

    def start_agent(self, name: str) -> None:
        """Start Perdure's service on a node where it was just installed, as systemd does there; a boot starts it by itself."""
        command = "exec /opt/perdure/bin/perdure agent >>/var/log/slurm/agent 2>&1 </dev/null"
        subprocess.run(self.nodes[name].inside("setsid", "--fork", "bash", "-c", command), check=True)
        self.wait_agent(name)

    def wait_agent(self, name: str) -> None:
        """Wait until Perdure's service on a node can be asked. Raises `Failed`."""
        node = self.nodes[name]

        def is_listening() -> bool:
            with socket.socket(socket.AF_UNIX) as asking:
                return not asking.connect_ex(f"/proc/{node.pid}/root/run/perdure/agent.sock")

        try:
            wait_until(is_listening, f"{name}: no agent", timeout_s=BOOT_S)
        except Failed as error:
            raise Failed(f"{error}: {node.words()}") from None

    def node_state(self, name: str) -> str:
        """Return what sinfo says of a node: idle, mix, alloc, down…; with a ``*`` when it does not respond."""
        return self.head("sinfo", "-h", "-N", "-n", name, "-o", "%t", "-p", "main").stdout.strip()

    def submit(self, user: str, script: str, *options: str, env: dict[str, str] | None = None) -> int:
        """Submit `script` (its text; a first line is added where it has none) as `user` from her home, and return the job's id."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}"
        done = self.head("sbatch", "--parsable", *options, user=user, env=env, stdin=text)
        return int(done.stdout.split(";")[0])

    def state(self, job: int) -> str:
        """Return how a job stands: PENDING, RUNNING, COMPLETED… slurmctld forgets one minutes after its end, the accounting does not."""
        known = self.job(job).get("JobState", "")
        return known or next((row[0] for row in reversed(self.attempts(job))), "")

    def job(self, job: int | str) -> dict[str, str]:
        """Return the fields of ``scontrol show job``, also of a task ``7_1`` of an array; empty when slurmctld does not know it any more.

        A slurmctld that is too busy to answer is asked again.
        """

        def is_answered() -> bool:
            nonlocal done
            done = self.head("scontrol", "-o", "show", "job", str(job), check=False)
            return not done.returncode or "Invalid job id" in done.stderr

        done = subprocess.CompletedProcess[str]((), 0)
        wait_until(is_answered, f"slurmctld does not tell of job {job}", timeout_s=LONG_S, pause_s=1.0)
        return dict(part.split("=", 1) for part in done.stdout.split() if "=" in part) if not done.returncode else {}

    def wait_state(self, job: int, *states: str, timeout_s: float = LONG_S) -> str:
        """Wait until a job is in one of `states`; return which. Raises `Failed` with what is known when it does not come to that."""

        def is_there() -> bool:
            nonlocal state
            state = self.state(job)
            return state in states

        state = ""
        try:
            wait_until(is_there, f"job {job}: not {' or '.join(states)}", timeout_s=timeout_s, pause_s=0.2)
        except Failed as error:
            raise Failed(f"{error}, but {state}: {self.job(job)}\n{self.told_of(job)}\n{self.output(job)[-3000:]}") from None
        return state

    def wait_node(self, job: int, *, not_on: str = "", timeout_s: float = LONG_S) -> str:
        """Wait until a job runs, elsewhere than on `not_on`; return where."""

        def is_there() -> bool:
            nonlocal fields
            fields = self.job(job)
            return fields.get("JobState") == "RUNNING" and fields.get("NodeList", "(null)") not in (not_on, "(null)", "")

        fields: dict[str, str] = {}
        try:
            wait_until(is_there, f"job {job} does not run", timeout_s=timeout_s, pause_s=0.1)
        except Failed as error:
            raise Failed(f"{error}: {fields}\n{self.told_of(job)}\n{self.output(job)[-3000:]}") from None
        return fields["NodeList"]

    def output(self, job: int) -> str:
        """Return a job's standard output as it is now."""
        path = self.job(job).get("StdOut", "")
        outside = self.folder / path.lstrip("/")
        return outside.read_text(errors="replace") if path and outside.is_file() else ""

    def told_of(self, job: int) -> str:
        """Return what the controller's log says of a job, its last lines."""
        log = (self.folder / "log" / shape.HEAD / "slurmctld.log").read_text(errors="replace")
        return "\n".join([line for line in log.splitlines() if f"JobId={job}" in line][-40:])

    def told(self) -> str:
        """Return what jobs and the controller said last: for whoever must find out why a test failed, when all of it is gone."""
        said = []
        for path in sorted(self.folder.glob("home/*/*.err")):
            lines = path.read_text(errors="replace").splitlines()[-_LAST_LINES:]
            said += [f"{path.parent.name}/{path.name}: {line}" for line in lines if "perdure: " in line]
        log = (self.folder / "log" / shape.HEAD / "slurmctld.log").read_text(errors="replace")
        said += [line for line in log.splitlines() if _TELLING.search(line)][-_LAST_EVENTS:]
        return "\n".join(said)

    def attempts(self, job: int) -> list[tuple[str, str, str]]:
        """Return (state, exit code, nodes) of each attempt in the accounting, oldest first. Of a job that is over, its end is waited for.

        Raises `Failed` where that takes too long.
        """
        known = self.job(job).get("JobState", "")

        def is_told() -> bool:
            nonlocal found
            found = self._accounted(job)
            # The accounting is told of each begin and end in turn: what it shows last may be the attempt before.
            return bool(found) and (found[-1][0] == known if known else found[-1][0] not in ("RUNNING", "PENDING"))

        found: list[tuple[str, str, str]] = []
        if known not in _OVER:
            return self._accounted(job)
        try:
            wait_until(is_told, f"job {job}: {known} is not accounted for", timeout_s=LONG_S, pause_s=0.2)
        except Failed as error:
            raise Failed(f"{error}: {found}\n{self.told_of(job)}") from None
        return found

    def _accounted(self, job: int) -> list[tuple[str, str, str]]:
        fields = "State,ExitCode,NodeList"
        out = self.head("sacct", "-a", "-D", "-X", "-n", "-P", "-S", "2020-01-01", "-j", str(job), "-o", fields).stdout
        rows = [line.split("|") for line in out.splitlines()]
        return [(row[0].split()[0], row[1], row[2]) for row in rows]

    def processes(self, node: str, user: str) -> list[str]:
        """Return the command lines of a user's processes on a node."""
        done = self.run(node, "ps", "-u", user, "-o", "args=", check=False)
        return done.stdout.splitlines()


ALIVE: list[Cluster] = []
"""Those that run now."""


@contextlib.contextmanager
def running(folder: Path, shape_: Shape | None = None, *, template: Path | None = None) -> Iterator[Cluster]:
    """Start a cluster whose files lie in `folder` (empty; it is removed afterwards), and end all of it afterwards.

    `template` is what an installation made, which every node then has from the start (`installed.running`).

    Raises `rootfs.Missing` where there is no root file system, `Failed` with the daemons' words when it does not come up.
    """
    chosen = shape_ or Shape()
    with rootfs.held(chosen.version) as root, contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        _lay(folder, chosen, root, template)
        switch = Switch()
        stack.callback(switch.close)
        names = (shape.HEAD, *chosen.nodes)
        nodes = {name: Node(name, shape_=chosen, rootfs=root, outside=folder, switch=switch) for name in names}
        stack.callback(_end, nodes)
        cluster = Cluster(folder, chosen, nodes)
        for name in names:
            nodes[name].start()
        for name in names:
            nodes[name].wait_ready()
        _wait_idle(cluster)
        ALIVE.append(cluster)
        try:
            yield cluster
        except Exception as error:
            error.add_note(cluster.told())
            raise
        finally:
            ALIVE.remove(cluster)


def _lay(folder: Path, chosen: Shape, root: Path, template: Path | None) -> None:
    folder.chmod(0o755)
    for name in ("etc", "home", "shared", "log", "nodes", "state"):
        (folder / name).mkdir()
    for node in (shape.HEAD, *chosen.nodes):
        for name, text in shape.files(chosen, node).items():
            path = folder / "etc" / node / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o600 if path.name == "slurmdbd.conf" else 0o644)
    for user, uid in shape.USERS.items():
        home = folder / "home" / user
        shutil.copytree(root / "home" / user, home)
        for path in [home, *home.rglob("*")]:
            os.chown(path, uid, uid)
    # As the shared scratch of a site: everybody may make folders, nobody may touch another's.
    (folder / "shared").chmod(0o1777)
    if template is not None:
        (folder / "template").symlink_to(template)
        shutil.copytree(template / "shared", folder / "shared", dirs_exist_ok=True)
        (folder / "shared/perdure").chmod(0o700)
        (folder / "shared").chmod(0o1777)


def _wait_idle(cluster: Cluster) -> None:
    def are_idle() -> bool:
        return cluster.head("sinfo", "-h", "-t", "idle", "-o", "%D", "-p", "main").stdout.strip() == str(len(cluster.shape.nodes))

    try:
        wait_until(are_idle, "the nodes are not idle", timeout_s=BOOT_S, pause_s=0.1)
    except Failed as error:
        raise Failed(f"{error}: {''.join(node.words() for node in cluster.nodes.values())}") from None


def _end(nodes: dict[str, Node]) -> None:
    for node in nodes.values():
        if node.is_up:
            node.kill()
