"""One node and the switch between nodes, as namespaces. Called by `cluster.slurm`.

Whatever ends the process that holds these objects ends the nodes: each one's first process, and the switch, read a pipe from it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from cluster import shape

_HERE = Path(__file__).resolve().parent
SOURCE = _HERE.parents[1] / "src"
PATH = "/opt/perdure/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BOOT_S = 120.0
"""Long enough for a machine that has much else to do."""


class Failed(AssertionError):
    """A node did not come up, or a command in it failed; the text says what it said."""


def wait_until(is_so: Callable[[], object], what: str, *, timeout_s: float, pause_s: float = 0.05) -> None:
    """Wait until `is_so` returns something true. Raises `Failed` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise Failed(f"after {timeout_s:g} s: {what}")
        time.sleep(pause_s)


class Switch:
    """A bridge in a network namespace of its own: the nodes' network, reached from nowhere else."""

    def __init__(self) -> None:
        script = "ip link add br0 type bridge && ip link set br0 up && echo up && exec cat >/dev/null"
        self._process = subprocess.Popen(["unshare", "--net", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"up\n":
            self._process.kill()
            self._process.wait()
            raise Failed("no bridge could be made")

    def ip(self, *arguments: str, check: bool = True) -> None:
        """Run ip(8) in the switch."""
        command = ["nsenter", f"--target={self._process.pid}", "--net", "ip", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if check and done.returncode:
            raise Failed(f"ip {' '.join(arguments)}: {done.stderr}")

    def plug(self, name: str, pid: int) -> None:
        """Connect the node whose first process is `pid`."""
        # The port of a node that was killed may still be there for a moment.
        self.ip("link", "del", f"v-{name}", check=False)
        self.ip("link", "add", f"v-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self.ip("link", "set", f"v-{name}", "master", "br0", "up")

    def close(self) -> None:
        """End the switch."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()


class Node:
    """One machine of the cluster."""

    def __init__(self, name: str, *, shape_: shape.Shape, rootfs: Path, outside: Path, switch: Switch) -> None:
        self.name = name
        self._address = shape_.address(name)
        self._rootfs = rootfs
        self._outside = outside
        self._switch = switch
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def pid(self) -> int:
        """Its first process, as seen from outside."""
        assert self._process is not None, f"{self.name} is not running"
        return self._pid

    @property
    def is_up(self) -> bool:
        """Whether it is running: somebody may have killed it by hand."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Boot it; `wait_ready` waits for the end of that."""
        assert not self.is_up, f"{self.name} is running"
        if self._process is not None:
            self.kill()
        role = "head" if self.name == shape.HEAD else "node"
        namespaces = ["--mount", "--net", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child", "--propagation=private"]
        script = [str(_HERE / "node-mounts.sh"), self.name, self._address, role, str(self._rootfs), str(self._outside), str(SOURCE)]
        with open(self._outside / f"log/{self.name}.out", "ab") as out:
            self._process = subprocess.Popen(
                ["unshare", *namespaces, "bash", *script],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={"PATH": os.environ["PATH"]},
            )
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        wait_until(lambda: children.read_text().split(), f"{self.name} has no first process", timeout_s=BOOT_S, pause_s=0.01)
        self._pid = int(children.read_text().split()[0])
        self._switch.plug(self.name, self._pid)

    def wait_ready(self) -> None:
        """Wait until its daemons run. Raises `Failed` with their words."""

        def is_ready() -> bool:
            inside = Path(f"/proc/{self.pid}/root/run/node")
            if self._process is None or self._process.poll() is not None or (inside / "failed").exists():
                raise Failed(f"{self.name} did not come up: {self.words()}")
            return (inside / "ready").exists()

        try:
            wait_until(is_ready, f"{self.name} is not ready", timeout_s=BOOT_S)
        except Failed as error:
            raise Failed(f"{error}: {self.words()}") from None

    def words(self) -> str:
        """Return the last words of its boot and its daemons."""
        logs = [self._outside / f"log/{self.name}.out", *sorted((self._outside / "log" / self.name).glob("*"))]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in logs if path.is_file())

    def kill(self) -> None:
        """Kill its first process, and with it all its processes at once, as a power cut does."""
        assert self._process is not None, f"{self.name} is not running"
        if self.is_up:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._process = None

    def cut(self) -> None:
        """Cut it off: no packet leaves or reaches it, and every access to the shared folders waits, as one to NFS does."""
        self._switch.ip("link", "set", f"v-{self.name}", "nomaster")
        self.run("sh", "-c", "kill -STOP $(cat /run/node/serves-home /run/node/serves-shared)", cwd="/")

    def heal(self) -> None:
        """Connect it again. What was open in the shared folders is lost, and what was on its way never arrives: as NFSv4 has it, whose
        server has forgotten a client that was silent for so long.
        """
        script = (
            "for folder in home shared; do kill -KILL $(cat /run/node/serves-$folder); umount -l /$folder; "
            "setsid --fork bindfs -f --multithreaded /run/node/server/$folder /$folder </dev/null >/dev/null 2>&1; "
            "until mountpoint -q /$folder; do sleep 0.05; done; "
            'pgrep -f -x "bindfs -f --multithreaded /run/node/server/$folder /$folder" >/run/node/serves-$folder; done'
        )
        self.run("sh", "-c", script, cwd="/")
        self._switch.ip("link", "set", f"v-{self.name}", "master", "br0")

    def inside(self, *command: str, user: str | None = None, env: dict[str, str] | None = None, cwd: str | None = None) -> list[str]:
        """Return the command line that runs `command` in the node, as `user` (default root), with a bare environment and `env`."""
        home = f"/home/{user}" if user else "/root"
        name = user or "root"
        bare = {"PATH": PATH, "HOME": home, "USER": name, "LOGNAME": name, "LC_ALL": "C.UTF-8", "SHELL": "/bin/bash"} | (env or {})
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--net", "--uts", "--ipc", "--pid", "--cgroup", "--root"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        return [*enter, *become, "env", "-i", f"--chdir={cwd or home}", *(f"{key}={value}" for key, value in bare.items()), *command]

    def run(
        self,
        *command: str,
        user: str | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        check: bool = True,
        timeout_s: float = 300,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` in the node and return the finished process. Raises `Failed` for a status other than 0, unless `check` is false."""
        line = self.inside(*command, user=user, env=env, cwd=cwd)
        done = subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=timeout_s, input=stdin)
        if check and done.returncode:
            raise Failed(f"{self.name}: {' '.join(command)}: {done.returncode}: {done.stdout} {done.stderr}")
        return done
