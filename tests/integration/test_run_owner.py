"""An ordinary user's workload under a root supervisor, from its start to its end: lives, files, refusals, and attempts to get more."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import signal
import stat
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from owners import PYTHON, USER, home, needs_root
from supervised import ROOT, descendants, is_zombie, remove_staged
from supervised import wait_for as wait

from perdure.model.checkpoint import CheckpointId
from perdure.supervisor import place

__all__ = ["home"]

pytestmark = [needs_root, pytest.mark.users, pytest.mark.criu]

COUNT = """
import os, sys, time
out = open("out", "w")
for number in range(int(sys.argv[1])):
    while number == int(sys.argv[1]) - 10 and not os.path.exists("go"):
        time.sleep(0.02)
    out.write(f"{number}\\n"), out.flush()
    print("line", number, flush=True)
    if not os.path.exists("go"):
        time.sleep(0.02)
sys.exit(int(sys.argv[2]))
"""
"""Counts to its first argument and ends with its second; until there is a file ``go`` it takes its time, and waits before the last ten."""


LIMIT_S = 240.0
"""For what takes a second or two where nothing else runs."""


def wait_for(is_true, what: str = "") -> None:
    wait(is_true, LIMIT_S, what)


class Desk:
    """One user's workload, and the supervisors that keep it one after the other."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home.parent
        self.run_dir, self.state, self.store = self.root / "run", self.root / "state", self.root / "store"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, *argv: str, environment: dict | None = None, options: dict | None = None, terminal: int | None = None, **more
    ) -> subprocess.Popen[bytes]:
        told = {
            "uid": USER.uid,
            "gid": USER.gid,
            "groups": USER.groups,
            "argv": argv,
            "cwd": str(self.home),
            "environment": {"PATH": os.environ["PATH"], "HOME": str(self.home)} | (environment or {}),
            "name": "count",
            "state": str(self.state),
            "run": str(self.run_dir),
            "store": str(self.store),
            "options": {"every": "never"} | (options or {}),
            "more": more,
        }
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/owner_run.py"), json.dumps(told)],
            cwd="/",
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "HOME": "/nonexistent", "OURS": "secret"},
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=None if terminal is None else lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no thread runs here
        )
        self._started.append(process)
        return process

    def counter(self, lines: int, status: int = 0, **options) -> subprocess.Popen[bytes]:
        (self.home / "count.py").write_text(COUNT)
        return self.start(PYTHON, "count.py", str(lines), str(status), **options)

    def finish(self, lines: int, status: int = 0, **options) -> tuple[int, str, str]:
        """Let the counter go on to its end."""
        (self.home / "go").touch()
        return self.ended(self.counter(lines, status, **options))

    @property
    def out(self) -> Path:
        return self.home / "out"

    def log(self) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return (self.state / f"users/{USER.uid}/workloads/count/log").read_bytes()
        return b""

    def save(self, process: subprocess.Popen[bytes]) -> str:
        """Make a checkpoint, as a signal asks for, and return its name."""
        before = self.checkpoints()
        process.send_signal(signal.SIGUSR1)
        wait_for(lambda: self.checkpoints() != before or process.poll() is not None, what="for a checkpoint")
        assert process.poll() is None, process.stderr.read().decode()
        return self.checkpoints()[-1]

    def checkpoints(self) -> list[str]:
        folder = self.store / "workloads/count/manifests"
        return sorted(path.name for path in folder.iterdir() if path.name[:1].isdigit() and len(path.name) == 17) if folder.is_dir() else []

    def hear(self, process: subprocess.Popen[bytes], *words: str) -> str:
        """Wait until the supervisor has said one of `words`, and return the line."""
        end_s = time.monotonic() + LIMIT_S
        told = b""
        while not any(each.encode() in told for each in words) or not told.endswith(b"\n"):
            ready, _, _ = select.select([process.stderr], [], [], max(end_s - time.monotonic(), 0))
            content = os.read(process.stderr.fileno(), 1 << 16) if ready else b""
            assert content, f"{words!r} was not said: {told.decode()}"
            told += content
        return next(line for line in told.decode().splitlines() if any(each in line for each in words))

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill everything at once."""
        below = descendants(process.pid)
        for pid in (process.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
        for pid in below:
            wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists() or is_zombie(pid), what=f"for {pid} to go")

    def ended(self, process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out.decode(), err.decode()

    @contextlib.contextmanager
    def repository(self):
        with place.opened(place.Place(url=str(self.store), key_file=None, cache=str(self.root / "look"), threads=1)) as found:
            yield found

    def stored(self) -> bytes:
        """Every byte of every file of every checkpoint, one after the other."""
        content = b""
        with self.repository() as repository:
            for one in repository.checkpoints("count"):
                folder = self.root / f"taken-{one.epoch}.{one.sequence}"
                folder.mkdir()
                repository.extract(one, folder, progress=lambda _: None)
                content += b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
        return content

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                self.kill(process)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        for folder in (self.state, self.root / "elsewhere"):
            remove_staged(folder)


@pytest.fixture
def desk(home):
    made = Desk(home)
    yield made
    made.close()


def written(path: Path, number: int) -> None:
    """Wait until the counter has come to `number` in its file."""
    wait_for(lambda: path.exists() and f"{number}\n".encode() in path.read_bytes(), what=f"for {number} in {path}")


def more_written(path: Path) -> None:
    """Wait until the counter has written more than it has by now."""
    size_bytes = path.stat().st_size
    wait_for(lambda: path.stat().st_size > size_bytes, what=f"for more in {path}")


def lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(count))


def test_three_lives_one_output_the_users_files_and_the_exit_status(desk):
    first = desk.counter(6000, 6)
    written(desk.out, 5)
    desk.save(first)
    written(desk.out, 20)
    more_written(desk.out)
    desk.kill(first)
    assert len(desk.out.read_text().splitlines()) > 20

    second = desk.counter(6000, 6)
    desk.hear(second, "goes on from")
    written(desk.out, 40)
    desk.save(second)
    written(desk.out, 60)
    more_written(desk.out)
    desk.kill(second)

    status, out, err = desk.finish(6000, 6)
    assert status == 6, err
    assert "life 3" in err
    assert out.splitlines()[-1] == "line 5999"
    assert desk.log().decode() == lines(6000)
    assert desk.out.read_text() == "".join(f"{number}\n" for number in range(6000))
    for path in desk.home.rglob("*"):
        if path.name not in ("count.py", "go"):
            assert (path.lstat().st_uid, path.lstat().st_gid) == (USER.uid, USER.gid), path
    tails = [path.name for path in desk.home.iterdir() if "perdure-tail" in path.name]
    assert sorted(tails) == ["out.perdure-tail-2", "out.perdure-tail-3"]
    with desk.repository() as repository:
        newest = repository.head(repository.checkpoints("count")[-1])
    assert newest.owner == USER
    assert {fact.uid for fact in newest.processes} == {0, USER.uid}


def test_folders_of_a_user_are_roots_and_lead_nobody_anywhere(desk):
    first = desk.counter(10_000)
    written(desk.out, 3)
    desk.save(first)
    modes = {
        desk.state: 0o700,
        desk.state / "users": 0o700,
        desk.state / f"users/{USER.uid}": 0o700,
        desk.run_dir: 0o755,
        desk.run_dir / "users": 0o711,
        desk.run_dir / f"users/{USER.uid}": 0o711,
        desk.run_dir / f"users/{USER.uid}/count": 0o711,
    }
    for folder, mode in modes.items():
        there = folder.stat()
        assert (there.st_uid, stat.S_IMODE(there.st_mode)) == (0, mode), folder
    live = desk.run_dir / f"users/{USER.uid}/count"
    assert stat.S_IMODE((live / "control.sock").stat().st_mode) == 0o600
    epoch = subprocess.run(["cat", str(live / "epoch")], user=USER.uid, group=USER.gid, extra_groups=[], capture_output=True, check=True)
    assert epoch.stdout == b"1\ncount\n"


def test_checkpoints_come_by_the_clock(desk):
    first = desk.counter(10_000, options={"every": 1.0, "keep": 2})
    wait_for(lambda: desk.checkpoints()[-1:] >= ["00000001.00000003"], what="for three checkpoints")
    # What is looked at would be removed while it runs on.
    desk.kill(first)
    with desk.repository() as repository:
        older, newer = (repository.head(one) for one in repository.checkpoints("count")[-2:])
    assert newer.created_ns - older.created_ns >= 1e9
    status, _, err = desk.ended(desk.start("true", fresh=True))
    assert status == 0, err


def test_a_terminal_is_the_users_in_every_life(desk):
    script = (
        "import os\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    word = input()\n"
        "    print('got', word, os.stat(os.ttyname(0)).st_uid, open(os.ttyname(0), 'w').isatty(), flush=True)\n"
    )
    (desk.home / "echo.py").write_text(script)
    for word in ("first", "second"):
        master, slave = os.openpty()
        try:
            process = desk.start(PYTHON, "echo.py", terminal=slave)
            wait_for(lambda: b"ready" in desk.log(), what="for the program")
            if word == "second":
                desk.hear(process, "goes on from")
            os.write(master, word.encode() + b"\n")
            wait_for(lambda word=word: f"got {word} {USER.uid} True".encode() in desk.log(), what=f"for {word}")
            if word == "first":
                desk.save(process)
            desk.kill(process)
        finally:
            os.close(master)
            os.close(slave)
    assert b"got first" in desk.log()


def test_the_log_of_another_machine_is_made_whole(desk):
    first = desk.counter(60)
    written(desk.out, 5)
    desk.save(first)
    written(desk.out, 12)
    desk.kill(first)
    # Another node has the store, and nothing of the state.
    desk.state.rename(desk.root / "elsewhere")
    status, _, err = desk.finish(60)
    assert status == 0, err
    assert desk.log().decode() == lines(60)


def test_a_growing_log_is_not_stored_again(desk):
    script = "import os, time\nwhile True:\n    os.write(1, os.urandom(1 << 14).hex().encode())\n    time.sleep(0.01)\n"
    (desk.home / "noise.py").write_text(script)
    first = desk.start(PYTHON, "noise.py")
    with open(desk.root / "sink", "wb") as sink:
        pump = subprocess.Popen(["cat"], stdin=first.stdout, stdout=sink)
        try:
            wait_for(lambda: len(desk.log()) > 4 << 20)
            desk.save(first)
            before = len(desk.log())
            wait_for(lambda: len(desk.log()) > before + (1 << 20))
            desk.save(first)
        finally:
            desk.kill(first)
            pump.wait()
    with desk.repository() as repository:
        heads = [repository.head(one) for one in repository.checkpoints("count")]
    files = [next(size for size in head.sizes if size.part == "files") for head in heads]
    grown = heads[1].log_bytes - heads[0].log_bytes
    assert heads[1].log_bytes > 5 << 20
    assert files[1].new_bytes < grown + (1 << 20), (files, grown)


def test_the_probe_is_the_users_and_knows_nothing_of_ours(desk):
    script = (
        "import os, json; json.dump([os.getresuid(), os.getresgid(), sorted(os.getgroups()), dict(os.environ), os.getcwd(),"
        " os.listdir('/proc/self/fd')], open('seen', 'w'))"
    )
    (desk.home / "probe.py").write_text(script)
    options = {"probe": f"{PYTHON} probe.py"}
    first = desk.counter(80, options=options)
    written(desk.out, 3)
    desk.save(first)
    desk.kill(first)
    second = desk.counter(80, options=options, environment={"MINE": "1"})
    # One that ended before the probe was asked would not need it.
    wait_for((desk.home / "seen").exists, what="for the probe")
    (desk.home / "go").touch()
    status, _, err = desk.ended(second)
    assert status == 0, err
    uids, gids, groups, variables, folder, opened = json.loads((desk.home / "seen").read_text())
    assert (set(uids), set(gids), groups) == ({USER.uid}, {USER.gid}, sorted(USER.groups))
    assert variables["MINE"] == "1"
    assert variables["PERDURE_WORKLOAD"] == "count"
    assert "OURS" not in variables
    assert folder == str(desk.home)
    assert opened == ["0", "1", "2", "3"]  # the last is the listing itself
    assert (desk.home / "seen").stat().st_uid == USER.uid


def test_a_probe_that_fails_stops_the_restore(desk):
    first = desk.counter(80)
    written(desk.out, 3)
    desk.save(first)
    desk.kill(first)
    # It waits before its end: one that ended before the probe was asked would not need it.
    status, _, err = desk.ended(desk.counter(80, options={"probe": "false"}))
    assert (status, "the probe failed with 1" in err) == (20, True), err
    status, _, err = desk.ended(desk.counter(80, options={"probe": "half 'a word"}))
    assert (status, "the probe failed with 2: " in err) == (20, True), err
    status, _, err = desk.ended(desk.counter(80, options={"probe": "no-such-probe"}))
    assert (status, "the probe failed with 127: " in err, "no-such-probe" in err) == (20, True, True), err


def test_what_the_user_may_not_read_does_not_come_into_the_store(desk):
    secret = desk.root / "secret"
    secret.write_bytes(b"of root alone: 8f14e45fceea167a")
    secret.chmod(0o600)
    process = desk.counter(10_000, options={"outputs": [str(secret), str(desk.home)]})
    written(desk.out, 3)
    process.send_signal(signal.SIGUSR1)
    assert "Permission denied" in desk.hear(process, "cannot include")
    assert desk.checkpoints() == []
    desk.kill(process)
    for path in (*desk.store.rglob("*"), *desk.state.rglob("*")):
        assert not path.is_file() or b"8f14e45fceea167a" not in path.read_bytes()


def saved(desk: Desk, **options) -> None:
    """A checkpoint of the counter, killed when it has written more."""
    first = desk.counter(200, **options)
    written(desk.out, 5)
    desk.save(first)
    written(desk.out, 15)
    desk.kill(first)


@pytest.fixture
def prize(desk):
    """A file of root's that a user would like to write: as long as the output, and longer."""
    path = desk.root / "prize"
    path.write_bytes(b"root's own\n" * 100)
    path.chmod(0o644)
    before = path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns
    yield path
    assert (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns) == before
    assert path.stat().st_uid == 0


def refused(desk: Desk, **options) -> str:
    status, out, err = desk.finish(200, **options)
    assert status == 22, err
    assert out == ""
    return err


def test_a_link_in_the_place_of_an_output_leads_root_nowhere(desk, prize):
    saved(desk)
    desk.out.unlink()
    desk.out.symlink_to(prize)
    assert "out" in refused(desk)


def test_a_link_in_the_place_of_a_folder_leads_root_nowhere(desk, prize):
    (desk.home / "below").mkdir()
    os.chown(desk.home / "below", USER.uid, USER.gid)
    (desk.home / "appender.py").write_text(
        "import time\n"
        "out = open('below/prize', 'a')\n"
        "while True:\n"
        "    out.write('x'), out.flush()\n"
        "    print('.', flush=True)\n"
        "    time.sleep(0.02)\n"
    )
    argv = (PYTHON, "appender.py")
    first = desk.start(*argv)
    wait_for(lambda: len(desk.log()) > 20)
    desk.save(first)
    desk.kill(first)
    (desk.home / "below").rename(desk.home / "was")
    (desk.home / "below").symlink_to(desk.root)
    status, _, err = desk.ended(desk.start(*argv))
    assert status == 22, err
    assert "below" in err


def test_a_hard_link_in_the_place_of_an_output_changes_nothing_of_anybody_elses(desk, prize):
    saved(desk)
    desk.out.unlink()
    os.link(prize, desk.out)
    refused(desk)


def test_included_files_are_put_back_with_the_users_rights(desk, prize):
    (desk.home / "tree").mkdir()
    (desk.home / "tree" / "prize").write_text("mine")
    for path in (desk.home / "tree", desk.home / "tree" / "prize"):
        os.chown(path, USER.uid, USER.gid)
    options = {"outputs": [str(desk.home / "tree")]}
    saved(desk, options=options)
    (desk.home / "tree").rename(desk.home / "was")
    (desk.home / "tree").symlink_to(desk.root)
    status, _, err = desk.finish(200, options=options)
    assert status in (0, 22), err
    assert list(desk.root.glob("*perdure-tail*")) == []


def test_a_folder_that_the_user_may_not_enter_any_more_stops_the_restore(desk):
    saved(desk)
    moved = desk.root / "closed"
    moved.mkdir(mode=0o700)
    desk.home.rename(moved / "home")
    desk.home.symlink_to(moved / "home")
    status, _, err = desk.finish(200)
    assert status != 0
    assert (moved / "home" / "out").read_text().splitlines()[-1] != "199"
    assert not list((moved / "home").glob("*tail*")), err


def test_an_output_that_is_exchanged_while_it_is_brought_back_never_leads_root_astray(desk, prize):
    """The user runs a race against the restore, with all a user may do: links, renames, as fast as it goes."""
    saved(desk)
    racer = """
import os, sys
target = sys.argv[1]
os.chdir(sys.argv[2])
print("begun", flush=True)
os.rename("out", "real")
while True:
    os.symlink(target, "link"); os.rename("link", "out")
    os.link("real", "same"); os.rename("same", "out"); os.path.lexists("same") and os.unlink("same")
"""
    with subprocess.Popen(
        [PYTHON, "-c", racer, str(prize), str(desk.home)], user=USER.uid, group=USER.gid, extra_groups=[], stdout=subprocess.PIPE
    ) as race:
        try:
            race.stdout.readline()
            for _ in range(3):
                process = desk.counter(200)
                desk.hear(process, "goes on from", "refused: ")
                desk.kill(process)
        finally:
            race.kill()


def command_of(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_a_set_uid_program_is_not_saved(desk):
    if os.statvfs(desk.root).f_flag & os.ST_NOSUID or "NoNewPrivs:\t1" in Path("/proc/self/status").read_text():
        pytest.skip("set-uid programs have no effect here")
    program = desk.root / "sleeper"
    program.write_bytes(Path("/bin/sleep").resolve().read_bytes())
    program.chmod(0o4755)
    (desk.home / "parent.py").write_text("import subprocess, sys\nprint('up', flush=True)\nsubprocess.run([sys.argv[1], '600'])\n")
    process = desk.start(PYTHON, "parent.py", str(program))
    wait_for(lambda: any(command_of(pid).startswith(os.fsencode(program)) for pid in descendants(process.pid)))
    process.send_signal(signal.SIGUSR1)
    assert "user 0" in desk.hear(process, "process-other-user")
    assert desk.checkpoints() == []
    assert process.poll() is None


def test_a_checkpoint_of_somebody_else_is_not_brought_back(desk):
    saved(desk)
    told = {"uid": USER.uid + 1}
    with desk.repository() as repository:
        assert repository.checkpoints("count") == (CheckpointId("count", 1, 1),)
    process = desk.start(PYTHON, "count.py", "200", "0")
    desk.kill(process)
    arguments = json.loads(process.args[2]) | told
    done = subprocess.run(
        [*process.args[:2], json.dumps(arguments)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 22
    assert f"count@1.1 is user {USER.uid}'s" in done.stderr


def test_a_process_that_runs_already_is_roots_to_take_over(desk):
    status, _, err = desk.ended(desk.start(adopt=os.getpid()))
    assert status == 22, err
    assert "root alone" in err


def test_terminated_it_saves_and_goes_on(desk):
    first = desk.counter(100, 3)
    written(desk.out, 5)
    first.send_signal(signal.SIGTERM)
    status, _, err = desk.ended(first)
    assert status == 75, err
    status, _, err = desk.finish(100, 3)
    assert status == 3, err
    assert hashlib.sha256(desk.log()).digest() == hashlib.sha256(lines(100).encode()).digest()


def test_a_users_checkpoint_can_be_tried(desk):
    saved(desk)
    before = {path: path.stat() for path in desk.home.iterdir()}
    desk.run_dir.rename(desk.root / "no-run-dir")  # as after a reboot
    done = subprocess.run(
        [sys.executable, "-m", "perdure", "store", "verify", "--store", str(desk.store), "--restore", "count@1.1"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "HOME": str(desk.root), "PERDURE_STATE": str(desk.root / "look")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes" in done.stdout + done.stderr, done
    assert {path: path.stat() for path in desk.home.iterdir()} == before
