"""What goes along with a workload: the files it was told to include, and the probe that has the last word."""

from __future__ import annotations

import json
import signal

import pytest
from supervised import LIMIT_S, lines, wait_for

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
