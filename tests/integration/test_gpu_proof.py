"""`scripts/gpu-proof`: packed, unpacked and run by a bare Python on the stand-in driver; and what it says without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from standin import world
from standin.world import Gpu, Standin
from supervised import wait_for

from perdure.checkpoint.host import gpu

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/gpu-proof"
FIRST, SECOND = (f"GPU-{number:08x}-1111-2222-3333-444444444444" for number in (1, 2))
BARE = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
BRIEF = ("--sizes", "4M", "--pairs", "2", "--seconds", "0.1")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the proof needs root")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    """A driver with two GPUs."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the stand-in driver")
    libraries = world.build(tmp_path_factory.mktemp("standin"))
    standin = Standin(tmp_path_factory.mktemp("world"), libraries)
    standin.driver(version="610.80.02", cuda=13030, features=("checkpoint", "remap"))
    standin.gpus(*(Gpu(uuid, memory_bytes=2 << 30) for uuid in (FIRST, SECOND)))
    return standin


def run(script: Path, *arguments: str | os.PathLike[str], cwd: Path, env: dict[str, str] = BARE) -> subprocess.CompletedProcess[str]:
    """Run the script by the interpreter below ours, which has nothing installed."""
    python = getattr(sys, "_base_executable", sys.executable)
    return subprocess.run([python, script, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=550)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked file."""
    folder = tmp_path_factory.mktemp("pack")
    version = "{}.{}".format(*sys.version_info[:2])
    packing = [ROOT / ".venv/bin/python", SCRIPT, "--pack", folder / "pack.tar.gz", "--pythons", version]
    done = subprocess.run(packing, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    subprocess.run(["tar", "-xzf", folder / "pack.tar.gz", "-C", folder], check=True)
    return folder / "gpu-proof"


@pytest.mark.criu
@pytest.mark.skipif(not (ROOT / ".venv/criu").is_dir(), reason="no prefix with a CRIU in .venv to pack")
class TestPack:
    """One file, and what it does elsewhere."""

    def test_it_proves_everything_that_can_be_and_says_what_cannot(self, unpacked, driver, tmp_path):
        done = run(unpacked / "gpu-proof", "--out", tmp_path / "out", *BRIEF, cwd=tmp_path, env=BARE | driver.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads((tmp_path / "out/gpu-proof.json").read_text())
        outcomes = {case["name"]: case["outcome"] for case in told["cases"]}
        assert outcomes["a canary on each GPU"] == "passed"
        assert outcomes["buffers of 4 MiB"] == "passed"
        assert outcomes["onto another GPU"] == "passed"
        assert outcomes["kernel launches, managed and alone"] == "passed"
        (buffers,) = [case for case in told["cases"] if case["name"].startswith("buffers")]
        assert {"stopped_x", "restore_x", "bytes_x", "suspend_s", "cold_start_s"} <= set(buffers["figures"])
        assert [run["how"] for run in buffers["runs"]] == ["perdure", "by hand"]
        assert buffers["runs"][0]["freed_bytes"] >= 4 << 20
        assert [gpu["uuid"] for gpu in told["gpus"]] == [FIRST, SECOND]
        text = (tmp_path / "out/gpu-proof.txt").read_text()
        for name, outcome in outcomes.items():
            assert f"- {name}: " in text or outcome != "not run"
        assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == [], "what it worked in was left behind"

    def test_a_damaged_wheel_is_refused(self, unpacked, tmp_path):
        copy = tmp_path / "copy"
        shutil.copytree(unpacked, copy, symlinks=True)
        wheel = next(copy.rglob("msgspec*.whl"))
        wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
        done = run(copy / "gpu-proof", cwd=tmp_path)
        assert done.returncode == 20
        assert "msgspec" in done.stderr
        assert "damaged" in done.stderr

    def test_another_python_is_told_which_it_is_for(self, unpacked, tmp_path):
        copy = tmp_path / "copy"
        shutil.copytree(unpacked, copy, symlinks=True)
        told = json.loads((copy / "pack.json").read_text())
        (copy / "pack.json").write_text(json.dumps(told | {"pythons": ["3.99"]}))
        done = run(copy / "gpu-proof", cwd=tmp_path)
        assert done.returncode == 20
        assert "3.99" in done.stderr


@needs_root
@pytest.mark.skipif(gpu.look().has_driver, reason="this machine has a driver")
def test_without_a_driver_it_says_so(tmp_path):
    done = run(SCRIPT, "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 20
    assert "gpu-no-driver" in done.stderr
    assert "Nothing was run" in done.stderr
    assert not (tmp_path / "out").exists()


@needs_root
def test_what_the_driver_cannot_is_another_status(driver, tmp_path):
    driver.gpus(Gpu(FIRST, mig=True))
    try:
        done = run(SCRIPT, "--out", tmp_path / "out", cwd=tmp_path, env=BARE | driver.environment)
    finally:
        driver.gpus(*(Gpu(uuid, memory_bytes=2 << 30) for uuid in (FIRST, SECOND)))
    assert done.returncode == 22
    assert "gpu-mig" in done.stderr
    told = json.loads((tmp_path / "out/gpu-proof.json").read_text())
    assert {case["outcome"] for case in told["cases"] if "canary" not in case["name"]} == {"not run"}
    assert all("gpu-mig" in case["why"] for case in told["cases"] if "canary" not in case["name"])


def test_a_checkout_without_an_environment_says_what_to_do(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy2(SCRIPT, tmp_path / "scripts/gpu-proof")
    python = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run([python, "-I", tmp_path / "scripts/gpu-proof"], env=BARE, capture_output=True, text=True)
    assert done.returncode == 20
    assert "--pack" in done.stderr


def outcomes(folder: Path) -> dict[str, tuple[str, str]]:
    """Return outcome and reason of each case in the report below `folder`."""
    told = json.loads((folder / "gpu-proof.json").read_text())
    return {case["name"]: (case["outcome"], case["why"]) for case in told["cases"]}


@needs_root
def test_where_criu_cannot_run_the_driver_is_proved_alone(driver, tmp_path):
    env = BARE | driver.environment | {"PERDURE_CRIU": str(tmp_path / "none")}
    done = run(SCRIPT, "--out", tmp_path / "out", "--work", tmp_path / "work", *BRIEF, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    found = outcomes(tmp_path / "out")
    assert found["a canary on each GPU"][0] == "passed"
    assert found["the driver alone, 4 MiB"][0] == "passed"
    assert found["buffers of 4 MiB"][0] == "not run"
    assert "no CRIU works here" in found["buffers of 4 MiB"][1]
    around = json.loads((tmp_path / "out/gpu-proof.json").read_text())["surroundings"]
    assert around["driver_says"]["has_checkpoint"] is True
    assert {"lacks", "seccomp", "devices", "places", "nvidia_smi", "locked_memory_limit_bytes"} <= set(around)


@needs_root
def test_what_the_driver_hands_out_is_proved_alone_too(driver, tmp_path):
    driver.driver(version="615.80.02", cuda=13040)
    try:
        done = run(SCRIPT, "--out", tmp_path, "--sizes", "4M", "--only", "driver alone", cwd=tmp_path, env=BARE | driver.environment)
    finally:
        driver.driver(version="610.80.02", cuda=13030, features=("checkpoint", "remap"))
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = [one for one in json.loads((tmp_path / "gpu-proof.json").read_text())["cases"] if one["runs"]]
    assert {run["way"] for run in case["runs"]} == {"host", "files"}
    assert {"host_checkpoint_gb_per_s", "files_restore_gb_per_s"} <= set(case["figures"])


@needs_root
def test_without_time_nothing_is_begun_and_the_report_says_so(driver, tmp_path):
    arguments = ("--out", tmp_path, "--sizes", "4M", "--only", "driver alone", "--limit", "1s")
    done = run(SCRIPT, *arguments, cwd=tmp_path, env=BARE | driver.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outcomes(tmp_path)["the driver alone, 4 MiB"][0] == "not run"
    assert "of the limit" in outcomes(tmp_path)["the driver alone, 4 MiB"][1]


@needs_root
def test_one_that_is_ended_leaves_its_report_and_nothing_else(driver, tmp_path):
    driver.faults(world.Fault("lock", 0, "hang"))
    python = getattr(sys, "_base_executable", sys.executable)
    command = [python, SCRIPT, "--out", tmp_path / "out", "--work", tmp_path / "work", "--sizes", "4M", "--only", "driver alone"]
    process = subprocess.Popen(command, env=BARE | driver.environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: driver.calls("lock"), limit_s=120.0)
        assert set(outcomes(tmp_path / "out").values()) == {("not run", "it was not come to")}
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 143, process.stderr.read()
    finally:
        driver.faults()
        process.kill()
        process.stderr.close()
    assert set(outcomes(tmp_path / "out").values()) == {("not run", "the proof was ended")}
    assert list((tmp_path / "work").iterdir()) == [], "what it worked in was left behind"


def test_the_bench_says_why_it_measured_nothing(tmp_path):
    if gpu.look().has_driver:
        pytest.skip("this machine has a driver")
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run([sys.executable, "-m", "bench", "gpu"], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "gpu-no-driver" in done.stdout or "needs root" in done.stdout
