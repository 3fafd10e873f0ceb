"""Break a cluster's nodes and mend them from another terminal: `scripts/cluster kill n1`. Listened to by `shell`, which holds the nodes."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
from pathlib import Path

from cluster import shape
from cluster.slurm import Cluster, Failed

PREFIX = "perdure-cluster-"
"""Of the folder that everything of a cluster by hand lies in."""
DEEDS = {
    "kill": "cut its power",
    "boot": "start it again",
    "cut": "take it off the network and the shared folders, with all that runs on it",
    "heal": "connect it again",
}
_SOCKET = "control"
_LONGEST = 1024


class Control(threading.Thread):
    """Does what is asked for at a socket in `folder`, which root alone may open, until the process ends."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / _SOCKET))
        os.chmod(folder / _SOCKET, 0o600)
        self._listener.listen()

    def run(self) -> None:
        """Take one after the other."""
        while True:
            connection, _ = self._listener.accept()
            with connection:
                deed, *names = connection.recv(_LONGEST).decode().split()
                connection.send(self._do(deed, names).encode()[:_LONGEST])

    def _do(self, deed: str, names: list[str]) -> str:
        """Do `deed` to the nodes `names`; return what is wrong, or nothing."""
        nodes = self._cluster.nodes
        for name in names:
            if name not in nodes or name == shape.HEAD:
                return f"{name!r} is none of {', '.join(one for one in nodes if one != shape.HEAD)}"
            if (deed == "boot") == nodes[name].is_up:
                return f"{name} is {'running' if nodes[name].is_up else 'not running'}"
        try:
            if deed == "boot":
                self._cluster.boot(*names)
            else:
                for name in names:
                    {"kill": self._cluster.kill, "cut": self._cluster.cut, "heal": self._cluster.heal}[deed](name)
        except Failed as error:
            return str(error)
        return ""


def ask(deed: str, names: list[str]) -> int:
    """Have `deed` done to the nodes `names` of the cluster that runs; return an exit status."""
    found = []
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_SOCKET}"):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            one.connect(str(path))
        except OSError:
            one.close()  # of one that was killed
        else:
            found.append(one)
    if len(found) != 1:
        sys.stderr.write(f"cluster: {'no cluster runs' if not found else f'{len(found)} clusters run'} here: scripts/cluster starts one\n")
        return 1
    found[0].send(" ".join([deed, *names]).encode())
    problem = found[0].recv(_LONGEST).decode()
    if problem:
        sys.stderr.write(f"cluster: {problem}\n")
    return 1 if problem else 0
