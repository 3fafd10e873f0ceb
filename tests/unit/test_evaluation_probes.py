"""What a workload says of its progress, and what was there before it began, which says nothing."""

from __future__ import annotations

import http.server
import re
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.evaluation import probes
from perdure.evaluation.asking import Asking
from perdure.evaluation.checkpoints import held
from perdure.evaluation.plan_workload import OwnCheckpoint, Progress
from perdure.evaluation.probes import File, Lines, LogFile, Saved

STEP = re.compile("step ([0-9]+)")


@given(st.lists(st.binary(max_size=20)), st.data())
def test_lines_do_not_depend_on_how_they_arrive(parts, data):
    content = b"\n".join(parts)
    whole = list(Lines().feed(content + b"\n"))
    lines, cut = Lines(), []
    left = content + b"\n"
    while left:
        length = data.draw(st.integers(1, len(left)))
        cut += lines.feed(left[:length])
        left = left[length:]
    assert cut == whole


def test_lines_end_with_carriage_returns_too_and_are_bounded():
    lines = Lines()
    assert list(lines.feed(b"10%\r20%\r\nstep 3")) == ["10%", "20%"]
    assert list(lines.feed(b" x" * probes.LONGEST_LINE_BYTES)) != []
    assert list(lines.feed(b"\nstep 4\n"))[-1] == "step 4"


@pytest.mark.parametrize(
    ("line", "pattern", "number"),
    [
        ("step 12", "step ([0-9]+)", 12),
        ("step 1 step 2", "step ([0-9]+)", 2),
        ("seen 1,234,567 tokens", "seen ([0-9,]+)", 1234567),
        ("loss nan", "loss ([0-9.]+|nan)?", None),
        ("nothing", "step ([0-9]+)", None),
        ("step x", "step (.)", None),
        ("step 1 step inf", "step ([0-9a-z]+)", 1),
        ("1e999", None, None),
        ('{"served": 7.5e2}', None, 750),
        ("", None, None),
    ],
)
def test_number_in(line, pattern, number):
    assert probes.number_in(line, re.compile(pattern) if pattern else None) == number


METRICS = """
# HELP requests_total all of them
# TYPE requests_total counter
requests_total{path="/embed",code="200"} 40 1795994920646
requests_total{path="/health",code="200"} 2
requests_total_more 9
up 1
temperature NaN
"""


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("requests_total", 42),
        ('requests_total{path="/embed",code="200"}', 40),
        ("up", 1),
        ("requests", None),
        ("temperature", None),
        ("requests_total_more", 9),
    ],
)
def test_metric_in(metric, value):
    assert probes.metric_in(METRICS, metric) == value


def test_a_file_that_was_there_is_no_progress(tmp_path):
    path = tmp_path / "counter"
    path.write_text("41")
    file = File(str(path), None)
    file.rearm(is_restored=False)
    assert list(file.poll()) == []
    path.write_text("42")
    assert list(file.poll()) == [42]
    assert list(file.poll()) == []
    path.write_text("")
    assert list(file.poll()) == []
    path.write_text("7 of 9")
    file.rearm(is_restored=True)
    assert list(file.poll()) == []
    path.unlink()
    assert list(file.poll()) == []


@pytest.fixture
def log(tmp_path):
    followed = LogFile(str(tmp_path / "log"), STEP, str(tmp_path / "copy"))
    yield followed
    followed.close()


def test_a_log_file_is_followed_from_its_end(tmp_path, log):
    path = tmp_path / "log"
    assert list(log.poll()) == []
    path.write_text("step 1\nstep 2\n")
    log.rearm(is_restored=False)
    with path.open("a") as handle:
        handle.write("step 3\nste")
    assert list(log.poll()) == [3]
    with path.open("a") as handle:
        handle.write("p 4\n")
    assert list(log.poll()) == [4]


def test_a_log_file_that_was_brought_back_says_only_what_is_new(tmp_path, log):
    path = tmp_path / "log"
    path.write_text("step 1\nstep 2\nstep 3\n")
    assert list(log.poll()) == [1, 2, 3]
    path.write_text("step 1\n")  # as it was at the checkpoint
    assert list(log.poll()) == []
    log.rearm(is_restored=True)
    with path.open("a") as handle:
        handle.write("step 2\n")
    assert list(log.poll()) == [2]


def test_a_log_file_that_was_begun_anew(tmp_path, log):
    path = tmp_path / "log"
    path.write_text("begin\nstep 1\nstep 2\n")
    assert list(log.poll()) == [1, 2]
    path.write_text("again\nstep 1\n")
    assert list(log.poll()) == [1]
    path.rename(tmp_path / "log.1")
    path.write_text("step 1\nstep 2\nstep 3\nstep 4\n")
    assert list(log.poll()) == [1, 2, 3, 4]


def test_own_checkpoints_are_found_by_their_names(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/step-10.pt").write_bytes(b"x")
    (tmp_path / "out/step-20.pt").write_bytes(b"")
    saved = Saved(OwnCheckpoint(kind="file", glob="out/*.pt", pattern="step-([0-9]+)"), str(tmp_path), lambda text: text)
    assert list(saved.poll()) == [(10, (tmp_path / "out/step-10.pt").stat().st_mtime)]
    (tmp_path / "out/step-20.pt").write_bytes(b"x")
    (tmp_path / "out/other.pt").write_bytes(b"x")
    assert [counter for counter, _ in saved.poll()] == [20]
    assert list(saved.poll()) == []


def test_a_server_is_asked_until_it_is_closed():
    counter = {"value": 1}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if counter["value"] < 0:
                self.send_error(503)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"served %d" % counter["value"])

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        asking = Asking(Progress(kind="http", url=f"http://127.0.0.1:{server.server_port}/"), time.monotonic, None)
        try:
            assert _next(asking) == 1
            counter["value"] = -1
            counter["value"] = 5
            assert _next(asking) == 5
        finally:
            asking.close()
            server.shutdown()
            thread.join()
    assert list(asking.poll()) == []


def _next(asking: Asking) -> float:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for _, counter in asking.poll():
            return counter
        threading.Event().wait(0.01)
    raise AssertionError("no answer")


@pytest.mark.parametrize(
    ("signals", "counter"),
    [
        ((), None),
        (((0.0, 10.0),), 10),
        (((0.9, 10.0), (1.05, 11.0), (1.4, 12.0)), 11),
        (((0.9, 10.0), (1.35, 11.0)), 10),
        (((0.9, 10.0), (1.05, 11.0)), 11),
        (((1.3, 1.0),), None),
        (((1.05, 1.0), (1.06, 2.0)), 2),
    ],
)
def test_a_workload_that_stands_still_is_silent(signals, counter):
    """It stood still somewhere between 1.0 and 1.4."""
    assert held(signals, 1.0, 1.4) == counter
