"""Cold starts: the table and the fit from recorded runs; the probes that end both clocks; which answers count as the same."""

from __future__ import annotations

import http.server
import json
import os
import threading

import msgspec
import numpy as np
import pytest
import reported
import synthetic_runs
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perdure import errors
from perdure.evaluation import arms, coldstart, coldtable, ready, runs
from perdure.evaluation.plan_workload import Ready, Request
from perdure.evaluation.watched import Watched
from perdure.model.evaluation import Arm, EventKind
from perdure.stats import line


@pytest.fixture
def cold(tmp_path):
    there = reported.begin(tmp_path / "trial")
    return coldtable.summarise(reported.cold_starts(there), level=0.9)


def test_both_clocks_stand_beside_each_other(cold):
    found = {(one.side, one.cache): (one.runs, one.median_s, one.fastest_s, one.slowest_s) for one in cold.groups}
    assert found["native", "cold"] == (3, 91.0, 90.0, 92.0)
    assert found["native", "warm"] == (3, 61.0, 60.0, 62.0)
    assert found["restore", "warm"] == pytest.approx((3, 2.1, 1.2, 3.0))
    assert (cold.asked, cold.same) == (6, 6)
    assert len(cold.runs) == 12


def test_restore_time_is_fitted_for_each_state_of_the_cache(cold):
    fits = {one.cache: one for one in cold.fits}
    assert set(fits) == {"cold", "warm"}
    oracle = stats.linregress([float(1 << 30), float(2 << 30), float(4 << 30)], [1.0, 1.9, 2.8])
    assert fits["warm"].line.slope == pytest.approx(oracle.slope)
    assert fits["warm"].line.intercept == pytest.approx(oracle.intercept)
    assert fits["warm"].formula == "restore_s = 0.55 + 0.5388 · logical_bytes / 10⁹"


def test_what_was_left_out_is_counted_and_named(tmp_path):
    there = reported.begin(tmp_path / "trial")
    runs = reported.cold_starts(there)
    runs[0] = type(runs[0])(**{name: getattr(runs[0], name) for name in runs[0].__struct_fields__} | {"excluded": "the disk was full"})
    found = coldtable.summarise(runs, level=0.9)
    native = next(one for one in found.groups if (one.side, one.cache) == ("native", "cold"))
    assert (native.runs, native.failed, native.excluded) == (2, 0, 1)
    assert [one.excluded for one in found.runs if one.excluded] == ["the disk was full"]


def test_checkpoints_of_one_size_give_no_line(tmp_path):
    there = reported.begin(tmp_path / "trial")
    same = [run for run in reported.cold_starts(there) if run.repetition == 0]
    (fit,) = (one for one in coldtable.summarise(same * 3, level=0.9).fits if one.cache == "warm")
    assert fit.line is None
    assert "about as large" in fit.why_not


# The line, against another implementation


@given(
    st.lists(st.tuples(st.floats(1, 1e3), st.floats(-1e3, 1e3)), min_size=3, max_size=30),
    st.sampled_from([0.8, 0.9, 0.95]),
)
def test_the_line_is_that_of_scipy(points, level):
    x, y = (list(column) for column in zip(*points, strict=True))
    found = line.fit(x, y, level=level)
    if found is None:
        assert max(x) < 1.2 * min(x)
        return
    oracle = stats.linregress(x, y)
    scale = max(1.0, np.abs(y).max())
    assert found.slope == pytest.approx(oracle.slope, rel=1e-6, abs=1e-6 * scale)
    assert found.intercept == pytest.approx(oracle.intercept, rel=1e-6, abs=1e-6 * scale)
    # Where all y are the same, SciPy divides nothing by nothing.
    half = 0.0 if len(set(y)) == 1 else stats.t.ppf((1 + level) / 2, len(x) - 2) * oracle.stderr
    assert found.slope_interval.high - found.slope == pytest.approx(half, rel=1e-5, abs=1e-6 * scale)


def test_two_points_tell_no_line():
    assert line.fit([1.0, 2.0], [1.0, 2.0], level=0.9) is None
    exact = line.fit([1.0, 2.0, 3.0], [3.0, 5.0, 7.0], level=0.9)
    assert exact.at(10) == pytest.approx(21)
    assert not exact.is_within(10)
    assert exact.is_within(2)


# The probes


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(ready, "_ANSWER_S", 120.0)

    class Handler(http.server.BaseHTTPRequestHandler):
        status = 200

        def do_GET(self):
            self.send_response(self.status)
            if self.status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(b"here")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body[::-1])

        def log_message(self, *_):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_address[1]}/", Handler
    running.shutdown()
    thread.join()
    running.server_close()


def test_only_status_200_is_ready(server):
    address, handler = server
    ask = ready.opener()
    assert ready.is_answered(ask, address)
    for handler.status in (204, 302, 404, 503):
        assert not ready.is_answered(ask, address)
    assert not ready.is_answered(ask, "http://127.0.0.1:9/")


def test_what_answers_before_the_start_is_not_the_workload(server, tmp_path):
    with pytest.raises(errors.UsageError, match="before the workload was started"):
        ready.probe(Ready(kind="http", url=server[0]), tmp_path / "log", str(tmp_path))
    with pytest.raises(errors.UsageError):
        ready.probe(Ready(kind="command", command=("true",)), tmp_path / "log", str(tmp_path))


def test_only_new_signs_count(tmp_path):
    log = tmp_path / "log"
    seen = ready.probe(Ready(kind="log", pattern="ready [0-9]+"), log, str(tmp_path))
    assert not seen()
    log.write_bytes(b"loading\nread")
    assert not seen()
    log.write_bytes(b"loading\nready 1")
    assert seen()

    (tmp_path / "flag").write_text("of an earlier life")
    appeared = ready.probe(Ready(kind="file", path="flag"), log, str(tmp_path))
    assert not appeared()
    (tmp_path / "flag").write_text("of this one, and longer")
    assert appeared()


def test_answers_are_compared_by_content(server):
    address, handler = server
    asked = (Request(url=address), Request(url=address, method="POST", body="abc"), Request(url="http://127.0.0.1:9/"))
    first, second = ready.ask(asked), ready.ask(asked)
    assert first == second
    assert [one.status for one in first] == [200, 200, 0]
    assert first[2].error
    handler.status = 500
    assert ready.ask(asked)[0].status == 500
    assert ready.ask(asked) != first


def test_no_answer_is_never_the_same_answer(server):
    asked = (Request(url=server[0]), Request(url="http://127.0.0.1:9/"))
    answers = ready.ask(asked)
    assert compared(answers, ready.ask(asked)) == "different"
    assert coldstart._unanswered(asked, answers).startswith("http://127.0.0.1:9/ did not answer before the checkpoint: ")
    assert compared(answers[:1], ready.ask(asked[:1])) == "same"
    assert coldstart._unanswered(asked, answers[:1]) is None
    # A restore that was never ready was not asked.
    assert compared(answers[:1], ()) == "not asked"


def compared(before, after):
    saved = coldstart.Saved("1", 1, 1, before, None)
    return coldstart._compared(coldstart.Start(id="r", arm=Arm.MANAGED, repetition=1, cache="warm", saved=saved), after)


@pytest.mark.parametrize(
    ("told", "failure"),
    [
        (None, "it was ready, but the engine did not say that it was restored"),
        ("", "it was ready, but the engine did not say that it was restored"),
        ("w@1.1", None),
    ],
)
def test_a_restore_counts_when_the_engine_says_that_it_is_one(tmp_path, told, failure):
    events = tmp_path / "events"
    if told is not None:
        events.write_text(json.dumps({"phase": "running", "text": told, "at_ns": 0}) + "\n")
    recorder = runs.Recorder(tmp_path, msgspec.structs.replace(synthetic_runs.play(synthetic_runs.Script(), Arm.MANAGED), events=()))
    sides = coldstart._Sides(lambda: True, arms.Listener(events), is_restore=True)
    # The command has ended: nothing more is to be waited for.
    life = Watched(("true",), working_directory=str(tmp_path), environment={"PATH": os.environ["PATH"]}, log=tmp_path / "log")
    try:
        life.finish(patience_s=60.0)
        assert coldstart._until_ready(life, recorder, sides, wanted=Ready(kind="file", path="flag"), clock=lambda: 1.0) == failure
    finally:
        life.close()
        recorded = recorder.close(finished=True)
    assert (EventKind.RESTORED in {event.kind for event in recorded.events}) == (failure is None)


def test_a_restore_that_was_none_is_a_failed_start(tmp_path):
    starts = reported.cold_starts(reported.begin(tmp_path / "trial"))
    restore = next(run for run in starts if coldtable.summarise([run], level=0.9).runs[0].side == "restore")
    (found,) = coldtable.summarise([msgspec.structs.replace(restore, excluded="it was none")], level=0.9).runs
    assert found.is_failed
    assert found.ready_s is not None
    assert not any(one.is_failed for one in coldtable.summarise(starts, level=0.9).runs)


def test_no_other_checkpoint_is_made_while_it_is_measured():
    assert coldstart._without_interval(("--every", "10m", "--tcp", "keep", "--every=5m")) == ("--tcp", "keep")
