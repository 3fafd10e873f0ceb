"""What goes along with a workload: the files it was told to include, and the probe that has the last word."""

from __future__ import annotations

import json
import os
import signal

import pytest
from supervised import LIMIT_S, lines, wait_for
from writing import holding

from perdure.base.proc import process

pytestmark = pytest.mark.criu


MANY = 2000
"""Lines, one every 50 ms: more than anything here takes, until `Site.hurry`."""

WRITE = f"""
import os, pathlib, time
results = pathlib.Path("results")
results.mkdir(exist_ok=True)
for number in range({MANY}):
    (results / f"part-{{number}}").write_text(str(number))
    print("line", number, flush=True)
    if not os.path.exists("hurry"):
        time.sleep(0.05)
print(sorted(int(path.read_text()) for path in results.iterdir()) == list(range({MANY})), flush=True)
"""


def test_an_included_folder_comes_back_as_it_was(site):
    (site.work / "write.py").write_text(WRITE)
    run = ["run", "--name", "a", "--every", "never", "--outputs", "results", "--", "python3", "write.py"]
    first = site.start(*run)
    wait_for(lambda: len(site.log("a").splitlines()) > 15)
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 75
    for path in (site.work / "results").iterdir():
        path.unlink()
    (site.work / "results").rmdir()
    site.hurry()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert site.log("a") == lines(MANY) + b"True\n"


@pytest.mark.parametrize(("probe", "status"), [("test -f marker", 20), ("true", 0), ("echo fine; test -f marker", 20), ("false | cat", 0)])
def test_the_probe_decides_whether_it_is_restored(site, probe, status):
    run = ["run", "--name", "a", "--every", "never", "--probe", probe, "--", "python3", "count.py", str(MANY), "0.05"]
    first = site.start(*run)
    wait_for(lambda: len(site.log("a").splitlines()) > 10)
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 75
    if status:
        refused = site.run(*run)
        assert refused.returncode == status, refused.stderr.decode()
        assert b"the probe failed" in refused.stderr
        assert site.ps("a")["state"] == "stopped"
        (site.work / "marker").touch()
    again, stood = site.start(*run), len(site.log("a"))
    # One that ended before the probe was asked would not need it.
    wait_for(lambda: len(site.log("a")) > stood or again.poll() is not None)
    site.hurry()
    _, err = again.communicate(timeout=LIMIT_S)
    assert again.returncode == 0, err.decode()
    assert site.log("a") == lines(MANY)


IN_PLACE = """
import os, time
table = os.open("table", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(table, 0, 65 << 20)
print("ready", flush=True)
while not os.path.exists("hurry"):
    time.sleep(0.01)
"""
"""Holds open a file that could be written in place and is too large to go along."""


def test_what_a_checkpoint_does_not_hold_is_said_once_and_to_whoever_asked_for_it(site):
    (site.work / "hold.py").write_text(IN_PLACE)
    running = site.start("run", "--name", "a", "--every", "never", "--outputs", "nowhere", "--", "python3", "hold.py")
    wait_for(lambda: site.log("a") == b"ready\n")
    expected = {"file-overwrite-unsaved": str(site.work / "table"), "file-include-missing": str(site.work / "nowhere")}
    for _ in range(2):
        asked = site.run("checkpoint", "a", "--json")
        told = {each["code"]: each["path"] for each in json.loads(asked.stdout)["warnings"]}
        assert told.items() >= expected.items(), told
    shown = site.run("checkpoint", "a").stderr.decode()
    assert all(code in shown for code in expected), shown
    assert site.run("checkpoint", "a", "--quiet").stderr == b""
    site.hurry()
    _, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 0, err.decode()
    said = [line for line in err.decode().splitlines() if any(f"{path}: " in line for path in expected.values())]
    assert len(said) == 2, err.decode()


def test_programs_are_told_of_warnings_once_a_life(site):
    (site.work / "hold.py").write_text(IN_PLACE)
    running = site.start(
        "run", "--name", "a", "--every", "never", "--outputs", "nowhere", "--json", "--events", "events", "--", "python3", "hold.py"
    )
    wait_for(lambda: site.log("a") == b"ready\n")
    for _ in range(2):
        assert site.run("checkpoint", "a", "--quiet").returncode == 0
    site.hurry()
    _, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 0, err.decode()
    told = [json.loads(line) for line in err.splitlines()]
    assert [json.loads(line) for line in (site.work / "events").read_bytes().splitlines()] == told
    warnings = {one["code"]: one for one in told if one["phase"] == "warning"}
    assert len(warnings) == sum(one["phase"] == "warning" for one in told), told
    assert warnings.keys() >= {"file-overwrite-unsaved", "file-include-missing"}
    missing = warnings["file-include-missing"]
    assert (missing["workload"], missing["about"]) == ("a", str(site.work / "nowhere"))
    assert missing["text"] == "was to be included and is not there"
    assert "--outputs" in warnings["file-overwrite-unsaved"]["remedy"]
    assert all(set(one) <= {"type", "phase", "workload", "at_ns", "text", "code", "about", "remedy"} for one in warnings.values())


def test_programs_are_told_what_a_restore_keeps_aside(site):
    run = ["run", "--name", "a", "--every", "never", "--json", "--", "python3", "count.py", str(MANY), "0.05"]
    first = site.start(*run)
    wait_for(lambda: len(site.log("a").splitlines()) > 10)
    assert site.run("checkpoint", "a").returncode == 0
    kept = len(site.log("a").splitlines())
    wait_for(lambda: len(site.log("a").splitlines()) > kept + 10)
    first.kill()
    first.wait(LIMIT_S)
    site.hurry()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    told = [json.loads(line) for line in again.stderr.splitlines()]
    cut = [one for one in told if one.get("code") == "restore-log-cut"]
    assert len(cut) == 1, told
    assert "kept beside it" in cut[0]["text"]


NOTE = """
import os, sys, time
table = os.open("table", os.O_RDWR | os.O_CREAT)
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(int(sys.argv[1])):
    os.pwrite(table, b"%d" % number, 0)
    os.write(log, b"%d\\n" % number)
    print("line", number, flush=True)
    if not os.path.exists("hurry"):
        time.sleep(0.01)
"""
"""Writes a number in place into one file, and appends it to another."""


def test_files_that_somebody_else_writes_in_place_are_not_touched_and_those_that_others_append_to_are(site):
    (site.work / "note.py").write_text(NOTE)
    run = ["run", "--name", "a", "--every", "never", "--", "python3", "note.py", str(MANY)]
    first = site.start(*run)
    wait_for(lambda: len(site.log("a").splitlines()) > 10)
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 75
    table, log = site.work / "table", site.work / "log"
    table.write_bytes(b"of another")
    with open(log, "ab") as another:
        another.write(b"of another\n")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (table, log)}
    with holding((str(table), os.O_WRONLY, 0, 0), (str(log), os.O_WRONLY | os.O_APPEND, 0, 0)) as pid:
        refused = site.run(*run)
        assert refused.returncode == 22, refused.stderr.decode()
        said = f"restore-output-in-use: {table}: process {pid} ({process.stat(pid).command}) has it open for writing"
        assert said in refused.stderr.decode(), refused.stderr.decode()
        foreseen = site.run("check", "--restore", "a", "--json")
        assert foreseen.returncode == 4, foreseen.stderr.decode()
        told = {one["path"]: one for one in json.loads(foreseen.stdout)["findings"] if one["code"].startswith("restore-output")}
        assert {path: (one["code"], one["pid"]) for path, one in told.items()} == {
            str(table): ("restore-output-in-use", pid),
            str(log): ("restore-output-shared", pid),
        }
        assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
        assert not list(site.work.glob("*perdure-tail*"))
    site.hurry()
    with holding((str(log), os.O_WRONLY | os.O_APPEND, 0, 0)) as pid:
        said = f"{log}: process {pid} ({process.stat(pid).command}) appends to it, too"
        again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert said in again.stderr.decode()
    assert log.read_text() == "".join(f"{number}\n" for number in range(MANY))
    assert any(b"of another\n" in path.read_bytes() for path in site.work.glob("log.perdure-tail-*"))
