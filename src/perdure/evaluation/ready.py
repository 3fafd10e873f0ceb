"""When is it ready to serve, and what does it answer? The probe at which both clocks of a cold start end. Called by `coldstart`.

A sign counts only if it was made after the clock began: a line that was printed since, a file that was written since, an answer that nobody
gave before. What was there already says nothing of the process that was just started or brought back.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from perdure import errors
from perdure.evaluation.plan_workload import Ready, Request

_ANSWER_S = 2.0
"""Longest wait for the answer of a probe: the next one asks again."""
_REQUEST_S = 600.0
_LONGEST_ANSWER_BYTES = 64 << 20


class Answer(msgspec.Struct, frozen=True):
    """What came back for one request. `sha256` is of the body; `status` 0 means that there was no answer, and `error` says why."""

    status: int
    sha256: str
    size_bytes: int
    error: str = ""


class _SameAddress(urllib.request.HTTPRedirectHandler):
    """A redirection is an answer with a status of its own, not a way to another place."""

    def redirect_request(self, *_anything: object) -> None:
        return None


def opener() -> urllib.request.OpenerDirector:
    """Return what asks over HTTP: no proxy stands between us and a workload on this node."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _SameAddress())


def probe(ready: Ready, log: Path, working_directory: str) -> Callable[[], bool]:
    """Return a function that tells whether the workload is ready, by signs made from now on; `log` holds what it prints.

    Raises `errors.UsageError` when it would say so already: something else answers.
    """
    match ready.kind:
        case "log":
            return _log_probe(re.compile((ready.pattern or "").encode()), log)
        case "file":
            path = os.path.join(working_directory, ready.path or "")
            before = _stamp(path)
            return lambda: _stamp(path) not in (None, before)
        case "http":
            ask = opener()
            return _fresh(lambda: is_answered(ask, ready.url or ""), f"{ready.url} answers")
    return _fresh(lambda: _succeeds(ready.command, working_directory), "workload.ready.command ends with 0")


def ask(requests: Sequence[Request]) -> tuple[Answer, ...]:
    """Send the plan's requests, one after the other, and return what came back."""
    with_patience = opener()
    return tuple(_ask(with_patience, one) for one in requests)


def is_answered(ask: urllib.request.OpenerDirector, url: str) -> bool:
    """Tell whether `url` answers with status 200."""
    try:
        with ask.open(url, timeout=_ANSWER_S) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException, ValueError):
        return False


def _fresh(is_ready: Callable[[], bool], what: str) -> Callable[[], bool]:
    if is_ready():
        raise errors.UsageError(f"{what} before the workload was started", hint="end what runs there, or correct workload.ready")
    return is_ready


def _log_probe(pattern: re.Pattern[bytes], log: Path) -> Callable[[], bool]:
    offset, rest = 0, b""

    def is_ready() -> bool:
        nonlocal offset, rest
        try:
            with open(log, "rb") as handle:
                handle.seek(offset)
                content = handle.read()
        except FileNotFoundError:
            return False
        offset += len(content)
        *lines, rest = (rest + content).split(b"\n")
        return any(pattern.search(line) for line in (*lines, rest))

    return is_ready


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        there = os.stat(path)
    except OSError:
        return None
    return there.st_ino, there.st_mtime_ns, there.st_size


def _succeeds(command: tuple[str, ...], working_directory: str) -> bool:
    try:
        done = subprocess.run(command, cwd=working_directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=60.0, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _ask(with_patience: urllib.request.OpenerDirector, one: Request) -> Answer:
    body = None if one.body is None else one.body.encode()
    headers = {} if body is None else {"Content-Type": one.content_type}
    try:
        request = urllib.request.Request(one.url, data=body, headers=headers, method=one.method)  # noqa: S310
        try:
            with with_patience.open(request, timeout=_REQUEST_S) as answer:
                return _answer(answer.status, answer.read(_LONGEST_ANSWER_BYTES))
        except urllib.error.HTTPError as refused:
            with refused:
                return _answer(refused.code, refused.read(_LONGEST_ANSWER_BYTES))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(0, "", 0, str(error)[:300])


def _answer(status: int, content: bytes) -> Answer:
    return Answer(status, hashlib.sha256(content).hexdigest(), len(content))
