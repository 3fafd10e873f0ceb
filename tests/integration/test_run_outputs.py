"""What goes along with a workload: the files it was told to include, and the probe that has the last word."""

from __future__ import annotations

import signal

import pytest
from supervised import lines, wait_for

pytestmark = pytest.mark.criu


WRITE = """
import pathlib, time
results = pathlib.Path("results")
results.mkdir(exist_ok=True)
for number in range(60):
    (results / f"part-{number}").write_text(str(number))
    print("line", number, flush=True)
    time.sleep(0.05)
print(sorted(int(path.read_text()) for path in results.iterdir()) == list(range(60)), flush=True)
"""


def test_an_included_folder_comes_back_as_it_was(site):
    (site.work / "write.py").write_text(WRITE)
    run = ["run", "--name", "a", "--every", "never", "--outputs", "results", "--", "python3", "write.py"]
    first = site.start(*run)
    wait_for(lambda: len(site.log("a").splitlines()) > 15)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 75
    for path in (site.work / "results").iterdir():
        path.unlink()
    (site.work / "results").rmdir()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert site.log("a") == lines(60) + b"True\n"


@pytest.mark.parametrize(("probe", "status"), [("test -f marker", 20), ("true", 0), ("echo fine; test -f marker", 20), ("false | cat", 0)])
def test_the_probe_decides_whether_it_is_restored(site, probe, status):
    run = ["run", "--name", "a", "--every", "never", "--probe", probe, "--", "python3", "count.py", "60", "0.05"]
    first = site.start(*run)
    wait_for(lambda: len(site.log("a").splitlines()) > 10)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 75
    again = site.run(*run)
    assert again.returncode == status, again.stderr.decode()
    if status:
        assert b"the probe failed" in again.stderr
        assert site.ps("a")["state"] == "stopped"
        (site.work / "marker").touch()
        again = site.run(*run)
        assert again.returncode == 0, again.stderr.decode()
    assert site.log("a") == lines(60)
