"""What is compared before a restore: files, processors, kernels, ports; and what is read from ELF files and the kernel's diagnosis."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.base.proc import network
from perdure.checkpoint.preflight import buildid, cpu, links, ports, restore
from perdure.checkpoint.preflight.restore import RestorePlan
from perdure.model.checkpoint import Connection, HostFact, MappedFile

HOST = HostFact(
    hostname="n1",
    machine="x86_64",
    kernel="6.1.0-18-amd64",
    boot_id="b",
    cpu_model="Zen 4",
    cpu_flags=("avx2", "avx512f", "erms", "smep"),
    page_bytes=4096,
    criu_version="4.2.1",
    perdure_version="1",
    pid_max=4194304,
)


def note(name: bytes, value: bytes, kind: int, order: str = "<") -> bytes:
    """One ELF note."""
    pad = lambda text: text + bytes(-len(text) % 4)  # noqa: E731
    return struct.pack(order + "III", len(name), len(value), kind) + pad(name) + pad(value)


class TestBuildId:
    """Build ids of ELF files."""

    def test_agrees_with_readelf(self):
        if shutil.which("readelf") is None:
            pytest.skip("no readelf")
        program = os.path.realpath(shutil.which("cat"))
        # In English, whatever language whoever runs the suite has.
        environment = os.environ | {"LC_ALL": "C"}
        said = subprocess.run(["readelf", "-n", program], capture_output=True, text=True, check=True, env=environment).stdout
        expected = said.partition("Build ID: ")[2].split()[0]
        assert buildid.of_path(program) == expected

    def test_what_is_no_elf_file_has_none(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "text").write_text("#!/bin/sh\n")
        for path in (tmp_path / "fifo", tmp_path / "text", tmp_path, tmp_path / "missing", "/dev/zero"):
            assert buildid.of_path(str(path)) is None

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_the_id_is_found_among_other_notes(self, order):
        notes = note(b"GNU\0", bytes(16), 1, order) + note(b"Go\0\0", b"x" * 7, 4, order) + note(b"GNU\0", b"\xab\xcd", 3, order)
        assert buildid.parse_notes(notes, order) == "abcd"

    @given(st.binary(max_size=200), st.sampled_from(["<", ">"]))
    def test_any_bytes_are_read_to_an_end(self, notes, order):
        found = buildid.parse_notes(notes, order)
        assert found is None or bytes.fromhex(found) in notes

    @given(data=st.data())
    def test_a_damaged_file_is_read_to_an_end(self, data, tmp_path_factory):
        path = tmp_path_factory.mktemp("elf") / "program"
        content = bytearray(Path(os.path.realpath(sys.executable)).read_bytes()[:4096])
        for _ in range(data.draw(st.integers(1, 8))):
            content[data.draw(st.integers(0, 255))] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        found = buildid.of_path(str(path))
        assert found is None or len(found) <= 128


class TestProcessor:
    """Features of processors."""

    def test_speed_alone_does_not_count(self):
        here = msgspec.structs.replace(HOST, cpu_model="Old", cpu_flags=("avx2",))
        found = {finding.code: finding for finding in restore.compare(HOST, here, RestorePlan())}
        assert found["restore-cpu"].flag == "avx512f"
        assert found["restore-cpu-other"].flag == "erms,smep"

    def test_strict_and_off(self):
        here = msgspec.structs.replace(HOST, cpu_flags=("avx2", "avx512f"))
        assert [finding.code for finding in restore.compare(HOST, here, RestorePlan())] == ["restore-cpu-other"]
        (strict,) = restore.compare(HOST, here, RestorePlan(cpu="strict"))
        assert (strict.code, strict.flag) == ("restore-cpu", "erms,smep")
        assert list(restore.compare(HOST, here, RestorePlan(cpu="off"))) == []

    def test_more_features_than_before_are_welcome(self):
        here = msgspec.structs.replace(HOST, cpu_flags=(*HOST.cpu_flags, "amx_tile"))
        assert list(restore.compare(HOST, here, RestorePlan(cpu="strict"))) == []

    @pytest.mark.parametrize("flag", ["sse4_2", "avx512_vnni", "fma", "bmi2", "aes", "rdrand", "xsavec", "amx_bf16", "pku", "vaes"])
    def test_programs_choose_by(self, flag):
        assert cpu.is_used(flag, "x86_64")

    @pytest.mark.parametrize("flag", ["erms", "fsrm", "smap", "vmx", "pti", "constant_tsc", "arch_perfmon", "hypervisor", "ibpb"])
    def test_programs_do_not_choose_by(self, flag):
        assert not cpu.is_used(flag, "x86_64")

    def test_what_can_be_asked_for(self):
        assert [cpu.chosen(text, "-") for text in ("features", "strict", "off")] == ["features", "strict", "off"]
        with pytest.raises(errors.SettingError, match=r"cpu-check: 'of'.*--cpu-check"):
            cpu.chosen("of", "--cpu-check")

    def test_other_architectures(self):
        assert cpu.is_used("sve", "aarch64")
        assert not cpu.is_used("evtstrm", "aarch64")


class TestMachine:
    """Architectures, kernels, pages."""

    def test_the_same_machine(self):
        assert list(restore.compare(HOST, HOST, RestorePlan())) == []

    def test_another_architecture_says_no_more_than_that(self):
        here = msgspec.structs.replace(HOST, machine="aarch64", cpu_flags=(), page_bytes=65536)
        assert [finding.code for finding in restore.compare(HOST, here, RestorePlan())] == ["restore-architecture"]

    @pytest.mark.parametrize(("kernel", "older"), [("5.15.0", True), ("6.1.0-9", False), ("6.18.2", False), ("7.0", False), ("odd", False)])
    def test_kernels(self, kernel, older):
        found = [finding.code for finding in restore.compare(HOST, msgspec.structs.replace(HOST, kernel=kernel), RestorePlan())]
        assert found == (["restore-kernel-older"] if older else [])

    def test_page_size_and_name(self):
        here = msgspec.structs.replace(HOST, hostname="n2", page_bytes=65536)
        assert [finding.code for finding in restore.compare(HOST, here, RestorePlan())] == ["restore-host", "restore-page-size"]


class TestFiles:
    """Files that have to be the same."""

    def judge(
        self, path: Path, /, *, build_id: str | None = None, now: str | None = None, is_rewritten: bool = False, **changed
    ) -> list[str]:
        there = path.stat()
        file = MappedFile(path=str(path), size_bytes=there.st_size, mtime_ns=there.st_mtime_ns, build_id=build_id)
        file = msgspec.structs.replace(file, **changed)
        return [finding.code for finding in restore.judge(file, os.stat, lambda _: now, is_rewritten=is_rewritten)]

    def test_each_difference_has_its_code(self, tmp_path):
        path = tmp_path / "lib"
        path.write_bytes(b"abc")
        assert self.judge(path) == []
        assert self.judge(path, mtime_ns=5) == ["restore-file-touched"]
        assert self.judge(path, size_bytes=4) == ["restore-file-changed"]
        assert self.judge(path, path=str(tmp_path / "none")) == ["restore-file-missing"]
        assert self.judge(path, build_id="aa", now="bb") == ["restore-file-changed"]
        assert self.judge(path, build_id="aa", now="aa", mtime_ns=5) == []

    def test_one_that_is_written_anew_for_each_life_may_be_younger_and_nothing_else(self, tmp_path):
        path = tmp_path / "slurm_script"
        path.write_bytes(b"abc")
        assert self.judge(path, mtime_ns=5, is_rewritten=True) == []
        assert self.judge(path, size_bytes=4, is_rewritten=True) == ["restore-file-changed"]
        assert self.judge(path, path=str(tmp_path / "none"), is_rewritten=True) == ["restore-file-missing"]


def wanted(local: str, protocol: str = "tcp", state: str = "listen") -> Connection:
    """A socket of the workload."""
    return Connection(protocol=protocol, state=state, local=local, remote="0.0.0.0:0", inode=1, inside=False)


@pytest.mark.parametrize(
    ("mine", "theirs", "taken"),
    [
        (wanted("127.0.0.1:80"), network.Inet("tcp", ("127.0.0.1", 80), ("0.0.0.0", 0), "listen", 0, 9), True),
        (wanted("127.0.0.1:80"), network.Inet("tcp", ("10.0.0.1", 80), ("0.0.0.0", 0), "listen", 0, 9), False),
        (wanted("0.0.0.0:80"), network.Inet("tcp", ("10.0.0.1", 80), ("0.0.0.0", 0), "listen", 0, 9), True),
        (wanted("[::]:80", "tcp6"), network.Inet("tcp", ("10.0.0.1", 80), ("0.0.0.0", 0), "listen", 0, 9), True),
        (wanted("127.0.0.1:80"), network.Inet("tcp", ("127.0.0.1", 80), ("1.1.1.1", 5), "established", 0, 9), False),
        (wanted("127.0.0.1:80"), network.Inet("udp", ("127.0.0.1", 80), ("0.0.0.0", 0), "closed", 0, 9), False),
        (wanted("0.0.0.0:53", "udp", "closed"), network.Inet("udp", ("0.0.0.0", 53), ("0.0.0.0", 0), "closed", 0, 9), True),
        (wanted("127.0.0.1:80", state="established"), network.Inet("tcp", ("127.0.0.1", 80), ("0.0.0.0", 0), "listen", 0, 9), False),
    ],
)
def test_ports(mine, theirs, taken):
    assert bool(list(ports.clashing([mine], (theirs,)))) is taken


@pytest.mark.parametrize(("is_reusable", "is_kept"), [(False, True), (True, False)])
def test_a_port_is_kept_for_connections_that_have_ended(is_reusable, is_kept):
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, is_reusable)
        server.bind(("127.0.0.1", 0))
        server.listen()
        client = socket.create_connection(server.getsockname())
        server.accept()[0].close()
        mine = wanted("{}:{}".format(*server.getsockname()))
        assert ports.kept([mine]) == (), "it is held: nothing comes of waiting"
    kept = [mine] if is_kept else []
    with client:
        assert list(ports.kept([mine, wanted("127.0.0.1:1", state="established")])) == kept
        assert list(ports.kept([wanted(mine.local.replace("127.0.0.1", "0.0.0.0"))])) == [
            wanted(one.local.replace("127.0.0.1", "0.0.0.0")) for one in kept
        ]
        # What the other end resets is gone at once.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ports.kept([mine]) == ()


class TestDiagnosis:
    """The kernel's answers about Unix sockets."""

    def message(self, inode: int, *attributes: tuple[int, tuple[int, ...]]) -> bytes:
        body = struct.pack("=BBBBIII", 1, 1, 1, 0, inode, 0, 0)
        for kind, numbers in attributes:
            body += struct.pack(f"=HH{len(numbers)}I", 4 + 4 * len(numbers), kind, *numbers)
        return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body

    def test_peers_and_those_that_wait(self):
        done = struct.pack("=IHHII", 16, 3, 2, 1, 0)
        reply = self.message(5, (2, (9,))) + self.message(6, (3, (7, 0, 8))) + done
        assert links.parse_unix_diagnosis(reply) == ({5: 9, 7: 6, 8: 6}, True)
        assert links.parse_unix_diagnosis(self.message(5, (2, (9,)))) == ({5: 9}, False)

    @given(st.binary(max_size=120))
    def test_any_bytes_are_read_to_an_end(self, reply):
        links.parse_unix_diagnosis(reply)
