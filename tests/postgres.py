"""A real PostgreSQL server for tests: a database cluster in a folder of its own, reached through a Unix socket.

The server refuses to run as root, so for root it runs as `postgres` or `nobody`. It is ended by its process id.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import ports

_LIMIT_S = 180.0
_PORT = 5432  # names the socket; nothing listens on the network unless it is asked for


def programs() -> Path:
    """Return the folder of the server's programs, the newest version's."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3].partition(".")[0]))
    return folders[-1].parent


def _account() -> str | None:
    """Return the user that the server runs as; None: the caller."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class Server:
    """One server. `start`, `stop`, `kill` and `start` again keep its data; `remove` ends it and deletes its folder.

    With `loopback`, it also listens there, on a port of its own: a Unix socket to a process outside forbids a checkpoint of its client.
    """

    def __init__(self, *, loopback: bool = False) -> None:
        self._kept = ports.reserve() if loopback else None
        self._port = _PORT if self._kept is None else ports.number(self._kept)
        # Not below pytest's folder, which other users may not enter; short, since a socket's path holds 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self.data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        user = _account()
        self._as = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
        if user:
            shutil.chown(self.folder, user, self._as["group"])
        self.folder.chmod(0o755)
        self._call("initdb", "-D", self.data, "-U", "perdure", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")

    def url(self) -> str:
        """Return the address of the one database."""
        host = "127.0.0.1" if self._kept else quote(str(self.folder), safe="")
        return f"postgresql://perdure@{host}:{self._port}/postgres"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = {
            "listen_addresses": "127.0.0.1" if self._kept else "",
            "unix_socket_directories": str(self.folder),
            "port": self._port,
            "max_connections": 120,
            "shared_buffers": "16MB",
        }
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [programs() / "postgres", "-D", self.data, *(f"--{name}={value}" for name, value in options.items())],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
                cwd=self.folder,
                **self._as,
            )
        limit_s = time.monotonic() + _LIMIT_S
        while subprocess.run([programs() / "pg_isready", "-q", "-h", self.folder, "-p", str(self._port)]).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > limit_s:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.05)

    def stop(self, signal_number: int = signal.SIGINT) -> None:
        """End the server: SIGINT closes its connections at once, SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(_LIMIT_S)
            self._process = None

    def empty(self) -> str:
        """Drop the ledger and all tables of the one database, and return its address."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS perdure CASCADE")
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return self.url()

    def remove(self) -> None:
        """End the server and delete its data."""
        self.stop(signal.SIGQUIT)  # without writing out what is deleted in the next moment
        if self._kept is not None:
            self._kept.close()
        shutil.rmtree(self.folder)

    def _call(self, name: str, *arguments: str | Path) -> None:
        done = subprocess.run([programs() / name, *arguments], capture_output=True, text=True, cwd=self.folder, **self._as)
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed:\n{done.stdout}{done.stderr}")
