"""One workload, one store, two machines' worth of state: it moves, and never runs twice."""

from __future__ import annotations

import signal

import pytest
from supervised import Site, lines, wait_for

pytestmark = pytest.mark.criu

COUNT = ["--", "python3", "count.py", "120", "0.05"]


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
    assert first.wait(60) == 75
    moved = there.run(*run, cwd=here.work)
    assert moved.returncode == 0, moved.stderr.decode()
    assert b"goes on from a@1.1, life 2" in moved.stderr
    assert there.log("a") == lines(120)
    assert there.ps("a")["checkpoints"] == 1
    # The first machine learns from the store that it ended elsewhere, and starts anew.
    again = here.run(*run)
    assert (again.returncode, again.stdout) == (0, lines(120)), again.stderr.decode()


def test_another_machine_restores_by_name_what_it_never_ran(sites, tmp_path):
    here, there = sites
    first = here.start("run", "--name", "a", "--every", "never", "--store", str(tmp_path / "store"), *COUNT)
    wait_for(lambda: len(here.log("a").splitlines()) > 10)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 75
    moved = there.run("restore", "a", "--store", str(tmp_path / "store"))
    assert moved.returncode == 0, moved.stderr.decode()
    assert there.log("a") == lines(120)


def test_an_encrypted_store_needs_its_key(sites, tmp_path):
    here, there = sites
    key = tmp_path / "key"
    key.write_bytes(b"k" * 48)
    key.chmod(0o600)
    run = ["run", "--name", "a", "--every", "never", "--store", str(tmp_path / "store")]
    first = here.start(*run, "--key-file", str(key), *COUNT)
    wait_for(lambda: len(here.log("a").splitlines()) > 10)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 75
    assert not any(b"line 1" in path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert there.run(*run, *COUNT, cwd=here.work).returncode == 12
    assert here.ps("a")["checkpoints"] == 1
    # This machine remembers which key it was.
    assert here.run(*run, *COUNT).returncode == 0
    assert here.log("a") == lines(120)


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
        assert process.wait(60) == 75, process.communicate()
    assert last.run(*run, cwd=here.work).returncode == 0
    assert last.log("a") == lines(120)
    assert (here.folder / "run" / "a" / "epoch").read_text() == "3\na\n"
    assert (here.folder / "run" / "a" / "epoch.gate").exists()
