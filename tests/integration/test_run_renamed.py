"""Large files that are written under one name and given another: what the checkpoint was in the middle of can be gone on with."""

from __future__ import annotations

import socket

import pytest
from supervised import LIMIT_S, Site, lines, wait_for

pytestmark = pytest.mark.criu

PIECES = 66
"""MiB of the file at the checkpoint: more than goes along by itself."""

SAVE = f"""
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
with open("port", "w") as output:
    output.write(str(listener.getsockname()[1]))
number = 0
def go_on(sign):
    global number
    while not os.path.exists(sign):
        time.sleep(0.02)
    print("line", number, flush=True)
    number += 1
def write(output, begin, end):
    for piece in range(begin, end):
        output.write(piece.to_bytes(4, "little") * (1 << 18))
go_on("begin")
with open("model.tmp", sys.argv[1], buffering=0) as output:
    write(output, 0, {PIECES})
    go_on("written")
    write(output, {PIECES}, {PIECES} + 2)
os.rename("model.tmp", "model.pt")
go_on("renamed")
go_on("end")
"""

WHOLE = b"".join(piece.to_bytes(4, "little") * (1 << 18) for piece in range(PIECES + 2))


def run(mode: str) -> tuple[str, ...]:
    return ("run", "--name", "a", "--every", "never", "--", "python3", "save.py", mode)


def signs(site: Site, *names: str) -> None:
    for name in names:
        (site.work / name).touch()


def saved_in_the_middle(site: Site, mode: str) -> None:
    """Make one checkpoint before the file is there and one while it is written; end the workload once the file has got its name."""
    (site.work / "save.py").write_text(SAVE)
    process = site.start(*run(mode))
    wait_for(lambda: site.run("checkpoint", "a").returncode == 0)
    signs(site, "begin")
    wait_for(lambda: (site.work / "model.tmp").exists() and (site.work / "model.tmp").stat().st_size == PIECES << 20)
    assert site.run("checkpoint", "a").returncode == 0
    signs(site, "written", "renamed")
    wait_for(lambda: site.log("a") == lines(3))
    site.kill_all(process)


def test_the_file_is_under_its_name_of_then_again_and_under_its_new_one(site: Site):
    saved_in_the_middle(site, "wb")
    (site.work / "written").unlink()
    again = site.start(*run("wb"))
    wait_for(lambda: (site.work / "model.tmp").exists() or again.poll() is not None)
    wait_for(lambda: site.log("a") == lines(1) or again.poll() is not None)
    assert again.poll() is None, again.stderr.read().decode()
    assert (site.work / "model.tmp").read_bytes() == WHOLE[: PIECES << 20]
    assert (site.work / "model.pt").read_bytes() == WHOLE
    (site.work / "model.pt").unlink()
    signs(site, "written", "end")
    _, err = again.communicate(timeout=LIMIT_S)
    assert again.returncode == 0, err.decode()
    assert b"goes on from a@1.2" in err
    assert (site.work / "model.pt").read_bytes() == WHOLE
    assert not (site.work / "model.tmp").exists()


@pytest.mark.parametrize("lost", ["overwritten anywhere", "removed"])
def test_where_that_is_not_known_an_older_checkpoint_is_taken_and_that_is_said(site: Site, lost: str):
    mode = "w+b" if lost == "overwritten anywhere" else "wb"
    saved_in_the_middle(site, mode)
    if lost == "removed":
        (site.work / "model.pt").unlink()
    signs(site, "end")
    named = site.run("restore", "a", "--from", "a@1.2")
    assert named.returncode == 22, named.stderr.decode()
    assert b"restore-output-missing" in named.stderr
    again = site.run(*run(mode))
    assert again.returncode == 0, again.stderr.decode()
    assert b"a@1.2 cannot be restored: restore-output-missing" in again.stderr
    assert b"goes on from a@1.1" in again.stderr
    assert site.log("a") == lines(4)
    assert (site.work / "model.pt").read_bytes() == WHOLE


def test_what_will_pass_leads_to_no_older_one(site: Site):
    saved_in_the_middle(site, "wb")
    with socket.create_server(("127.0.0.1", int((site.work / "port").read_text()))):
        refused = site.run(*run("wb"))
    assert refused.returncode == 22, refused.stderr.decode()
    assert b"restore-port-taken" in refused.stderr
    signs(site, "end")
    again = site.run(*run("wb"))
    assert again.returncode == 0, again.stderr.decode()
    assert b"goes on from a@1.2" in again.stderr


def test_where_none_can_be_restored_the_newest_says_why(site: Site):
    saved_in_the_middle(site, "wb")
    (site.work / "model.pt").unlink()
    (removed,) = (path for path in site.state.glob("store/workloads/a/manifests/*.00000001"))
    removed.unlink()
    refused = site.run(*run("wb"))
    assert refused.returncode == 22, refused.stderr.decode()
    assert refused.stderr.count(b"restore-output-missing") == 1
