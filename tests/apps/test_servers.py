"""Servers: the workload is the server, the client is outside. After the restore it holds what it held at the checkpoint, and serves on."""

from __future__ import annotations

import contextlib
import http.client
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from apps.harness import DEADLINE_S, Managed
from criu_tree import wait_until
from postgres import programs

pytestmark = [pytest.mark.criu]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_port(port: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens on {port}"
            time.sleep(0.05)
        else:
            return


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not below pytest's folder: a server that gives up root must reach its own.
    with tempfile.TemporaryDirectory(prefix="perdure-server-") as parent:
        Path(parent).chmod(0o755)
        made = Path(parent) / "server"
        made.mkdir()
        yield made


def _program(name: str) -> str:
    return str(programs() / name)


@pytest.mark.postgres
def test_postgresql(folder: Path) -> None:
    owner = pwd.getpwnam("postgres")
    shutil.chown(folder, owner.pw_uid, owner.pw_gid)
    as_owner = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
    subprocess.run(
        [*as_owner, _program("initdb"), "-D", "data", "-A", "trust", "-N", "-U", "postgres"], cwd=folder, check=True, capture_output=True
    )
    port = _free_port()

    def sql(statement: str) -> str:
        return subprocess.run(
            [_program("psql"), "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-Atc", statement],
            check=True, capture_output=True, text=True, timeout=60,
        ).stdout.strip()  # fmt: skip

    def wait_ready() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(subprocess.CalledProcessError):
                sql("SELECT 1")
                return
            assert time.monotonic() < deadline, "it does not answer"
            time.sleep(0.1)

    server = Managed(
        folder,
        "postgresql",
        [*as_owner, _program("postgres"), "-D", "data", "-p", str(port), "-h", "127.0.0.1", "-k", str(folder)],
        ["--every", "never", "--outputs", str(folder / "data")],
    )
    try:
        server.start()
        wait_ready()
        sql("CREATE TABLE t AS SELECT generate_series(1, 10000) AS n")
        server.checkpoint()
        sql("INSERT INTO t SELECT generate_series(10001, 20000)")
        assert sql("SELECT count(*) FROM t") == "20000"
        server.kill_all()
        server.start()
        wait_ready()
        # The rows that came after the checkpoint are gone with the life that wrote them, in memory and on disk alike.
        assert sql("SELECT count(*), sum(n) FROM t") == "10000|50005000", server.said()
        sql("INSERT INTO t SELECT generate_series(10001, 10100)")
        sql("CHECKPOINT")
        assert sql("SELECT count(*) FROM t") == "10100"
    finally:
        server.close()


@pytest.mark.apps
@pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server on this machine")
def test_redis(folder: Path) -> None:
    port = _free_port()

    def ask(*words: str) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words))
            return connection.makefile("rb").readline().strip()

    server = Managed(folder, "redis", ["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1"], ["--every", "never"])
    try:
        server.start()
        _wait_port(port)
        for n in range(500):
            assert ask("INCRBY", "sum", str(n)).startswith(b":")
        server.checkpoint()
        assert ask("SET", "sum", "0") == b"+OK"
        server.kill_all()
        server.start()
        _wait_port(port)
        assert ask("INCRBY", "sum", "1") == b":124751", server.said()
    finally:
        server.close()


@pytest.mark.apps
@pytest.mark.skipif(not shutil.which("nginx"), reason="no nginx on this machine")
def test_nginx(folder: Path) -> None:
    port = _free_port()
    (folder / "page.txt").write_text("still here\n")
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 2;\n"
        f"events {{}} http {{ access_log {folder}/access.log; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;\n"
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; root {folder}; }} }}\n"
    )

    def get() -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/page.txt")
            return connection.getresponse().read()
        finally:
            connection.close()

    server = Managed(folder, "nginx", ["nginx", "-c", str(folder / "nginx.conf")], ["--every", "never"])
    try:
        server.start()
        _wait_port(port)
        assert get() == b"still here\n"
        server.checkpoint()
        for _ in range(5):
            get()
        server.kill_all()
        server.start()
        _wait_port(port)
        assert get() == b"still here\n", server.said()
        # _wait_port leaves no line; one request before the checkpoint, one after the restore. A line is written once its answer is sent.
        log = folder / "access.log"
        wait_until(lambda: log.read_text().count("GET /page.txt") >= 2)
        assert log.read_text().count("GET /page.txt") == 2
    finally:
        server.close()
