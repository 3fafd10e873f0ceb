"""A ledger on PostgreSQL that is reached through something else: a proxy that falls silent, a pooler that lends its sessions."""

from __future__ import annotations

import contextlib
import os
import pwd
import selectors
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import ports
import pytest
from children import wait_for

from perdure import errors
from perdure.effects import Ledger, postgres

pytestmark = pytest.mark.postgres

_LIMIT_S = 60


class Proxy:
    """Carries bytes between a port on loopback and a server's Unix socket; while it is `silent`, takes them and carries none."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.silent = threading.Event()
        self.swallowed = 0
        self._all: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._all += [client, server]
                threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), selectors.DefaultSelector() as both:
            both.register(client, selectors.EVENT_READ, server)
            both.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in both.select():
                    taken = key.fileobj.recv(1 << 16)
                    if self.silent.is_set():
                        self.swallowed += len(taken)
                        if not taken:
                            both.unregister(key.fileobj)
                    elif taken:
                        key.data.sendall(taken)
                    else:
                        return

    def close(self) -> None:
        for each in self._all:
            each.close()


def _socket_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{unquote(parts.hostname or '')}/.s.PGSQL.{parts.port}"


@pytest.fixture
def proxy(server) -> Iterator[Proxy]:
    server.empty()
    made = Proxy(_socket_of(server.url()))
    yield made
    made.close()


@pytest.fixture
def beyond(proxy, monkeypatch) -> Iterator[Ledger]:
    """A ledger behind the proxy, that waits a second for an answer and does not try again."""
    monkeypatch.setattr(postgres.Postgres, "answer_s", 1.0)
    monkeypatch.setattr(postgres, "_PATIENCE", postgres._PATIENCE | {"connect_timeout": "2"})
    with Ledger(f"postgresql://perdure@127.0.0.1:{proxy.port}/postgres", patience_s=0.0) as opened:
        yield opened


def test_a_server_that_falls_silent_is_not_waited_for_without_end(beyond, proxy):
    assert beyond.once("before", lambda: 1) == 1
    proxy.silent.set()
    done = []
    with pytest.raises(errors.LedgerUnavailable, match="does not answer") as caught:
        beyond.once("beyond", lambda: done.append(1))
    assert caught.value.hint
    assert proxy.swallowed > 0
    assert done == []  # the claim may or may not be written: what is not known to be written is not acted on
    proxy.silent.clear()
    assert beyond.once("beyond", lambda: done.append(2) or 2) == 2
    assert done == [2]
    assert beyond.once("before", lambda: 3) == 1


def test_what_was_done_while_the_answer_was_lost_is_not_done_again(beyond, proxy):
    done = []

    def step() -> int:
        done.append(1)
        proxy.silent.set()
        return 7

    # It happened, and whether that was recorded cannot be told: this process is asked to find out, another finds it in doubt.
    with pytest.raises(errors.PerdureError):
        beyond.once("paid", step)
    proxy.silent.clear()
    with contextlib.suppress(errors.PerdureError):
        assert beyond.once("paid", step) == 7
    assert done == [1]


def test_a_message_that_is_handed_over_for_long_is_waited_for(beyond, proxy, server):
    import psycopg

    with psycopg.connect(server.url()) as connection:
        assert beyond.outbox.put(connection, "a", {"n": 1})
    sent = []
    assert beyond.outbox.relay(lambda message: (time.sleep(1.5), sent.append(message.key))) == 1
    assert sent == ["a"]
    assert beyond.outbox.waiting() == 0


class Pooler:
    """A real PgBouncer in transaction mode, with fewer sessions than clients, on loopback."""

    def __init__(self, server_url: str, folder: Path) -> None:
        kept = ports.reserve()
        self.port = ports.number(kept)
        parts = urlsplit(server_url)
        users = folder / "users.txt"
        users.write_text('"perdure" ""\n')
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\npostgres = host={unquote(parts.hostname or '')} port={parts.port} dbname=postgres pool_size=3\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {users}\npool_mode = transaction\nmax_client_conn = 100\n"
        )
        # It refuses to run as root.
        account = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        for path in (folder, users, configuration):
            path.chmod(0o755)
        self._log = open(folder / "log", "wb")  # noqa: SIM115
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        self._process = subprocess.Popen([program, str(configuration)], stdout=self._log, stderr=self._log, **account)
        self._kept = kept
        wait_for(self._answers)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False

    def url(self) -> str:
        return f"postgresql://perdure@127.0.0.1:{self.port}/postgres"

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(_LIMIT_S)
        self._kept.close()
        self._log.close()


@pytest.fixture
def pooler(server) -> Iterator[Pooler]:
    if shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("no PgBouncer on this machine")
    server.empty()
    with tempfile.TemporaryDirectory(prefix="pgb-", dir="/tmp") as folder:
        made = Pooler(server.url(), Path(folder))
        try:
            yield made
        finally:
            made.close()


def test_behind_a_pooler_in_transaction_mode_a_step_is_done_once(pooler, server):
    import psycopg

    done: list[int] = []
    barrier = threading.Barrier(12)
    problems: list[BaseException] = []

    def work() -> None:
        try:
            with Ledger(pooler.url(), lease_s=5.0) as ledger:
                barrier.wait(_LIMIT_S)
                for number in range(10):
                    assert ledger.once(f"step-{number}", lambda number=number: done.append(number) or number, wait_s=_LIMIT_S) == number
        except BaseException as error:  # noqa: BLE001
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LIMIT_S * 2)
    assert problems == []
    assert sorted(done) == list(range(10))
    with psycopg.connect(server.url()) as connection:
        assert connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


def test_sessions_are_given_back_to_a_pooler_as_they_were_lent(pooler, server):
    import psycopg

    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("ALTER DATABASE postgres SET synchronous_commit = off")
    try:
        with Ledger(pooler.url()) as ledger, psycopg.connect(pooler.url(), autocommit=True) as other:
            assert ledger.once("a", lambda: 1) == 1
            assert ledger.prune(0) == 1
            for name, own in (("lock_timeout", "0"), ("synchronous_commit", "off"), ("idle_in_transaction_session_timeout", "0")):
                assert other.execute(f"SHOW {name}").fetchone() == (own,)
    finally:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("ALTER DATABASE postgres RESET synchronous_commit")


def test_a_database_of_another_isolation_changes_nothing(server):
    import psycopg

    url = server.empty()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER DATABASE postgres SET default_transaction_isolation = 'repeatable read'")
    try:
        done: list[int] = []
        barrier = threading.Barrier(6)
        problems: list[BaseException] = []

        def work() -> None:
            try:
                with Ledger(url) as ledger:
                    ledger.counts()
                    barrier.wait(_LIMIT_S)
                    assert ledger.once("a", lambda: done.append(1) or 5, wait_s=_LIMIT_S) == 5
            except BaseException as error:  # noqa: BLE001
                problems.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_LIMIT_S * 2)
        assert problems == []
        assert done == [1]
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER DATABASE postgres RESET default_transaction_isolation")
