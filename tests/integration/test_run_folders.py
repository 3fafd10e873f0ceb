"""Folders for temporary files that only a socket, a working directory or a descriptor of the workload lies in, and named pipes: they are
made again."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervised import LIMIT_S, Site, wait_for

from perdure.checkpoint.outputs import rules

pytestmark = pytest.mark.criu

SERVE = """
import os, socket, sys, tempfile, time
own = tempfile.mkdtemp(prefix="pymp-", dir="scratch")
os.mkdir(f"{own}/deep", 0o750)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(os.path.abspath(f"{own}/listener"))
    listener.listen()
    kept = os.open(f"{own}/deep", os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("scratch/worked-in", 0o1750)
    os.chdir("scratch/worked-in")
    print("up", flush=True)
    while not os.path.exists("../../hurry"):
        time.sleep(0.02)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(listener.getsockname())
        client.sendall(b"hello")
        print(listener.accept()[0].recv(5), os.path.basename(os.getcwd()))
    print(sorted(os.listdir("/proc/self/fd/%d/.." % kept)), flush=True)
"""
"""What a data loader of PyTorch leaves in /tmp while it runs: a socket with a name. And a folder that is worked in, and one held open."""

RUN = ("run", "--name", "a", "--every", "never", "--", "python3", "serve.py")


@pytest.fixture
def site() -> Iterator[Site]:
    """A site in a folder of a short name: the address of a socket holds 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="perdure-") as folder:
        made = Site(Path(folder))
        yield made
        made.close()


@pytest.fixture
def stopped(site: Site) -> Site:
    """A site whose workload was saved and given up."""
    return stop(site, SERVE)


def stop(site: Site, program: str) -> Site:
    if not rules.is_volatile(f"{site.work}/"):
        pytest.skip("temporary files lie in an unusual folder")
    (site.work / "serve.py").write_text(program)
    (site.work / "scratch").mkdir(mode=0o711)
    process = site.start(*RUN)
    wait_for(lambda: site.log("a") == b"up\n" or process.poll() is not None)
    return leave(site, process)


def leave(site: Site, process: subprocess.Popen[bytes]) -> Site:
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 75, err.decode()
    return site


def modes(folder: Path) -> dict[str, str]:
    return {path.name.partition("-")[0]: oct(stat.S_IMODE(path.stat().st_mode)) for path in (folder, *folder.rglob("*")) if path.is_dir()}


def goes_on(site: Site) -> None:
    (site.work / "hurry").touch()
    again = site.run(*RUN)
    assert again.returncode == 0, again.stderr.decode()
    assert site.log("a").splitlines()[:2] == [b"up", b"b'hello' worked-in"]


def test_a_folder_of_sockets_is_made_again(stopped: Site):
    before = modes(stopped.work / "scratch")
    assert before == {"scratch": "0o711", "pymp": "0o700", "deep": "0o750", "worked": "0o1750"}
    shutil.rmtree(stopped.work / "scratch")
    tried = stopped.run("store", "verify", "--restore", "a")
    assert tried.returncode == 0, tried.stderr.decode()
    assert not (stopped.work / "scratch").exists()
    goes_on(stopped)
    assert modes(stopped.work / "scratch") == before


def test_what_is_there_still_stays(stopped: Site):
    (own,) = (stopped.work / "scratch").glob("pymp-*")
    assert stat.S_ISSOCK((own / "listener").stat().st_mode)
    (own / "mine").write_text("kept")
    own.chmod(0o755)
    goes_on(stopped)
    assert (own / "mine").read_text() == "kept"
    assert stat.S_IMODE(own.stat().st_mode) == 0o755


def test_something_else_where_a_socket_was_is_not_removed(stopped: Site):
    (listener,) = (stopped.work / "scratch").glob("pymp-*/listener")
    listener.unlink()
    listener.write_text("somebody's")
    refused = stopped.run(*RUN)
    assert refused.returncode == 20
    assert f"move {listener} away" in refused.stderr.decode()
    assert listener.read_text() == "somebody's"
    listener.unlink()
    goes_on(stopped)


PIPE = """
import os, time
os.umask(0)
os.mkfifo("scratch/pipe", 0o620)
os.chown("scratch/pipe", 17, 18)
ours = os.open("scratch/pipe", os.O_RDWR)
child = os.fork()
if child == 0:
    theirs = os.open("scratch/pipe", os.O_WRONLY)
    os.close(ours)
    os.write(theirs, b"unread ")
    while not os.path.exists("hurry"):
        time.sleep(0.02)
    os.write(theirs, b"and more")
    os._exit(0)
print("up", flush=True)
os.waitpid(child, 0)
print(os.read(ours, 100), flush=True)
"""


@pytest.fixture
def piped(site: Site) -> Site:
    """A site whose workload, which talks over a named pipe, was saved and given up."""
    return stop(site, PIPE)


def pipe_ends_well(site: Site) -> None:
    (site.work / "hurry").touch()
    again = site.run(*RUN)
    assert again.returncode == 0, again.stderr.decode()
    assert site.log("a").splitlines() == [b"up", b"b'unread and more'"]


def test_a_named_pipe_is_made_again_in_each_life(piped: Site):
    place = piped.work / "scratch/pipe"
    for _ in range(2):
        shutil.rmtree(piped.work / "scratch")
        tried = piped.run("store", "verify", "--restore", "a")
        assert tried.returncode == 0, tried.stderr.decode()
        assert not place.exists()
        process = piped.start(*RUN)
        wait_for(lambda process=process: piped.ps("a")["state"] == "running" or process.poll() is not None)
        leave(piped, process)
        there = place.lstat()
        assert (stat.S_IFMT(there.st_mode), stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid) == (stat.S_IFIFO, 0o620, 17, 18)
    place.unlink()
    pipe_ends_well(piped)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_something_else_where_a_named_pipe_was_is_left_alone(piped: Site, tmp_path: Path, kind: str):
    place = piped.work / "scratch/pipe"
    place.unlink()
    if kind == "file":
        place.write_text("somebody's")
    else:
        os.mkfifo(tmp_path / "another")
        place.symlink_to(tmp_path / "another")
    before = place.lstat()
    refused = piped.run(*RUN)
    assert refused.returncode == 22
    assert f"restore-pipe-taken: {place}: " in refused.stderr.decode()
    after = place.lstat()
    assert (after.st_ino, after.st_size, after.st_mode) == (before.st_ino, before.st_size, before.st_mode)
    place.unlink()
    pipe_ends_well(piped)
