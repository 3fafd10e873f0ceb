"""What is recorded of real processes, and what is found when a checkpoint of them is to be restored here."""

from __future__ import annotations

import os
import pty
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import specimens
from supervised import wait_for

from perdure.base.proc import machine, mounts
from perdure.checkpoint.preflight import connections, host, mapped, restore, terminals
from perdure.checkpoint.preflight.restore import RestorePlan
from perdure.model.checkpoint import CheckpointId, Manifest, OutputFile, Part, PartSize, ProcessFact, Trigger
from perdure.model.finding import Severity


@pytest.fixture
def program(tmp_path):
    """A process that listens, has a connection to itself and one to us, reads one file, writes another and maps a third."""
    for name in ("read", "mapped"):
        (tmp_path / name).write_text(name)
    code = """
import mmap, os, socket, sys
os.chdir(sys.argv[1])
read, written = open("read"), open("written", "w")
mapped = mmap.mmap(os.open("mapped", os.O_RDONLY), 0, prot=mmap.PROT_READ)
listener = socket.create_server(("127.0.0.1", 0))
pair = socket.create_connection(listener.getsockname()), listener.accept()[0]
outside = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = [sys.executable, "-I", "-S", "-c", code, str(tmp_path), str(server.getsockname()[1])]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running, server.accept()[0]:
            yield running, int(running.stdout.readline()), server.getsockname()[1]
            running.stdin.close()


@pytest.fixture(scope="module")
def tools():
    """The CRIU that works here, and a static init."""
    return specimens.the_criu()


def described(pid: int, folder: Path, **other) -> Manifest:
    """A manifest of one process."""
    fact = ProcessFact(
        pid=2, parent=1, host_pid=pid, command="python", executable=sys.executable, uid=0, gid=0, threads=1, resident_bytes=1 << 20
    )
    values = {
        "host": host.facts("4.2.1", [pid]),
        "processes": (fact,),
        "mapped": mapped.record([pid]),
        "connections": connections.record([pid]),
        "terminals": terminals.record([pid]),
        "sizes": (PartSize(Part.MEMORY, 1 << 20, 0, 0),),
        **other,
    }
    return Manifest(
        id=CheckpointId("a", 1, 1),
        created_ns=time.time_ns(),
        trigger=Trigger.REQUEST,
        reason="asked",
        command=("python",),
        working_directory=str(folder),
        streams=(),
        **values,
    )


def problems(manifest: Manifest) -> list[tuple[str, str]]:
    """Code and subject of each problem, but for what this machine lacks."""
    return [
        (finding.code, finding.subject)
        for finding in restore.check(manifest, RestorePlan(is_staged=True))
        if finding.severity is Severity.PROBLEM and not finding.code.startswith("host-")
    ]


def test_files_are_recorded_with_build_ids(program, tmp_path):
    running, _, _ = program
    found = {Path(file.path).name: file for file in mapped.record([running.pid])}
    assert {"read", "mapped"} <= found.keys()
    assert "written" not in found
    assert found["read"].size_bytes == 4
    libc = next(file for name, file in found.items() if name.startswith("libc.so"))
    assert libc.build_id is not None
    assert mapped.executables([running.pid]) == (os.path.realpath(sys.executable),)


def test_connections_are_recorded(program):
    running, listening, outside = program
    found = connections.record([running.pid])
    (listener,) = [one for one in found if one.state == "listen"]
    assert listener.local == f"127.0.0.1:{listening}"
    established = [one for one in found if one.state == "established"]
    assert sorted(one.inside for one in established) == [False, True, True]
    assert [one.remote for one in established if not one.inside] == [f"127.0.0.1:{outside}"]


def test_the_host_is_recorded(program, tmp_path):
    facts = host.facts("4.2.1", [program[0].pid])
    assert facts.boot_id == machine.boot_id()
    assert facts.pid_max == machine.pid_max()
    there = mounts.covering(str(tmp_path), mounts.of(os.getpid()))
    assert (there.point, there.kind) in facts.mounts


def test_what_still_runs_holds_its_port_and_nothing_else_is_wrong(program, tmp_path):
    running, listening, outside = program
    manifest = described(running.pid, tmp_path)
    (finding,) = [one for one in restore.check(manifest, RestorePlan(is_staged=True)) if one.code == "restore-port-taken"]
    assert (finding.pid, finding.flag) == (running.pid, str(listening))
    assert problems(manifest) == [("restore-port-taken", f"tcp 127.0.0.1:{listening}")]
    for tcp, code in (("close", "restore-connection"), ("keep", "restore-connection-kept")):
        # A warning, which `run` says: information it keeps to itself.
        changed = msgspec.structs.replace(manifest, tcp=tcp)
        (connection,) = [one for one in restore.check(changed, RestorePlan(is_staged=True)) if one.code.startswith("restore-connection")]
        assert (connection.code, connection.severity) == (code, Severity.WARNING)
        assert f"the connection to 127.0.0.1:{outside} (established)" in connection.message
    running.stdin.close()
    running.wait()
    assert problems(manifest) == []


def test_files_that_changed_or_went_are_named(program, tmp_path):
    running, _, _ = program
    manifest = described(running.pid, tmp_path, connections=())
    (tmp_path / "read").write_text("longer")
    (tmp_path / "mapped").unlink()
    assert problems(manifest) == [
        ("restore-file-missing", str(tmp_path / "mapped")),
        ("restore-file-changed", str(tmp_path / "read")),
    ]


def test_an_output_file_that_went_prevents_a_restore_unless_the_checkpoint_holds_it(program, tmp_path):
    running, _, _ = program
    output = OutputFile(
        path=str(tmp_path / "gone.log"), size_bytes=7, device=0, inode=0, mtime_ns=0, mode=0o644, uid=0, gid=0, holders=(), stored_as=None
    )
    manifest = described(running.pid, tmp_path, connections=(), outputs=(output,))
    assert problems(manifest) == [("restore-output-missing", output.path)]
    gone_with_its_folder = msgspec.structs.replace(output, path=str(tmp_path / "gone" / "log"))
    elsewhere = msgspec.structs.replace(output, path=str(tmp_path / "not" / "mounted" / "log"))
    (tmp_path / "loop").symlink_to("loop")
    unreachable = msgspec.structs.replace(output, path=str(tmp_path / "loop" / "log"))
    assert problems(msgspec.structs.replace(manifest, outputs=(gone_with_its_folder, elsewhere, unreachable))) == [
        ("restore-folder-missing", os.path.dirname(elsewhere.path)),
        ("restore-output-missing", gone_with_its_folder.path),
        ("restore-output-unreachable", unreachable.path),
    ]
    stored = msgspec.structs.replace(output, stored_as="outputs/1")
    assert problems(msgspec.structs.replace(manifest, outputs=(stored,))) == []


def test_what_the_checkpoint_holds_itself_need_not_be_here(program, tmp_path):
    running, _, _ = program
    manifest = described(running.pid, tmp_path / "none", connections=())
    (tmp_path / "read").unlink()
    held = frozenset({str(tmp_path / "read"), str(tmp_path / "none")})
    found = [one.code for one in restore.check(manifest, RestorePlan(is_staged=True, included=held))]
    assert not {"restore-file-missing", "restore-folder-missing"} & set(found)
    assert {code for code, _ in problems(manifest)} == {"restore-file-missing", "restore-folder-missing"}


def test_another_build_of_the_same_size_is_named(tmp_path):
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler")
    for number in (1, 2):
        source = f'#include <unistd.h>\nint main(void) {{ write(1, "\\n", 1); pause(); return {number}; }}\n'
        subprocess.run([cc, "-x", "c", "-", "-Wl,--build-id", "-o", tmp_path / f"build{number}"], input=source, text=True, check=True)
    target = tmp_path / "program"
    shutil.copy(tmp_path / "build1", target)
    with subprocess.Popen([target], stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout.read(1) == b"\n"  # only now is all of it mapped
            manifest = described(running.pid, tmp_path)
        finally:
            running.kill()
    assert problems(manifest) == []
    target.unlink()
    shutil.copy(tmp_path / "build2", target)
    assert target.stat().st_size == (tmp_path / "build1").stat().st_size
    assert problems(manifest) == [("restore-file-changed", str(target))]


def test_what_this_machine_is_short_of_is_named(program, tmp_path):
    running, _, _ = program
    huge = PartSize(Part.MEMORY, 1 << 60, 0, 0)
    manifest = described(running.pid, tmp_path / "none", connections=(), sizes=(huge,))
    many = msgspec.structs.replace(manifest.processes[0], pid=1 << 30, uid=3_999_999_999)
    manifest = msgspec.structs.replace(manifest, processes=(many,))
    found = [one.code for one in restore.check(manifest, RestorePlan())]
    assert {"restore-memory", "restore-disk", "restore-pid", "restore-user-missing", "restore-folder-missing", "host-criu"} <= set(found)


def is_taken(number: int, held: list[int]) -> bool:
    """Take terminals, into `held`, until the one with this number is among them; False where somebody else has it at this moment."""
    while True:
        # The lowest free number is given.
        ends = pty.openpty()
        given = int(os.ttyname(ends[1]).rpartition("/")[2])
        if given > number:
            for end in ends:
                os.close(end)
            return False
        held.extend(ends)
        if given == number:
            return True


@pytest.mark.criu
class TestWithCriu:
    """What is found before a restore, and what a real CRIU makes of it."""

    def saved(self, tools, folder: Path, program: str) -> Manifest:
        """Dump `program`, end it, and describe what was saved."""
        criu, init = tools
        with specimens.staged(program, folder, init) as stage:
            manifest = described(stage.program, folder)
            assert specimens.dump(criu, stage.root, folder).succeeded
        return manifest

    def comes_back(self, tools, folder: Path) -> bool:
        with specimens.restored(tools[0], folder) as (back, _):
            return back.succeeded

    def test_as_it_was(self, tools, tmp_path):
        (tmp_path / "read").write_text("abc")
        manifest = self.saved(tools, tmp_path, 'f = open("read"); a = server()')
        assert (problems(manifest), self.comes_back(tools, tmp_path)) == ([], True)

    def test_a_port_that_is_taken(self, tools, tmp_path):
        manifest = self.saved(tools, tmp_path, "a = server()")
        host_name, _, port = manifest.connections[0].local.rpartition(":")
        with socket.create_server((host_name, int(port))):
            assert [code for code, _ in problems(manifest)] == ["restore-port-taken"]
            assert not self.comes_back(tools, tmp_path)

    def test_a_terminal_that_is_taken(self, tools, tmp_path):
        manifest = self.saved(tools, tmp_path, "ends = high(pty.openpty)")
        (number,) = manifest.terminals
        held: list[int] = []
        try:
            wait_for(lambda: is_taken(number, held), 120, f"for terminal {number}")
            assert problems(manifest) == [("restore-terminal-taken", f"/dev/pts/{number}")]
            assert not self.comes_back(tools, tmp_path)
        finally:
            for descriptor in held:
                os.close(descriptor)

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            (lambda path: path.write_text("longer"), "restore-file-changed"),
            (lambda path: path.unlink(), "restore-file-missing"),
        ],
        ids=["changed", "missing"],
    )
    @pytest.mark.parametrize("program", ['f = open("read")', 'm = mmap.mmap(os.open("read", 0), 0, prot=1)'], ids=["read", "mapped"])
    def test_a_file_that_is_another(self, tools, tmp_path, program, change, code):
        (tmp_path / "read").write_text("abc")
        manifest = self.saved(tools, tmp_path, program)
        change(tmp_path / "read")
        assert problems(manifest) == [(code, str(tmp_path / "read"))]
        assert not self.comes_back(tools, tmp_path)

    def test_a_working_directory_that_is_gone(self, tools, tmp_path):
        (tmp_path / "work").mkdir()
        manifest = msgspec.structs.replace(self.saved(tools, tmp_path, 'os.chdir("work")'), working_directory=str(tmp_path / "work"))
        (tmp_path / "work").rmdir()
        assert problems(manifest) == [("restore-folder-missing", str(tmp_path / "work"))]
        assert not self.comes_back(tools, tmp_path)
