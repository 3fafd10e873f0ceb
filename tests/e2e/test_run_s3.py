"""A workload whose store is a real bucket: it moves without carrying, and goes on when the bucket's server is away."""

from __future__ import annotations

import signal

import pytest
from s3server import S3Server
from supervised import LIMIT_S, Site, lines, wait_for

pytestmark = [pytest.mark.criu, pytest.mark.s3]

COUNT = ["--", "python3", "count.py"]


@pytest.fixture
def sites(tmp_path, object_store):
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(Site(tmp_path / name))
        made[-1].environment |= object_store.environment()
    yield made
    for site in made:
        site.close()


def test_it_moves_through_a_bucket(sites, object_store: S3Server):
    here, there = sites
    run = ["run", "--name", "a", "--every", "never", "--store", object_store.url(object_store.bucket()), *COUNT, "4000", "0.05"]
    first = here.start(*run)
    wait_for(lambda: len(here.log("a").splitlines()) > 20)
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 75, first.communicate()
    here.hurry()
    moved = there.run(*run, cwd=here.work)
    assert moved.returncode == 0, moved.stderr.decode()
    assert b"goes on from a@1.1, life 2" in moved.stderr
    assert there.log("a") == lines(4000)


def test_without_its_server_the_workload_goes_on_and_is_saved_when_it_is_back(tmp_path):
    # A server of its own, since it is stopped.
    server = S3Server()
    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site")
    try:
        server.start()
        site.environment |= server.environment()
        said = tmp_path / "said"
        with open(said, "wb") as errors:
            process = site.start(
                "run", "--name", "a", "--every", "never", "--store", server.url(server.bucket()), *COUNT, "100000", "0.05", stderr=errors
            )
        wait_for(lambda: len(site.log("a").splitlines()) > 10)
        assert site.run("checkpoint", "a", "--json").returncode == 0, said.read_bytes()
        server.stop_gateway()
        asking = site.start("checkpoint", "a", "--json")
        written = len(site.log("a").splitlines())
        wait_for(lambda: len(site.log("a").splitlines()) > written + 50)
        assert process.poll() is None, said.read_bytes()
        server.start_gateway()
        # It was tried again, with growing pauses, until the server was back.
        out, err = asking.communicate(timeout=LIMIT_S)
        assert asking.returncode == 0, (out, err, said.read_bytes())
        assert site.ps("a")["checkpoints"] == 2
        assert site.run("stop", "a").returncode == 0
    finally:
        site.close()
        server.remove()
