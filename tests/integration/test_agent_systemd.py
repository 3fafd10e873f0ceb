"""The agent as a service of a real systemd, the first process of namespaces of its own: ready, restarted, killed, stopped, seats going on.

Units are read from a folder of the test's alone, so that nothing of the machine's own is started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from agents import ALICE, Node, needs_root
from supervised import ROOT, command_line, wait_for

from perdure.slurm import unit

SYSTEMD = Path("/usr/lib/systemd/systemd")
pytestmark = [
    needs_root,
    pytest.mark.skipif(not SYSTEMD.exists() or shutil.which("systemctl") is None, reason="no systemd on this machine"),
]

_TARGETS = ("basic", "sysinit", "shutdown", "multi-user", "local-fs", "remote-fs", "network-online", "umount")
_BOOT = f"""\
set -eu
mount -t tmpfs -o mode=755 tmpfs /run
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
exec env -i container=perdure-test SYSTEMD_UNIT_PATH="$1" PATH=/usr/sbin:/usr/bin:/sbin:/bin {SYSTEMD} --system --unit=multi-user.target \\
    --log-target=null </dev/null >/dev/null 2>&1
"""
_NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup")


class Booted(Node):
    """A node whose agent systemd starts. PIDs are those of its namespace."""

    def start(self) -> None:
        program = self.folder / "opt/bin/perdure"
        program.parent.mkdir(parents=True)
        path = f"import sys\nsys.path.insert(0, {str(ROOT / 'src')!r})\n"
        program.write_text(f"#!{sys.executable}\n{path}from perdure.__main__ import main\nsys.exit(main())\n")
        program.chmod(0o755)
        units = self.folder / "units"
        (units / f"{unit.NAME}.d").mkdir(parents=True)
        (units / "multi-user.target.wants").mkdir()
        for name in _TARGETS:
            (units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        (units / unit.NAME).write_bytes(unit.text(str(self.folder / "opt")))
        (units / "multi-user.target.wants" / unit.NAME).symlink_to(units / unit.NAME)
        variables = "".join(f'Environment="{key}={value}"\n' for key, value in self.environment.items())
        (units / f"{unit.NAME}.d/test.conf").write_text(f"[Service]\n{variables}StandardError=append:{self.folder}/agent.err\n")
        self.outside = subprocess.Popen(
            [
                "unshare",
                *_NAMESPACES,
                "--mount-proc",
                "--fork",
                "--kill-child",
                "--propagation=private",
                "sh",
                "-c",
                _BOOT,
                "boot",
                str(units),
            ],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        children = Path(f"/proc/{self.outside.pid}/task/{self.outside.pid}/children")
        wait_for(lambda: children.read_text().split(), what="for the first process")
        self.first = children.read_text().split()[0]
        # Not before it is systemd, whose /run is another: until then this machine's own is seen there.
        wait_for(lambda: command_line(int(self.first))[:1] == [os.fsencode(SYSTEMD)], what="for the first process to be systemd")
        wait_for(lambda: Path(f"/proc/{self.first}/root/run/systemd/private").is_socket(), what="for systemd")
        wait_for(lambda: self.state_of_agent() == "active", what="for the agent")

    def inside(self, *words: str) -> list[str]:
        return ["nsenter", f"--target={self.first}", *_NAMESPACES, *words]

    def systemctl(self, *words: str) -> str:
        done = subprocess.run(self.inside("systemctl", "--no-pager", *words), capture_output=True, text=True, timeout=240)
        return done.stdout.strip() or done.stderr.strip()

    def state_of_agent(self) -> str:
        return self.systemctl("is-active", unit.NAME)

    def command(self, uid: int, *arguments: object, groups: tuple[int, ...] = (), limits: tuple[str, ...] = ()) -> list[str]:
        return self.inside(*super().command(uid, *arguments, groups=groups, limits=limits))

    def close(self) -> None:
        # All that runs in it ends with its first process.
        self.outside.kill()
        self.outside.wait()
        for process in self._started:
            process.communicate(timeout=240)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.users
@pytest.mark.criu
def test_a_workload_is_kept_while_systemd_restarts_and_stops_the_agent():
    node = Booted()
    try:
        assert "perdure" in node.systemctl("show", "--property=ExecStart", unit.NAME)
        client = node.begin(ALICE, "kept", "sh", "-c", "echo up; until [ -e $HOME/go ]; do sleep 0.1; done; echo done; exit 3")
        assert node.json(ALICE, "checkpoint", "kept")["id"] == "kept@1.1"
        pid = node.ps(ALICE, "kept")["pid"]

        node.systemctl("restart", unit.NAME)
        assert node.state_of_agent() == "active", "it told systemd that it is ready"
        assert node.json(ALICE, "checkpoint", "kept")["id"] == "kept@1.2"

        node.systemctl("kill", "--signal=KILL", "--kill-who=main", unit.NAME)
        wait_for(lambda: node.systemctl("show", "--value", "--property=NRestarts", unit.NAME) == "1", 240, "for another agent")
        wait_for(lambda: node.state_of_agent() == "active", 240, "for another agent")
        assert node.ps(ALICE, "kept")["pid"] == pid
        assert node.json(ALICE, "checkpoint", "kept")["id"] == "kept@1.3"

        node.systemctl("stop", unit.NAME)
        assert node.state_of_agent() == "inactive"
        (node.home(ALICE) / "go").touch()
        out, err = client.communicate(timeout=240)
        assert (client.returncode, out) == (3, b"up\ndone\n"), err
    finally:
        node.close()


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    program = tmp_path / "bin/perdure"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = tmp_path / unit.NAME
    path.write_bytes(unit.text(str(tmp_path)))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
