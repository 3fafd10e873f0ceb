"""The node's service under systemd. Called by `layout`, which lists its files, and by install and uninstall, which start and stop it."""

from __future__ import annotations

import importlib.resources
import subprocess

NAME = "perdure-agent.service"
PATH = f"/etc/systemd/system/{NAME}"
WANTED = f"/etc/systemd/system/multi-user.target.wants/{NAME}"
_LONGEST_S = 60


def text(prefix: str) -> bytes:
    """Return the unit's file for an installation at `prefix`."""
    template = importlib.resources.files("perdure.agent").joinpath(NAME).read_bytes()
    return template.replace(b"@PERDURE@", f"{prefix}/bin/perdure".encode())


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
