"""Every Python example of the how-to page runs, top to bottom, twice: the second time nothing happens outside again."""

from __future__ import annotations

import http.server
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres import Server

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "effects.md"


class Outside:
    """The other side of the examples: counts what reaches it."""

    def __init__(self) -> None:
        self.seen: Counter[object] = Counter()

    def send(self, to: str, text: str) -> str:
        self.seen["mail", to, text] += 1
        return "250 ok"

    def head(self, name: str) -> str | None:
        return "etag" if self.seen["put", name] else None

    def put(self, name: str, _content: bytes) -> str:
        self.seen["put", name] += 1
        return "etag"


@pytest.fixture
def provider() -> Iterator[tuple[str, Counter]]:
    keys: Counter[str] = Counter()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            keys[self.headers["Idempotency-Key"]] += 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"receipt": "r-1"}')

        def log_message(self, *_) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/", keys
        running.shutdown()
        thread.join()


@pytest.mark.postgres
def test_the_examples_run_and_a_second_run_does_nothing_again(provider, tmp_path, monkeypatch):
    import httpx2
    import psycopg

    make = httpx2.Client.__init__
    # The example's client waits 5 s for an answer, which is not long on a busy machine.
    monkeypatch.setattr(httpx2.Client, "__init__", lambda self, **given: make(self, **({"timeout": 120} | given)))
    address, keys = provider
    outside = Outside()
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 10
    server = Server()
    try:
        server.start()
        url = server.url()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE booking (number text)")
        for _ in range(2):
            names: dict[str, object] = {"__name__": "job", "provider": address, "bucket": outside, "smtp": outside, "url": url}
            for block in blocks:
                exec(compile(block, str(PAGE), "exec"), names)
            for name in ("ledger", "shared", "client"):
                names[name].close()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM booking").fetchone() == (1,)
    finally:
        server.remove()
    assert keys == {'"charge-4711"': 1, '"charge-4712"': 1}
    assert set(outside.seen.values()) - {0} == {1}
    assert len([value for value in outside.seen.values() if value]) == 5
