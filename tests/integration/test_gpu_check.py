"""`perdure check` of processes with CUDA, and `check --restore` of what was saved of one, on the stand-in driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from standin.world import Gpu, Standin
from supervised import Site, wait_for

from perdure.agent import asked, checks
from perdure.agent import site as agents_site
from perdure.cli import agent_check, console
from perdure.model.checkpoint import CheckpointId, Owner
from perdure.supervisor import place

PROGRAM = Path(__file__).resolve().parents[1] / "standin/program.py"
FIRST, SECOND, THIRD = (f"GPU-{number:08x}-1111-2222-3333-444444444444" for number in (1, 2, 3))
MIB = 1 << 20

pytestmark = [pytest.mark.criu, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the stand-in driver")]


@pytest.fixture
def driver(tmp_path: Path, libraries: Path) -> Standin:
    """A driver with two GPUs of 64 MiB."""
    (tmp_path / "world").mkdir()
    standin = Standin(tmp_path / "world", libraries)
    new(standin)
    standin.gpus(Gpu(FIRST, 64 * MIB), Gpu(SECOND, 64 * MIB))
    return standin


def new(driver: Standin, *besides: str) -> None:
    """Make it a driver that can do all but hand GPU memory out."""
    driver.driver(version="610.80.02", cuda=13030, features=("checkpoint", "remap", *besides))


@pytest.fixture
def site(driver: Standin, site: Site) -> Site:
    site.environment |= driver.environment
    return site


@pytest.fixture
def program(site: Site) -> Iterator:
    """Start Python code in a session of its own; it says ``ready`` or a number when it is."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, **variables: str) -> tuple[int, str]:
        source = "import ctypes, mmap, os, sys, time\nsys.stdout.reconfigure(line_buffering=True)\n" + textwrap.dedent(code)
        process = subprocess.Popen(
            [sys.executable, "-c", source + "\ntime.sleep(600)\n"],
            env=site.environment | variables,
            cwd=site.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        line = process.stdout.readline()
        assert line, "the program ended"
        return process.pid, line.strip()

    yield start
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


USES = """
from perdure.checkpoint.host.gpu_buffers import Buffers
held = [Buffers(uuid, 1 << 20) for uuid in sys.argv[1:] or ["-"]]
"""


def check(site: Site, *arguments: object, **variables: str) -> dict[str, dict]:
    """Findings about GPUs by code."""
    done = site.run("check", *map(str, arguments), "--json", env=variables)
    assert done.returncode in (0, 4), done.stderr.decode()
    return {finding["code"]: finding for finding in json.loads(done.stdout)["findings"] if "gpu" in finding["code"]}


def test_one_with_cuda_of_its_own_may_hold_its_devices(site, program):
    pid, _ = program(USES + "print('ready')")
    assert check(site, pid) == {}


def test_one_that_has_cuda_only_loaded_is_nothing_to_speak_of(site, program, driver):
    pid, _ = program("library = ctypes.CDLL('libcuda.so.1')\nprint('ready')")
    assert check(site, pid) == {}


def test_a_worker_that_was_forked_after_cuda_began_is_named(site, program):
    pid, worker = program(USES + "child = os.fork()\nif child: print(child)")
    found = check(site, pid)
    assert list(found) == ["gpu-device-held"]
    assert found["gpu-device-held"]["pid"] == int(worker)
    assert "nvidia" in found["gpu-device-held"]["path"]
    assert "spawn" in found["gpu-device-held"]["remedy"]


def test_a_worker_that_was_forked_before_is_fine(site, program):
    pid, _ = program("child = os.fork()\nif not child: time.sleep(600)\n" + textwrap.dedent(USES) + "print('ready')")
    assert check(site, pid) == {}


@pytest.mark.parametrize(
    ("version", "features", "code"),
    [
        ("550.54.15", (), "gpu-driver-old"),
        ("610.57.04", ("checkpoint", "remap"), "gpu-driver-faulty"),
        ("610.80.02", ("checkpoint", "remap", "mps"), "gpu-mps"),
        ("610.80.02", ("checkpoint", "remap", "vgpu"), "gpu-virtual"),
    ],
)
def test_a_driver_that_cannot_save_it_is_named(site, program, driver, version, features, code):
    pid, _ = program(USES + "print('ready')")
    driver.driver(version=version, cuda=13030, features=features)
    found = check(site, pid)
    assert code in found
    assert found[code]["severity"] == "problem"


def test_only_a_split_gpu_that_is_used_matters(site, program, driver):
    pid, _ = program(USES + "print('ready')")
    driver.gpus(Gpu(FIRST, 64 * MIB), Gpu(SECOND, 64 * MIB, mig=True))
    assert check(site, pid) == {}
    driver.gpus(Gpu(FIRST, 64 * MIB, mig=True), Gpu(SECOND, 64 * MIB))
    assert check(site, pid)["gpu-mig"]["flag"] == FIRST


def test_much_unified_memory_is_a_warning(site, program, driver):
    managed = driver.root / "dev/nvidia-uvm"
    managed.parent.mkdir(exist_ok=True)
    managed.write_bytes(b"")
    os.truncate(managed, 128 * MIB)
    pid, _ = program(USES + f"device = open({str(managed)!r}, 'r+b')\nmemory = mmap.mmap(device.fileno(), 0)\nprint('ready')")
    found = check(site, pid)
    assert list(found) == ["gpu-managed-memory"]
    assert "128 MiB" in found["gpu-managed-memory"]["message"]


def test_nccl_over_several_gpus_wants_its_settings(site, program, tmp_path):
    (tmp_path / "nccl.c").write_text("int ncclGetVersion(int *v) { return *v = 22307, 0; }\n")
    library = tmp_path / "libnccl.so.2"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nccl.c"], check=True)
    code = f"import sys; sys.argv[1:] = [{FIRST!r}, {SECOND!r}]\n" + textwrap.dedent(USES)
    code += f"nccl = ctypes.CDLL({str(library)!r})\nprint('ready')"
    pid, _ = program(code, NCCL_P2P_DISABLE="1")
    found = check(site, pid)
    assert found["gpu-nccl"]["flag"] == "NCCL_NVLS_ENABLE=0 NCCL_SHM_DISABLE=1"
    pid, _ = program(code, NCCL_P2P_DISABLE="1", NCCL_NVLS_ENABLE="0", NCCL_SHM_DISABLE="1")
    assert check(site, pid) == {}


def test_several_processes_on_an_older_driver_may_share_memory(site, program, driver):
    driver.driver(version="595.80.01", cuda=13020, features=("checkpoint", "remap"))
    pid, _ = program("child = os.fork()\n" + textwrap.dedent(USES) + "if child: time.sleep(0.5)\nprint('ready')")
    wait_for(lambda: "gpu-shared-memory" in check(site, pid), limit_s=240.0, what="for both processes to use CUDA")
    new(driver)
    assert check(site, pid) == {}


class TestRestore:
    """What was saved of a process with 5 MiB on the first GPU."""

    @pytest.fixture
    def saved(self, site) -> str:
        site.start("run", "--name", "a", "--every", "never", "--", sys.executable, str(PROGRAM), str(5 * MIB))
        wait_for(lambda: b"at " in site.log("a"), 240.0, "for the program to begin")
        done = site.run("checkpoint", "a", "--stop", "--json")
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)["id"]

    def test_each_thing_that_is_missing_here_has_its_code(self, site, saved, driver):
        assert check(site, "--restore", saved) == {}
        driver.gpus(Gpu(THIRD, 64 * MIB), Gpu(SECOND, 64 * MIB))
        assert list(check(site, "--restore", saved)) == ["restore-gpu-other"]
        driver.driver(version="610.80.02", cuda=12080, features=("checkpoint",))
        assert "restore-gpu-other" in check(site, "--restore", saved), "what a version can do is told by its number"
        new(driver)
        driver.gpus(Gpu(FIRST, 64 * MIB))
        assert list(check(site, "--restore", saved)) == ["restore-gpu-missing"]
        driver.gpus(Gpu(FIRST, 4 * MIB), Gpu(SECOND, 4 * MIB))
        assert list(check(site, "--restore", saved)) == ["restore-gpu-memory"]
        driver.gpus(Gpu(FIRST, 64 * MIB), Gpu(SECOND, 64 * MIB))
        driver.driver(version="575.51.03", cuda=12090, features=("checkpoint",))
        found = check(site, "--restore", saved)
        assert list(found) == ["restore-gpu-driver"]
        assert "610.80.02" in found["restore-gpu-driver"]["remedy"]
        driver.gpus(Gpu(THIRD, 64 * MIB), Gpu(SECOND, 64 * MIB))
        assert {"restore-gpu-driver", "restore-gpu-remap"} == set(check(site, "--restore", saved))
        (driver.root / "driver").unlink()
        assert list(check(site, "--restore", saved)) == ["gpu-no-driver"]

    def test_a_job_needs_only_the_gpus_that_it_used(self, site, saved, driver):
        assert check(site, "--restore", saved, **driver.restricted(SECOND)) == {}
        assert check(site, "--restore", saved, **driver.restricted(SECOND), CUDA_VISIBLE_DEVICES="0") == {}
        other = check(site, "--restore", saved, **driver.restricted(FIRST), CUDA_VISIBLE_DEVICES="0")
        assert list(other) == ["restore-gpu-other"]
        assert SECOND in other["restore-gpu-other"]["message"]
        for none in (driver.restricted(FIRST, SECOND), {"CUDA_VISIBLE_DEVICES": ""}):
            found = check(site, "--restore", saved, **none)
            assert "may use" in found["restore-gpu-missing"]["message"]

    def test_the_agent_looks_with_what_the_caller_may_use(self, site, saved, driver, monkeypatch):
        for name, value in site.environment.items():
            monkeypatch.setenv(name, value)
        site_of_root, chosen = agents_site.read(site.environment), CheckpointId.parse(saved)
        driver.gpus(Gpu(SECOND, 64 * MIB), Gpu(FIRST, 64 * MIB))

        def found(visible: str | None) -> dict[str, str]:
            wanted = asked.CheckRestore(checkpoint=saved, cuda_visible=visible)
            told = checks.restore(site_of_root, Owner(uid=0, gid=0, groups=()), repository, chosen, wanted)
            return {one.code: one.message for one in told if one.code.startswith("restore-gpu")}

        with place.opened(site_of_root.place_of(Owner(uid=0, gid=0, groups=()))) as repository:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # root's own, which is not the caller's
            assert found("0,1") == {}
            assert found(FIRST) == {}
            assert "becomes" in found("0")["restore-gpu-other"]
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
            assert found(None) == {}
            assert "may use" in found("")["restore-gpu-missing"]

    def test_the_agent_is_told_what_the_caller_may_use(self, monkeypatch):
        told: list[asked.CheckRestore] = []

        class Agent:
            def ask(self, what):
                told.append(what)
                return {"checkpoint": "a@1.1", "findings": []}

        for value in ("1", ""):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
            agent_check.check(Agent(), console.Common(quiet=True), None, "a@1.1", outputs=(), tcp="close", cpu_check=None)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        agent_check.check(Agent(), console.Common(quiet=True), None, "a@1.1", outputs=(), tcp="close", cpu_check=None)
        assert [one.cuda_visible for one in told] == ["1", "", None]
