"""The key on requests that leave, with the real httpx2 and requests; and a ledger's figures."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator

import pytest

from perdure import errors
from perdure.effects import Ledger, attach, headers, metrics, sign

httpx2 = pytest.importorskip("httpx2")
requests = pytest.importorskip("requests")

QUOTED = '"pay-1"'


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.headers.get("Idempotency-Key"), self.headers.get("Perdure-Fencing-Token")))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = answer

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[http.server.ThreadingHTTPServer]:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")  # whatever proxy whoever runs the suite has
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.seen = []
        running.url = f"http://127.0.0.1:{running.server_port}/"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def ledger(tmp_path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "effects.db", workload="w", epoch=3) as opened:
        yield opened


def test_a_requests_session(ledger, server):
    with attach(requests.Session()) as session:
        ledger.once("pay-1", lambda: session.post(server.url, data="x").status_code)
        session.get(server.url)
        with pytest.raises(errors.UsageError, match="no step"):
            session.post(server.url)
    assert server.seen == [("POST", QUOTED, "3"), ("GET", None, None)]


def test_an_httpx2_client(ledger, server):
    with attach(httpx2.Client(timeout=120), quoted=False) as client:
        ledger.once("pay-1", lambda: client.post(server.url).status_code)
        client.get(server.url)
        with pytest.raises(errors.UsageError, match="no step"):
            client.post(server.url)
    assert server.seen == [("POST", "pay-1", "3"), ("GET", None, None)]


def test_an_asynchronous_httpx2_client(ledger, server):
    async def main() -> None:
        async with attach(httpx2.AsyncClient(timeout=120)) as client:

            async def pay() -> int:
                return (await client.post(server.url)).status_code

            assert await ledger.aonce("pay-1", pay) == 200

    asyncio.run(main())
    assert server.seen == [("POST", QUOTED, "3")]


def test_one_request_alone(ledger, server):
    ledger.once("pay-1", lambda: requests.post(server.url, auth=sign).status_code)
    ledger.once("pay-2", lambda: httpx2.post(server.url, auth=sign, timeout=120).status_code)
    ledger.once("pay-3", lambda: httpx2.post(server.url, headers=headers(), timeout=120).status_code)
    ledger.once("pay-4", lambda: requests.post(server.url, headers={"Idempotency-Key": "own"}, auth=sign).status_code)
    assert [key for _, key, _ in server.seen] == [QUOTED, '"pay-2"', '"pay-3"', "own"]


def test_a_key_is_escaped_as_a_structured_field(ledger):
    assert ledger.once('a"b\\c', headers) == {"Idempotency-Key": '"a\\"b\\\\c"', "Perdure-Fencing-Token": "3"}


def test_anything_else_is_refused():
    with pytest.raises(errors.UsageError, match="int"):
        attach(3)


def test_the_figures_as_a_file_for_prometheus(ledger, tmp_path):
    ledger.once("a", lambda: 1)
    ledger.once("a", lambda: 1)
    assert set(ledger.metrics()) <= set(metrics.NAMES)
    metrics.write(ledger, tmp_path / "effects.prom")
    lines = (tmp_path / "effects.prom").read_text().splitlines()
    assert "perdure_effects_ran_total 1" in lines
    assert "perdure_effects_replayed_total 1" in lines
    assert 'perdure_effects_rows{state="done"} 1' in lines
    assert (tmp_path / "effects.prom").stat().st_mode & 0o777 == 0o644
    with pytest.raises(errors.UsageError):
        metrics.write(ledger, tmp_path / "effects.txt")
