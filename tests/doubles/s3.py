"""An object store that misbehaves as asked: for what no real one can be made to do on demand. It checks no signatures."""

from __future__ import annotations

import http.server
import threading
import time
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class MisbehavingStore:
    """Serves any bucket on loopback until `close`. `conduct` says how conditional writes go; `answers` what the next requests get."""

    def __init__(self) -> None:
        self.conduct = "honest"
        """``honest``; ``ignores`` conditions; ``lies``: says "exists" and overwrites; ``racy``: looks, writes later; ``unordered``;
        ``conflicts``: a conditional write that comes while another of that key is under way is answered 409, the first time."""
        self.answers: list[tuple[int, str] | str] = []
        """Each used once: (status, code), ``reset`` (closes without an answer), ``hang`` (until `close`), ``lost`` (does it, resets)."""
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        self.writing: dict[str, threading.Event] = {}
        self.refused: set[tuple[str, bytes]] = set()
        self.missed = threading.Event()
        """Somebody was told that an object is not there."""
        self.closing = threading.Event()
        store = self

        class Handler(_Handler):
            server_store = store

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_store: MisbehavingStore

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._serve(lambda store, key: self._put(store, key, body))

    def do_GET(self) -> None:
        self._serve(self._list if "list-type" in self.path else self._get)

    def do_HEAD(self) -> None:
        self._serve(self._get)

    def do_DELETE(self) -> None:
        self._serve(lambda store, key: (store.objects.pop(key, None), self._answer(204))[-1])

    def _serve(self, act) -> None:
        store = self.server_store
        key = unquote(urlsplit(self.path).path)
        with store.lock:
            store.requests.append((self.command, key))
            answer = store.answers.pop(0) if store.answers else None
        match answer:
            case (status, code):
                self._answer(status, f"<Error><Code>{code}</Code><StringToSign>AKIA-hunter2</StringToSign></Error>".encode())
            case "reset":
                self.close_connection = True
                self.connection.close()
            case "hang":
                store.closing.wait()
            case "lost":
                self.wfile = _Nowhere()
                act(store, key)
                self.close_connection = True
                self.connection.close()
            case _:
                act(store, key)

    def _put(self, store: MisbehavingStore, key: str, body: bytes) -> None:
        conditional = self.headers.get("If-None-Match") == "*" and store.conduct != "ignores"
        if conditional and store.conduct == "conflicts":
            return self._put_one_of_many(store, key, body)
        with store.lock:
            refused = conditional and key in store.objects
            if not refused and store.conduct != "racy":
                store.objects[key] = body
        if refused:
            if store.conduct == "lies":
                store.objects[key] = body
            return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        if store.conduct == "racy":
            time.sleep(0.2)  # what such a server does between the look and the write
            store.objects[key] = body
        return self._answer(200, headers={"ETag": '"x"'})

    def _put_one_of_many(self, store: MisbehavingStore, key: str, body: bytes) -> None:
        with store.lock:
            other = store.writing.get(key)
            ended = store.writing.setdefault(key, threading.Event())
            is_news = (key, body) not in store.refused
            if other is not None:
                store.refused.add((key, body))
        if other is None:
            time.sleep(0.2)  # how long it is under way
            store.objects[key] = body
            ended.set()
            return self._answer(200, headers={"ETag": '"x"'})
        if is_news and not ended.is_set():
            return self._answer(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
        ended.wait(120)
        return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")

    def _get(self, store: MisbehavingStore, key: str) -> None:
        if key not in store.objects:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return store.missed.set()
        body = store.objects[key]
        return self._answer(200, body, {"ETag": '"x"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"})

    def _list(self, store: MisbehavingStore, bucket: str) -> None:
        prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
        all_names = sorted((key.removeprefix(bucket.rstrip("/") + "/"), len(body)) for key, body in store.objects.items())
        names = [(name, size) for name, size in all_names if name.startswith(prefix)]
        if store.conduct == "unordered":
            names.reverse()
        found = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><LastModified>2026-01-01T00:00:00Z</LastModified><ETag>x</ETag></Contents>"
            for name, size in names
        )
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode())

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Nowhere:
    """Swallows an answer."""

    def write(self, data: bytes) -> int:
        return len(data)

    def flush(self) -> None:
        pass
