"""One workload, one store, two machines' worth of state: it moves, and never runs twice."""

from __future__ import annotations

import signal

import pytest
from supervised import LIMIT_S, Site, lines, wait_for

pytestmark = pytest.mark.criu

MANY = 4000
"""Lines, one every 50 ms: more than anything here takes, until `Site.hurry`."""
COUNT = ["--", "python3", "count.py", str(MANY), "0.05"]


@pytest.fixture
def sites(tmp_path):
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(Site(tmp_path / name))
    yield made
    for site in made:
        site.close()


def test_it_goes_on_elsewhere_with_its_log_and_its_epoch(sites, tmp_path):
    here, there = sites
    run = ["run", "--name", "a", "--every", "never", "--store", str(tmp_path / "store"), *COUNT]
    first = here.start(*run)
    wait_for(lambda: len(here.log("a").splitlines()) > 30)
    refused = there.run(*run, cwd=here.work)
    assert refused.returncode == 11, refused.stderr.decode()
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 75
    here.hurry()
    moved = there.run(*run, cwd=here.work)
    assert moved.returncode == 0, moved.stderr.decode()
    assert b"goes on from a@1.1, life 2" in moved.stderr
    assert there.log("a") == lines(MANY)
    assert there.ps("a")["checkpoints"] == 1
    # The first machine learns from the store that it ended elsewhere, and starts anew.
    again = here.run(*run)
    assert (again.returncode, again.stdout) == (0, lines(MANY)), again.stderr.decode()


def test_another_machine_restores_by_name_what_it_never_ran(sites, tmp_path):
    here, there = sites
    first = here.start("run", "--name", "a", "--every", "never", "--store", str(tmp_path / "store"), *COUNT)
    wait_for(lambda: len(here.log("a").splitlines()) > 10)
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 75
    here.hurry()
    moved = there.run("restore", "a", "--store", str(tmp_path / "store"))
    assert moved.returncode == 0, moved.stderr.decode()
    assert there.log("a") == lines(MANY)


def test_an_encrypted_store_needs_its_key(sites, tmp_path):
    here, there = sites
    key = tmp_path / "key"
    key.write_bytes(b"k" * 48)
    key.chmod(0o600)
    run = ["run", "--name", "a", "--every", "never", "--store", str(tmp_path / "store")]
    first = here.start(*run, "--key-file", str(key), *COUNT)
    wait_for(lambda: len(here.log("a").splitlines()) > 10)
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 75
    assert not any(b"line 1" in path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert there.run(*run, *COUNT, cwd=here.work).returncode == 12
    assert here.ps("a")["checkpoints"] == 1
    here.hurry()
    # This machine remembers which key it was.
    assert here.run(*run, *COUNT).returncode == 0
    assert here.log("a") == lines(MANY)


def test_it_finds_its_epoch_where_it_first_was_however_often_it_moves(sites, tmp_path):
    here, there = sites
    (tmp_path / "three").mkdir()
    last = Site(tmp_path / "three")
    sites.append(last)
    run = ["run", "--name", "a", "--every", "never", "--store", str(tmp_path / "store"), *COUNT]
    for move, site in enumerate((here, there), 1):
        process = site.start(*run, cwd=here.work)
        wait_for(lambda site=site, move=move: len(site.log("a").splitlines()) > 20 * move)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 75, process.communicate()
    here.hurry()
    assert last.run(*run, cwd=here.work).returncode == 0
    assert last.log("a") == lines(MANY)
    assert (here.folder / "run" / "a" / "epoch").read_text() == "3\na\n"
    assert (here.folder / "run" / "a" / "epoch.gate").exists()


WAITS = """
import os, sys, time
print("begun", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("ended", flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("detached", [False, True], ids=["foreground", "background"])
def test_one_that_completes_while_its_next_life_waits_for_its_lease_does_not_run_again(sites, tmp_path, detached):
    here, there = sites
    (here.work / "waits.py").write_text(WAITS)
    # In a PID namespace of its own the older copy is to the other one what a process of another machine is: nobody can look it up.
    older = there.start(
        "run", "--name", "a", "--every", "never", "--store", str(tmp_path / "store"), "--", "python3", "waits.py", "go",
        cwd=here.work, env={"PERDURE_LEASE_TTL": "180s"}, wrapped_in=("unshare", "--pid", "--fork", "--mount-proc"),
    )  # fmt: skip
    wait_for(lambda: b"begun" in there.log("a"))
    said = tmp_path / "said"
    with open(said, "wb") as errors:
        follower = here.start(
            "run", "--name", "a", "--every", "never", "--store", str(tmp_path / "store"), *(["-d"] if detached else []),
            "--", "python3", "waits.py", "go", stderr=errors, env={"PERDURE_LEASE_TTL": "180s"},
        )  # fmt: skip
    told = here.state / "workloads" / "a" / "supervisor.log" if detached else said
    wait_for(lambda: told.exists() and b"gave no sign of its end" in told.read_bytes())
    (here.work / "go").touch()
    assert older.wait(LIMIT_S) == 7, older.communicate()
    assert follower.wait(120) == 7, said.read_bytes()
    assert b"a ended meanwhile, in its life 1: it ended with 7; nothing was started" in said.read_bytes()
    assert there.log("a") == b"begun\nended\n"
    assert here.log("a") == b""
    assert (here.ps("a")["state"], here.ps("a")["epoch"]) == ("failed", 1)
    # As everywhere, one that ended by itself is started anew by whoever asks after that.
    again = here.run("run", "--name", "a", "--every", "never", "--store", str(tmp_path / "store"), "--", "python3", "waits.py", "go")
    assert (again.returncode, again.stdout) == (7, b"begun\nended\n")
