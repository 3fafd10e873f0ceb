"""Workloads of an ordinary user under the engine, by a root supervisor, with real CRIU."""

from __future__ import annotations

import json
import os
import re
import select
import stat
import subprocess
from pathlib import Path

import pytest
from engine import HOLDS_PROC, Workload, alone_with_links
from owners import OTHER, PYTHON, USER, home, needs_root

from perdure import errors
from perdure.base.proc import process
from perdure.checkpoint import carried, ghosts, guard, identity, tree
from perdure.checkpoint.images import container, openfiles, wire
from perdure.checkpoint.preflight import save
from perdure.checkpoint.preflight.plan import Plan as SavePlan
from perdure.model.finding import problems

__all__ = ["home"]

pytestmark = [needs_root, pytest.mark.users]

LOOK = """
import json, os, sys
def status(pid):
    return dict(line.rstrip("\\n").split(":\\t", 1) for line in open(f"/proc/{pid}/status") if ":\\t" in line)
with open("/proc/self/environ", "rb") as handle:
    environ = handle.read().decode()
print(json.dumps({
    "status": status("self"), "environ": environ, "fds": sorted(os.listdir("/proc/self/fd")), "cwd": os.getcwd(),
    "umask": os.umask(0), "argv": sys.argv,
}), flush=True)
print("to a name", file=open("/dev/stdout", "w"), flush=True)
print("end", flush=True)
"""


def look(home: Path, **options) -> dict:
    (home / "look.py").write_text(LOOK)
    with Workload(home, PYTHON, str(home / "look.py"), "a b", "ü\udcff", owner=USER, **options) as workload:
        workload.wait_for("end\n")
        text = workload.output.decode()
        assert workload.status() == 0
    assert "to a name\n" in text.replace("\r", "")
    return json.loads(text.splitlines()[0])


def test_the_command_is_an_ordinary_user_and_sees_nothing_of_ours(home):
    seen = look(home, environment={"SECRET": "of the user", "LD_PRELOAD": ""})
    status = seen["status"]
    assert status["Uid"].split() == [str(USER.uid)] * 4
    assert status["Gid"].split() == [str(USER.gid)] * 4
    assert sorted(map(int, status["Groups"].split())) == sorted(USER.groups)
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["CapBnd"] == own_status()["CapBnd"]
    assert status["NoNewPrivs"] == own_status()["NoNewPrivs"]
    assert seen["argv"][1:] == ["a b", "ü\udcff"]
    assert seen["cwd"] == str(home)
    assert seen["umask"] == 0o022
    assert seen["fds"] == ["0", "1", "2", "3"]  # the last is the listing itself
    variables = dict(one.split("=", 1) for one in seen["environ"].split("\0") if one)
    assert variables == {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8", "SECRET": "of the user", "LD_PRELOAD": ""}
    assert int(status["SigBlk"], 16) == 0
    # The two of Python, which every Python ignores for itself; above 31 are those that C libraries keep to themselves.
    assert int(status["SigIgn"], 16) & 0x7FFFFFFF == int(own_status()["SigIgn"], 16) & 0x7FFFFFFF


def own_status() -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)


PRY = """
import os, sys
pid = int(sys.argv[1])
def denied(call):
    try:
        call()
    except PermissionError:
        return True
    return False
print([denied(call) for call in (
    lambda: open(f"/proc/{pid}/environ").read(), lambda: os.listdir(f"/proc/{pid}/fd"), lambda: open(f"/proc/{pid}/mem", "rb"),
    lambda: os.kill(pid, 9), lambda: os.readlink(f"/proc/{pid}/cwd"), lambda: open(f"/proc/{pid}/maps").read(),
)], open(f"/proc/{pid}/cmdline").read())
"""


def test_the_init_holds_nothing_of_the_users_and_gives_the_user_nothing(home):
    with Workload.python(
        home, "import time; print('up', flush=True); time.sleep(600)", owner=USER, environment={"SECRET": "x"}
    ) as workload:
        workload.wait_for("up")
        init = workload.tree.pid
        assert Path(f"/proc/{init}/environ").read_bytes() == b""
        assert os.readlink(f"/proc/{init}/cwd") == str(home.parent / "live")
        assert not list((home.parent / "live").iterdir())
        seen = subprocess.run(
            [PYTHON, "-c", PRY, str(init)],
            user=USER.uid,
            group=USER.gid,
            extra_groups=USER.groups,
            capture_output=True,
            text=True,
            check=True,
        )
        assert seen.stdout.startswith(f"{[True] * 6} ")
        assert str(home) not in seen.stdout
        assert "SECRET" not in seen.stdout


def test_a_terminal_is_the_owners(home):
    (home / "look.py").write_text("import os; print(os.stat(os.ttyname(0)).st_uid, os.get_terminal_size() and os.open('/dev/tty', 2) > 0)")
    with Workload(home, PYTHON, str(home / "look.py"), owner=USER, terminal=True) as workload:
        workload.wait_for(f"{USER.uid} True")
        assert workload.status() == 0


def test_the_exit_status_and_signals_come_through(home):
    script = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print("up", flush=True)
    while True:
        time.sleep(60)
    """
    with Workload.python(home, script, owner=USER) as workload:
        workload.wait_for("up")
        os.kill(workload.tree.pid, 15)
        assert workload.status() == 7


def test_a_command_that_cannot_be_run_is_told_as_without_an_owner(home):
    def refusal(*argv, owner):
        with pytest.raises(errors.UsageError) as told, Workload(home, *argv, owner=owner):
            pass
        return type(told.value), str(told.value), told.value.hint, told.value.exit_status

    plain = home / "plain"
    plain.write_text("")
    script = home / "script"
    script.write_text("#!/nowhere/sh\n")
    script.chmod(0o755)
    for argv in (["no-such-command"], [str(plain)], [str(home)], [str(script)], ["./missing"]):
        assert refusal(*argv, owner=USER) == refusal(*argv, owner=None)
    assert not list((home.parent / "live").iterdir())


def test_only_the_owners_rights_find_a_command(home):
    folder = home.parent / "bin"
    folder.mkdir()
    program = folder / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    with pytest.raises(errors.CommandRefused, match="may not be executed"), Workload(home, str(program), owner=USER):
        pass
    folder.chmod(0o700)
    with pytest.raises(errors.CommandMissing, match="command not found"), Workload(home, str(program), owner=USER):
        pass


def test_a_folder_that_the_owner_may_not_enter_is_no_working_directory(home):
    home.chmod(0o000)
    os.chown(home, 0, 0)
    with pytest.raises(errors.InputDenied, match="Permission denied"), Workload(home, "true", owner=USER):
        pass
    assert stat.S_IMODE(home.stat().st_mode) == 0


COUNTER = """
import ctypes, multiprocessing, mmap, os, sys, tempfile, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget(0, 4096, 0o1600)
shared = ctypes.c_int.from_address(libc.shmat(segment, None, 0))
sem = multiprocessing.Semaphore(0)
named = open("/dev/shm/perdure-owner-%s" % os.environ["TAG"], "w+b")
named.truncate(4096)
memory = mmap.mmap(named.fileno(), 4096)
gone = tempfile.TemporaryFile(dir=os.getcwd())
gone.write(b"kept"), gone.flush()
removed = open("removed", "w+")
os.unlink("removed")
removed.write("kept too"), removed.flush()
out = open("out", "w")
turn = threading.Condition()
ticks = [0]
def tick():
    while True:
        with turn:
            ticks[0] += 1
            turn.notify_all()
        time.sleep(0.02)
child = os.fork()
if child == 0:
    while True:
        sem.acquire()
        memory[0] = (memory[0] + 1) % 256
# After the fork: newer versions of Python warn of one beside threads, and what they say would be among the lines.
threading.Thread(target=tick, daemon=True).start()
for number in range(int(sys.argv[1])):
    with turn:
        seen = ticks[0]
        turn.wait_for(lambda: ticks[0] > seen)
    shared.value += 1
    sem.release()
    while memory[0] != (number + 1) % 256:
        time.sleep(0.001)
    gone.seek(0), removed.seek(0)
    out.write(f"{shared.value} {gone.read().decode()} {removed.read()}\\n"), out.flush()
    print("line", number, flush=True)
    while number == 60 and not os.path.exists("on"):
        time.sleep(0.01)
os.kill(child, 9)
os.waitpid(child, 0)
libc.shmctl(segment, 0, None)
os.unlink(named.name)
print("credentials", os.getresuid(), os.getresgid(), sorted(os.getgroups()),
      [line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")][:3], flush=True)
sys.exit(5)
"""


@pytest.mark.criu
@pytest.mark.parametrize("terminal", [False, True])
def test_three_lives_of_a_counter_are_one(home, terminal):
    lines = 120
    home_files = set()
    with Workload.python(home, COUNTER, str(lines), owner=USER, environment={"TAG": home.parent.name}, terminal=terminal) as workload:
        for life in (1, 2):
            workload.wait_for(f"line {life * 10}")
            sizes: list[int] = []

            kept = home.parent / f"kept-{life}"
            kept.mkdir(mode=0o700)
            found: list[carried.Collected] = []

            def at_freeze(sizes=sizes, kept=kept, found=found):
                workload.drain()
                # A terminal hands over what was written a moment later, by a worker of the kernel.
                while terminal and select.select([workload.master], [], [], 0.2)[0]:
                    workload.drain()
                sizes.extend((len(workload.output), (home / "out").stat().st_size))
                found.append(carried.collect(tree.pids(workload.tree), kept, owner=USER))

            dumped = workload.dump(at_freeze)
            workload.wait_for(f"line {life * 10 + 5}")
            workload.end()
            workload.output = workload.output[: sizes[0]]
            os.truncate(home / "out", sizes[1])
            assert f"/dev/shm/perdure-owner-{home.parent.name}" in [each.path for each in found[0].carried]
            assert carried.put_back(found[0].carried, kept, epoch=life, owner=USER) == ()
            workload.restore(dumped)
            home_files = {path.name for path in home.iterdir()}
        workload.let_end()
        workload.wait_for("credentials")
        assert workload.status() == 5
        told = workload.output.decode().replace("\r", "").splitlines()
    assert told[:lines] == [f"line {number}" for number in range(lines)]
    zero = "0000000000000000"
    ids = f"({USER.uid}, {USER.uid}, {USER.uid}) ({USER.gid}, {USER.gid}, {USER.gid})"
    assert told[lines] == f"credentials {ids} {sorted(USER.groups)} {[zero] * 3}"
    assert (home / "out").read_text() == "".join(f"{number + 1} kept kept too\n" for number in range(lines))
    assert (home / "out").stat().st_uid == USER.uid
    assert home_files == {"out", "program.py"}
    assert not list(Path("/dev/shm").glob(f"*{home.parent.name}*"))


IDLE = """
import mmap, os, socket, sys, tempfile, time
out = open("out", "a")
out.write("1"), out.flush()
both = open("both", "w+b")
both.truncate(4096)
memory = mmap.mmap(both.fileno(), 4096)
gone = tempfile.TemporaryFile(dir=os.getcwd())
gone.write(b"kept"), gone.flush()
os.mkdir("below"), os.chdir("below")
if len(sys.argv) > 1:
    named = socket.socket(socket.AF_UNIX)
    named.bind(sys.argv[1].replace("@", chr(0)))
    named.listen()
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def idle(home):
    with Workload.python(home, IDLE, owner=USER) as workload:
        workload.wait_for("up")
        yield workload


def told(findings) -> list[tuple[str, str]]:
    return [(finding.code, os.path.basename(finding.path)) for finding in findings]


@pytest.mark.criu
class TestGuard:
    """The look at a tree that was brought back, taken at one that runs: everything is as it was, and then one thing is not."""

    def test_all_is_as_it_was(self, home, idle):
        dumped = idle.dump()
        assert guard.look_before(dumped.images, USER) == ()
        assert guard.look_at(idle.tree.pid, dumped.images, USER) == ()

    @pytest.mark.parametrize("name", ["out", "both", "below"])
    def test_a_thing_that_lies_elsewhere_is_named(self, home, idle, name):
        dumped = idle.dump()
        (home / name).rename(home / "moved")
        assert ("restore-path-elsewhere", name) in told(guard.look_at(idle.tree.pid, dumped.images, USER))

    def test_a_folder_that_lies_elsewhere_is_named(self, home, idle):
        dumped = idle.dump()
        home.rename(home.parent / "was")
        home.symlink_to(home.parent / "was")
        names = {name for _, name in told(guard.look_at(idle.tree.pid, dumped.images, USER))}
        assert names == {"out", "both", "below"}
        assert {name for _, name in told(guard.look_before(dumped.images, USER))} == {"out", "both", "below"}
        home.unlink()
        home.parent.joinpath("was").rename(home)

    @pytest.mark.parametrize(("name", "mode"), [("out", 0o644), ("both", 0o644), ("both", 0o622), ("below", 0o700)])
    def test_what_the_owner_may_not_open_so_is_named(self, home, idle, name, mode):
        dumped = idle.dump()
        os.chown(home / name, 0, 0)
        (home / name).chmod(mode)
        assert {each for _, each in told(guard.look_at(idle.tree.pid, dumped.images, USER))} == {name}

    def test_what_others_own_and_the_owner_may_open_is_well(self, home, idle):
        dumped = idle.dump()
        for name, mode in (("out", 0o622), ("both", 0o666), ("below", 0o711)):
            os.chown(home / name, 0, 0)
            (home / name).chmod(mode)
        assert guard.look_at(idle.tree.pid, dumped.images, USER) == ()

    @pytest.mark.parametrize("kind", ["link", "device"])
    def test_a_link_or_device_is_named_before_anything_is_opened(self, home, idle, kind):
        dumped = idle.dump()
        (home / "out").unlink()
        if kind == "link":
            (home / "out").symlink_to("both")
        else:
            os.mknod(home / "out", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        assert told(guard.look_before(dumped.images, USER)) == [("restore-path-elsewhere", "out")]

    def test_an_exchanged_file_ends_a_restore_before_the_first_step(self, home, idle):
        """With the same owner, size and permissions, so that CRIU itself would take it: only its path tells."""
        dumped = idle.dump()
        idle.end()
        before = idle.output
        (home / "real").mkdir()
        (home / "both").rename(home / "real" / "both")
        (home / "both").symlink_to("real/both")
        with pytest.raises(errors.RestoreRefused, match="both"):
            idle.restore(dumped)
        idle.drain()
        assert idle.output == before


@pytest.mark.criu
def test_images_of_somebody_else_are_refused(home, idle):
    dumped = idle.dump()
    idle.end()
    inner = max(int(path.stem.removeprefix("core-")) for path in dumped.images.glob("core-*.img"))
    path = dumped.images / f"core-{inner}.img"
    original = path.read_bytes()

    def edit(number: int, value: int) -> None:
        path.write_bytes(original)
        image = container.read(path, container.CORE)
        core = wire.parse(image.entries[0])
        thread = wire.parse(wire.content(core, 5))
        credentials = wire.replaced(wire.parse(wire.content(thread, 10)), number, value)
        thread = wire.replaced(thread, 10, wire.assemble(credentials))
        core = wire.replaced(core, 5, wire.assemble(thread))
        container.write(path, container.Image(image.head, (wire.assemble(core),)))

    uids, gids, capabilities = (1, 3, 5, 7), (2, 4, 6, 8), (9, 10, 11, 19)
    for number in (*uids, *gids, 14):
        edit(number, 0)
        with pytest.raises(errors.RestoreRefused, match="process-other-user"):
            idle.restore(dumped)
    for number in (*capabilities, 13):
        edit(number, 1)
        with pytest.raises(errors.RestoreRefused, match="process-other-user"):
            idle.restore(dumped)
    for number in gids:
        edit(number, USER.groups[-1])
        assert identity.check_images(dumped.images, USER) == ()
    path.unlink()
    with pytest.raises(errors.InputFormat, match="no state of process"):
        idle.restore(dumped)
    path.write_bytes(original)
    idle.restore(dumped)


@pytest.mark.criu
def test_files_without_a_name_are_made_again_in_folders_of_ours(home, idle):
    dumped = idle.dump()
    with ghosts.moved(dumped.images):
        names = [one.name for one in openfiles.of(dumped.images) if isinstance(one, openfiles.RegularFile)]
        (name,) = (name for name in names if re.fullmatch(r"/var/tmp/perdure-[0-9a-f]{16}/\d+", name))
        folder = Path(name).parent.stat()
        assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (0, 0o700)
    assert not Path(name).parent.exists()
    idle.end()
    idle.restore(dumped)
    (child,) = tree.pids(idle.tree)[1:]
    (way,) = (way for way in Path(f"/proc/{child}/fd").iterdir() if "deleted" in os.readlink(way))
    assert way.read_bytes() == b"kept"
    assert way.stat().st_uid == USER.uid
    assert {path.name for path in home.iterdir()} == {"program.py", "out", "both", "below"}


@pytest.mark.criu
@pytest.mark.parametrize(("name", "is_refused"), [("sock", True), ("@abstract", False)])
def test_a_socket_with_a_name_in_the_users_folder_is_not_saved(home, name, is_refused):
    with Workload.python(home, IDLE, name if name[0] != "@" else f"@{home.parent.name}", owner=USER) as workload:
        workload.wait_for("up")
        if is_refused:
            with pytest.raises(errors.CheckpointRefused, match="network-unix-named"):
                workload.dump()
            assert tree.is_alive(workload.tree)
        else:
            workload.cycle()


@pytest.mark.criu
@pytest.mark.parametrize(("folder", "is_refused"), [("below", True), (".", False), ("/dev/shm", False)])
def test_a_file_that_lives_on_under_another_name_is_saved_where_the_user_cannot_lead_root_astray(home, folder, is_refused):
    first, second = f"{folder}/perdure-{home.parent.name}-1", f"{folder}/perdure-{home.parent.name}-2"
    script = f"""
    import os, time
    os.makedirs("{folder}", exist_ok=True)
    out = open("{first}", "w")
    os.link("{first}", "{second}")
    os.unlink("{first}")
    print("up", flush=True)
    time.sleep(600)
    """
    try:
        with alone_with_links(), Workload.python(home, script, owner=USER) as workload:
            workload.wait_for("up")
            if is_refused:
                with pytest.raises(errors.CheckpointRefused, match="file-linked-changeable"):
                    workload.dump()
                assert tree.is_alive(workload.tree)
            else:
                workload.cycle()
    finally:
        (home / second).unlink(missing_ok=True)


@pytest.mark.criu
def test_files_of_its_own_processes_in_proc_are_held_on(home):
    with Workload.python(home, HOLDS_PROC, owner=USER) as workload:
        for at in (5, 40, 80):
            workload.wait_for(f"\n{at} ")
            assert problems(save.check(workload.tree.pid, SavePlan(criu=workload.criu, owner=USER))) == ()
            workload.cycle()
        workload.wait_for("\n100 ")
        assert {line.split(maxsplit=1)[1] for line in workload.lines()[:-1]} == {"True"}


@pytest.mark.criu
@pytest.mark.parametrize(
    ("opened", "why"), [("'/proc/1/status'", "of the init, which is root's"), ("'/proc/self/comm', 'w'", "open for writing")]
)
def test_files_of_proc_that_root_would_open_for_more_than_the_user_may_are_not_saved(home, opened, why):
    script = f"import time; held = open({opened}); print('up', flush=True); time.sleep(600)"
    with Workload.python(home, script, owner=USER) as workload:
        workload.wait_for("up")
        (told,) = problems(save.check(workload.tree.pid, SavePlan(criu=workload.criu, owner=USER)))
        assert told.code == "file-of-process"
        assert why in told.message
        # What is opened after that look is met at the freeze.
        with pytest.raises(errors.CheckpointLater, match=why):
            workload.dump()
        assert tree.is_alive(workload.tree)


def test_whose_a_path_is():
    assert not guard.can_change("/etc/passwd", USER)
    assert not guard.can_change("/", USER)
    assert guard.can_change("/no/such/thing", USER)


def test_a_path_in_anothers_folder_can_change(home):
    (home / "mine").write_text("")
    (home.parent / "roots").write_text("")
    assert guard.can_change(str(home / "mine"), USER)
    assert not guard.can_change(str(home.parent / "roots"), USER)  # below a sticky folder, and root's
    home.parent.chmod(0o757)
    assert guard.can_change(str(home.parent / "roots"), USER)
    home.parent.chmod(0o775)
    os.chown(home.parent, 0, USER.groups[-1])
    assert guard.can_change(str(home.parent / "roots"), USER)
    assert not guard.can_change(str(home.parent / "roots"), OTHER)


@pytest.mark.criu
def test_what_only_root_may_open_by_now_ends_a_restore_before_the_first_step(home):
    """Root alone decides what the path leads to, so that only the look at the tree itself can tell."""
    shared = home.parent / "shared"
    shared.write_text("for a group")
    os.chown(shared, 0, USER.groups[-1])
    shared.chmod(0o640)  # stays: CRIU would see it
    script = "import time; shared = open('../shared'); print('up', flush=True)\nwhile True: time.sleep(0.05); print('on', flush=True)"
    with Workload.python(home, script, owner=USER) as workload:
        workload.wait_for("up")
        dumped = workload.dump()
        workload.end()
        workload.drain()
        workload.output = b""
        os.chown(shared, 0, 0)
        children = process.children(os.getpid())
        with pytest.raises(errors.RestoreRefused, match="shared: may not be opened so by user"):
            workload.restore(dumped)
        workload.drain()
        assert workload.output == b""
        assert process.children(os.getpid()) == children
        os.chown(shared, 0, USER.groups[-1])
        workload.restore(dumped)
        workload.wait_for("on")
