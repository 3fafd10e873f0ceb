"""What preflight says of a program, and what a real CRIU makes of it: no miss, and no false alarm."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import socket
import subprocess
from pathlib import Path

import pytest
import specimens
from specimens import SPECIMENS, Specimen
from supervised import wait_for

from perdure.base.proc import process
from perdure.checkpoint.preflight import save
from perdure.checkpoint.preflight.plan import Plan
from perdure.model.finding import Severity

pytestmark = pytest.mark.criu


@pytest.fixture(scope="module")
def tools():
    """The CRIU that works here, and a static init."""
    return specimens.the_criu()


def found(root: int, plan: Plan) -> set[str]:
    """Codes of problems and warnings."""
    return {finding.code for finding in save.check(root, plan) if finding.severity is not Severity.INFO}


def problems(root: int, plan: Plan) -> set[str]:
    """Codes of problems."""
    return {finding.code for finding in save.check(root, plan) if finding.severity is Severity.PROBLEM}


@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda specimen: specimen.name)
def test_finding_and_criu_agree(specimen: Specimen, tools, tmp_path):
    criu, init = tools
    try:
        with specimens.staged(specimen.program, tmp_path, init) as stage:
            assert found(stage.root, Plan(criu=criu)) == specimen.found
            result = specimens.dump(criu, stage.root, tmp_path, *specimen.options)
            assert process.stat(stage.program).state in "SRDTtZ"
    except specimens.Lacking as lack:
        pytest.skip(f"this machine has not what it needs: {lack}")
    if specimen.outcome == "dump fails":
        assert not result.succeeded
        return
    assert result.succeeded, result.explanation
    if specimen.outcome == "by number":
        return  # what has that number then is nobody's to say
    with specimens.restored(criu, tmp_path) as (back, pid):
        if specimen.outcome == "restore fails":
            assert not back.succeeded
            return
        assert back.succeeded, back.explanation
        assert not process.stat(process.children(pid)[0]).is_dead


def verdict(stage, criu, folder, *options: str, plan: Plan | None = None) -> tuple[set[str], bool]:
    """Return the codes of problems that are found, and whether CRIU dumps."""
    return problems(stage.root, plan or Plan(criu=criu)), specimens.dump(criu, stage.root, folder, *options).succeeded


def goes_on(criu, folder, *options: str) -> bool:
    """Tell whether the dump in `folder` can be restored."""
    with specimens.restored(criu, folder, *options) as (back, _):
        return back.succeeded


class TestOutside:
    """What a tree shares with processes that do not belong to it."""

    def test_unix_stream_by_path(self, tools, tmp_path):
        criu, init = tools
        path = tmp_path / "server"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            program = f'a = socket.socket(socket.AF_UNIX); a.connect("{path}")'
            with specimens.staged(program, tmp_path, init) as stage:
                (finding,) = [one for one in save.check(stage.root, Plan(criu=criu)) if one.severity is Severity.PROBLEM]
                assert finding.code == "network-unix-outside"
                assert finding.pid == stage.program
                assert finding.flag == str(path)
                assert str(os.getpid()) in finding.message
                assert specimens.dump(criu, stage.root, tmp_path).succeeded
            assert not goes_on(criu, tmp_path)

    def test_unix_pair(self, tools, tmp_path):
        criu, init = tools
        ours, theirs = socket.socketpair()
        with ours, theirs, specimens.staged("pass", tmp_path, init, pass_fds=(theirs.fileno(),)) as stage:
            theirs.close()
            assert verdict(stage, criu, tmp_path) == ({"network-unix-outside"}, False)

    def test_unix_datagram(self, tools, tmp_path):
        criu, init = tools
        path = tmp_path / "log"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind(str(path))
            program = f'a = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); a.connect("{path}")'
            with specimens.staged(program, tmp_path, init) as stage:
                assert verdict(stage, criu, tmp_path) == (set(), True)
            assert goes_on(criu, tmp_path)

    def test_pidfd(self, tools, tmp_path):
        criu, init = tools
        other = os.pidfd_open(os.getpid())
        try:
            with specimens.staged("pass", tmp_path, init, pass_fds=(other,)) as stage:
                assert verdict(stage, criu, tmp_path) == ({"file-kernel-object"}, False)
        finally:
            os.close(other)

    @pytest.mark.parametrize(("number", "expected"), [(1, {"file-pipe-outside"}), (7, set())], ids=["standard", "leaked"])
    def test_pipe_that_is_read_outside(self, tools, tmp_path, number, expected):
        criu, init = tools
        reading, writing = os.pipe()
        try:
            program = f"os.dup2({writing}, {number})"
            with specimens.staged(program, tmp_path, init, pass_fds=(writing,)) as stage:
                assert verdict(stage, criu, tmp_path) == (expected, True)
                assert "file-pipe-outside" in found(stage.root, Plan()) or "file-pipe-leaked" in found(stage.root, Plan())
                given = Plan(criu=criu, external=frozenset({os.readlink(f"/proc/self/fd/{writing}")}))
                assert found(stage.root, given) == set()
        finally:
            os.close(reading)
            os.close(writing)

    def test_standard_streams_of_the_root_are_given_again(self, tools, tmp_path):
        criu, init = tools
        reading, writing = os.pipe()
        master, slave = pty.openpty()
        try:
            prepare = f"os.dup2({writing}, 1); os.close({writing}); os.dup2({slave}, 0); os.close({slave})"
            with specimens.staged("pass", tmp_path, init, pass_fds=(writing, slave), prepare=prepare) as stage:
                assert found(stage.root, Plan(criu=criu)) == set()
                there = os.fstat(slave)
                assert specimens.dump(criu, stage.root, tmp_path, "--external", f"tty[{there.st_rdev:x}:{there.st_dev:x}]").succeeded
        finally:
            for descriptor in (reading, writing, master, slave):
                os.close(descriptor)

    def test_pipe_whose_other_end_is_closed(self, tools, tmp_path):
        criu, init = tools
        with specimens.staged("ends = os.pipe(); os.close(ends[0]); os.dup2(ends[1], 1)", tmp_path, init) as stage:
            assert verdict(stage, criu, tmp_path) == (set(), True)

    def test_terminal(self, tools, tmp_path):
        criu, init = tools
        master, slave = pty.openpty()
        try:
            with specimens.staged("pass", tmp_path, init, pass_fds=(slave,)) as stage:
                there = os.fstat(slave)
                external = f"tty[{there.st_rdev:x}:{there.st_dev:x}]"
                assert verdict(stage, criu, tmp_path) == ({"file-tty-outside"}, False)
                plan = Plan(criu=criu, external=frozenset({external}))
                assert verdict(stage, criu, tmp_path, "--external", external, plan=plan) == (set(), True)
        finally:
            os.close(master)
            os.close(slave)

    def test_controlling_terminal_that_nobody_has_open(self, tools, tmp_path):
        criu, init = tools
        master, slave = pty.openpty()
        try:
            prepare = f"fcntl.ioctl({slave}, 0x540E, 0); os.close({slave})"
            with specimens.staged("pass", tmp_path, init, pass_fds=(slave,), prepare=prepare) as stage:
                assert found(stage.root, Plan(criu=criu)) == {"process-terminal"}
                assert verdict(stage, criu, tmp_path) == (set(), True)
                assert process.stat(stage.root).tty != 0
            with specimens.restored(criu, tmp_path) as (back, pid):
                assert back.succeeded, back.explanation
                assert process.stat(pid).tty == 0
        finally:
            os.close(master)
            os.close(slave)

    def test_connection(self, tools, tmp_path):
        criu, init = tools
        with socket.create_server(("127.0.0.1", 0)) as server:
            program = f'a = socket.create_connection(("127.0.0.1", {server.getsockname()[1]}))'
            with specimens.staged(program, tmp_path, init) as stage:
                (finding,) = [one for one in save.check(stage.root, Plan(criu=criu)) if one.code == "network-tcp-closed"]
                assert f"→ 127.0.0.1:{server.getsockname()[1]}" in finding.message
                assert found(stage.root, Plan(criu=criu, tcp="keep")) == {"network-tcp-keep"}
                assert specimens.dump(criu, stage.root, tmp_path).succeeded
            assert goes_on(criu, tmp_path)


class TestRoot:
    """What the first process of a tree is and where it lives."""

    @pytest.mark.parametrize("namespace", ["--uts", "--cgroup", "--time", "--net"])
    def test_namespace_that_comes_back(self, tools, tmp_path, namespace):
        criu, init = tools
        with specimens.staged("pass", tmp_path, init, namespaces=("--pid", "--ipc", namespace)) as stage:
            assert found(stage.root, Plan(criu=criu)) == ({"process-root-network"} if namespace == "--net" else set())
            assert verdict(stage, criu, tmp_path) == (set(), True)
        assert goes_on(criu, tmp_path)

    @pytest.mark.parametrize("namespace", ["--mount", "--user"])
    def test_namespace_that_does_not(self, tools, tmp_path, namespace):
        criu, init = tools
        with specimens.staged("pass", tmp_path, init, namespaces=("--pid", "--ipc", namespace)) as stage:
            codes, dumps = verdict(stage, criu, tmp_path)
        assert "process-root-namespace" in codes
        assert not (dumps and goes_on(criu, tmp_path))

    def test_deleted_directory(self, tools, tmp_path):
        criu, init = tools
        with specimens.staged("pass", tmp_path, init, prepare="os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')") as stage:
            assert verdict(stage, criu, tmp_path) == ({"process-working-directory"}, False)

    def test_directory_of_proc(self, tools, tmp_path):
        criu, init = tools
        with specimens.staged("pass", tmp_path, init, cwd=Path("/proc")) as stage:
            assert verdict(stage, criu, tmp_path) == ({"process-working-directory"}, False)

    def test_directory_that_is_read_only(self, tools, tmp_path):
        criu, init = tools
        point = tmp_path / "point"
        point.mkdir()
        try:
            mount("tmpfs", point, "-o", "ro")
            with specimens.staged("pass", tmp_path, init, cwd=point) as stage:
                assert verdict(stage, criu, tmp_path) == ({"process-working-directory"}, False)
        finally:
            unmount(point)

    def test_directory_that_another_dump_uses(self, tools, tmp_path):
        criu, init = tools
        with specimens.staged("pass", tmp_path, init) as stage:
            (tmp_path / "proc.crtools").mkdir()
            assert verdict(stage, criu, tmp_path) == ({"process-directory-taken"}, False)
            (tmp_path / "proc.crtools").rmdir()
            assert verdict(stage, criu, tmp_path) == (set(), True)

    def test_first_process_without_rights(self, tools, tmp_path):
        criu, init = tools
        prepare = "import ctypes; ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)"  # take CAP_SYS_ADMIN out of what can be had
        with specimens.staged("pass", tmp_path, init, prepare=prepare) as stage:
            assert verdict(stage, criu, tmp_path) == ({"process-root-unprivileged"}, False)

    def test_system_v_without_a_namespace(self, tools, tmp_path):
        criu, init = tools
        program = "i = must(libc.shmget(0, 4096, 0o1600)); must(libc.shmat(i, 0, 0)); must(libc.shmctl(i, 0, 0))"
        with specimens.staged(program, tmp_path, init, namespaces=("--pid",)) as stage:
            assert verdict(stage, criu, tmp_path) == ({"process-system-v"}, False)

    def test_large_deleted_file(self, tools, tmp_path):
        criu, init = tools
        program = 'fd = os.open("gone", os.O_RDWR | os.O_CREAT); os.write(fd, os.urandom(3 << 20)); os.unlink("gone")'
        with specimens.staged(program, tmp_path, init) as stage:
            plan = Plan(criu=criu, ghost_limit_bytes=1 << 20)
            assert verdict(stage, criu, tmp_path, "--ghost-limit=1M", plan=plan) == ({"file-deleted-large"}, False)

    def test_32_bits(self, tools, tmp_path):
        criu, init = tools
        source = """
void _start(void) { for (;;) { int result; __asm__ volatile("int $0x80" : "=a"(result) : "a"(29)); } }
"""
        command = ["cc", "-m32", "-static", "-nostdlib", "-fno-pic", "-x", "c", "-", "-o", tmp_path / "program"]
        if subprocess.run(command, input=source, text=True, capture_output=True).returncode:
            pytest.skip("no C compiler for 32 bits")
        with specimens.staged('subprocess.Popen(["./program"])', tmp_path, init) as stage:
            assert verdict(stage, criu, tmp_path) == (set(), True)
        assert goes_on(criu, tmp_path)

    def test_vfork(self, tools, tmp_path):
        criu, init = tools
        source = "#include <unistd.h>\nint main(int c, char **v) { if (vfork() == 0) for (;;) pause(); return 0; }\n"
        compiled = subprocess.run(["cc", "-w", "-x", "c", "-", "-o", tmp_path / "vfork"], input=source, text=True, capture_output=True)
        if compiled.returncode:
            pytest.skip("no C compiler")
        with specimens.staged('os.posix_spawn("vfork", ["vfork"], {})', tmp_path, init) as stage:
            # Others may be in that state for an instant, while they read what they run.
            wait_for(lambda: any(is_held_by_vfork(pid) for pid in process.descendants(stage.root)), 120, "for a vfork")
            assert problems(stage.root, Plan(criu=criu)) == {"process-uninterruptible", "process-shared-memory"}
            assert not specimens.dump(criu, stage.root, tmp_path, timeout_s=2).succeeded

    def test_frozen(self, tools, tmp_path):
        criu, init = tools
        folder, switch, on, off = freezer(tmp_path.name)
        try:
            with specimens.staged("pass", tmp_path, init) as stage:
                (folder / "cgroup.procs").write_text(str(stage.program))
                (folder / switch).write_text(on)
                try:
                    # With the newer cgroups it is told only when it stands still.
                    wait_for(lambda: "process-frozen" in problems(stage.root, Plan(criu=criu)), 120, "for it to be frozen")
                    assert not specimens.dump(criu, stage.root, tmp_path, timeout_s=2).succeeded
                finally:
                    (folder / switch).write_text(off)
        finally:
            wait_for(lambda: is_removed(folder), 120, "for the cgroup to be empty")


def is_held_by_vfork(pid: int) -> bool:
    """Tell whether the program ``vfork`` waits for the child that it made."""
    found = process.stat(pid)
    return (found.command, found.state) == ("vfork", "D") and bool(process.children(pid))


def is_removed(folder: Path) -> bool:
    """Remove a cgroup, and tell whether that was possible: those that have ended may leave it a moment later."""
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def freezer(name: str) -> tuple[Path, str, str, str]:
    """Make a cgroup that can be frozen: its folder, the file that does it, and what to write there for on and off."""
    for parent, switch, on, off in (
        (Path("/sys/fs/cgroup/freezer"), "freezer.state", "FROZEN", "THAWED"),
        (Path("/sys/fs/cgroup"), "cgroup.freeze", "1", "0"),
    ):
        folder = parent / f"perdure-{os.getpid()}-{name}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / switch).exists():
            return folder, switch, on, off
        folder.rmdir()
    pytest.skip("no cgroup can be made that can be frozen")


class TestMounts:
    """Files on mounts that are hidden or that have no handles. The mounts live in a mount namespace of the test's own."""

    def test_hidden_mount(self, tools, tmp_path):
        criu, init = tools
        point = tmp_path / "point"
        point.mkdir()
        try:
            mount("tmpfs", point)
            (point / "file").touch()
            with specimens.staged('fd = os.open("point/file", os.O_RDWR)', tmp_path, init) as stage:
                assert verdict(stage, criu, tmp_path) == (set(), True)
                mount("tmpfs", point)
                assert verdict(stage, criu, tmp_path) == ({"file-overmounted"}, False)
        finally:
            unmount(point)

    def test_detached_mount(self, tools, tmp_path):
        criu, init = tools
        point = tmp_path / "point"
        point.mkdir()
        try:
            mount("tmpfs", point)
            (point / "file").touch()
            with specimens.staged('fd = os.open("point/file", os.O_RDWR)', tmp_path, init) as stage:
                subprocess.run(["umount", "--lazy", point], check=True)
                assert verdict(stage, criu, tmp_path) == ({"file-mount-unknown"}, False)
        finally:
            unmount(point)

    def test_watch_on_overlay(self, tools, tmp_path):
        criu, init = tools
        for name in ("lower", "upper", "work", "point"):
            (tmp_path / name).mkdir()
        options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
        try:
            mount("overlay", tmp_path / "point", "-o", options)
            program = 'fd = libc.inotify_init(); must(libc.inotify_add_watch(fd, b"point", 2))'
            with specimens.staged(program, tmp_path, init) as stage:
                assert verdict(stage, criu, tmp_path) == ({"file-watch"}, False)
        finally:
            unmount(tmp_path / "point")


def mount(kind: str, point: Path, *options: str) -> None:
    done = subprocess.run(["mount", "-t", kind, kind, point, *options], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount {kind}: {done.stderr.strip()}")


def unmount(point: Path) -> None:
    while subprocess.run(["umount", "--lazy", point], capture_output=True).returncode == 0:
        pass


class TestCommand:
    """`perdure check` on real processes."""

    def test_io_uring_ends_with_4_and_names_code_and_pid(self, perdure, tools, tmp_path):
        with specimens.staged(specimens.IO_URING, tmp_path, tools[1]) as stage:
            done = perdure("check", str(stage.root), "--json")
            assert done.returncode == 4
            document = json.loads(done.stdout)
            (finding,) = [one for one in document["findings"] if one["severity"] == "problem"]
            assert (finding["code"], finding["pid"]) == ("file-io-uring", stage.program)
            assert document["problems"] == 1
            line = perdure("check", str(stage.root)).stdout
            assert re.match(rf"problem +file-io-uring +pid {stage.program} ", line)

    def test_nothing_found_ends_with_0(self, perdure, tools, tmp_path):
        with specimens.staged("pass", tmp_path, tools[1]) as stage:
            done = perdure("check", str(stage.root))
            assert (done.returncode, done.stdout) == (0, "")
            assert "nothing prevents" in done.stderr

    def test_a_process_that_is_not_there(self, perdure):
        assert perdure("check", "4194303").returncode == 21
        assert perdure("check", "no-such-workload").returncode == 21
        assert perdure("check").returncode == 2
        assert perdure("check", "1", "--restore", "a@1.1").returncode == 2

    def test_a_workload_by_its_name_and_its_checkpoint(self, perdure, tmp_path):
        places = {"PERDURE_STATE": str(tmp_path / "state"), "PERDURE_RUN_DIR": str(tmp_path / "run")}
        started = perdure("run", "--name", "checked", "--every", "never", "-d", "--", "sleep", "1000", env=places)
        assert started.returncode == 0, started.stderr
        try:
            done = perdure("check", "checked", "--json", env=places)
            assert (done.returncode, json.loads(done.stdout)["problems"]) == (0, 0)
            assert perdure("checkpoint", "checked", env=places).returncode == 0
            done = perdure("check", "--restore", "checked", "--json", env=places)
            assert (done.returncode, json.loads(done.stdout)["checkpoint"]) == (0, "checked@1.1")
            assert perdure("check", "--restore", "checked@9.9", env=places).returncode == 21
        finally:
            assert perdure("stop", "checked", env=places).returncode == 0
        assert perdure("check", "checked", env=places).returncode == 21
