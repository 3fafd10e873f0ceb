"""The node's service under systemd. Called by `layout`, which lists its files, and by install and uninstall, which start and stop it."""

from __future__ import annotations

import subprocess

NAME = "perdure-agent.service"
PATH = f"/etc/systemd/system/{NAME}"
WANTED = f"/etc/systemd/system/multi-user.target.wants/{NAME}"
_LONGEST_S = 60


def text(prefix: str) -> bytes:
    """Return the unit's file. Its end leaves jobs alone: the seats of workloads are none of its children's business."""
    return f"""# Written by perdure slurm install.
[Unit]
Description=Perdure: keeps the jobs of ordinary users
After=network.target local-fs.target remote-fs.target

[Service]
ExecStart={prefix}/bin/perdure agent
Restart=on-failure
RestartSec=2
KillMode=process
Delegate=yes
TasksMax=infinity
LimitNOFILE=65536
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
""".encode()


def start() -> str:
    """Let systemd read the unit and (re)start it; return what went wrong, or an empty text."""
    return _systemctl("daemon-reload") or _systemctl("restart", NAME)


def stop() -> str:
    """Stop the unit where it is known; return what went wrong, or an empty text."""
    return _systemctl("stop", NAME)


def forget() -> str:
    """Let systemd see that the unit's file is gone; return what went wrong, or an empty text."""
    return _systemctl("daemon-reload")


def _systemctl(*words: str) -> str:
    try:
        done = subprocess.run(
            ["systemctl", "--no-ask-password", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"systemctl {words[0]}: {error}"
    return "" if done.returncode == 0 else f"systemctl {words[0]}: {done.stderr.strip()[:200]}"
