"""`perdure doctor --gpu` and what is behind it: NVML asked in a process of its own, and a canary, on the stand-in driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from standin.world import Fault, Gpu, Refused, Standin

from perdure.checkpoint.host import gpu

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = (f"GPU-{number:08x}-1111-2222-3333-444444444444" for number in (1, 2))

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the stand-in driver")


@pytest.fixture
def driver(tmp_path: Path, libraries: Path) -> Standin:
    """A driver with one GPU on which everything works."""
    (tmp_path / "world").mkdir()
    standin = Standin(tmp_path / "world", libraries)
    standin.driver(version="610.80.02")
    standin.gpus(Gpu(FIRST))
    return standin


@pytest.fixture
def doctor(perdure: Callable[..., subprocess.CompletedProcess[str]], driver: Standin) -> Callable[..., tuple[int, dict]]:
    """Run `perdure doctor --gpu --json` with the driver; returns exit status and document."""

    def run(**env: str) -> tuple[int, dict]:
        done = perdure("doctor", "--gpu", "--json", env=driver.environment | env)
        return done.returncode, json.loads(done.stdout)

    return run


def codes(document: dict) -> list[str]:
    """Codes of the findings, gravest first."""
    return [finding["code"] for finding in document["findings"]]


def of(document: dict, code: str) -> dict:
    """The one finding with `code`."""
    (found,) = [finding for finding in document["findings"] if finding["code"] == code]
    return found


@pytest.mark.skipif(gpu.look().has_driver, reason="this machine has a driver")
def test_a_machine_without_a_driver_gets_one_clear_finding(perdure):
    done = perdure("doctor", "--gpu", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 4
    assert codes(document) == ["gpu-no-driver"]
    assert "570" in document["findings"][0]["remedy"]
    assert json.loads(done.stderr)["error"]["code"] == "findings"


def test_a_good_driver_is_proved_by_a_canary(doctor, driver):
    status, document = doctor()
    assert status == 0
    assert codes(document) == ["gpu-driver", "gpu-device", "gpu-canary"]
    assert document["driver"] == "610.80.02"
    assert [device["uuid"] for device in document["devices"]] == [FIRST]
    assert "lock" in of(document, "gpu-canary")["message"]
    assert [call.operation for call in driver.calls() if call.operation != "state"] == ["lock", "checkpoint", "restore", "unlock"]


@pytest.mark.parametrize(
    ("fault", "step", "words", "remedy"),
    [
        (Fault("init", 1, "error", 3), "start", "cuInit", "nvidia-smi"),
        (Fault("lock", 1, "error", 600), "lock", "NOT_READY", "nvidia-smi"),
        (Fault("lock", 1, "die"), "lock", "", ""),
        (Fault("checkpoint", 1, "error", 801), "checkpoint", "NOT_SUPPORTED", "another machine"),
        (Fault("restore", 1, "error", 2), "restore", "OUT_OF_MEMORY", "MIG"),
        (Fault("unlock", 1, "error", 304), "unlock", "OPERATING_SYSTEM", "ptrace_scope"),
    ],
)
def test_a_canary_that_does_not_come_back_is_a_problem_at_its_step(doctor, driver, fault, step, words, remedy):
    driver.faults(fault)
    status, document = doctor()
    assert status == 4
    found = of(document, "gpu-canary-failed")
    assert step in found["subject"]
    assert words in found["message"]
    assert remedy in found["remedy"]


@pytest.mark.parametrize(
    ("version", "cuda", "features", "expected"),
    [
        ("550.54.15", 12040, (), "gpu-driver-old"),
        ("610.57.04", 13030, ("checkpoint", "remap"), "gpu-driver-faulty"),
        ("610.80.02", 13040, ("checkpoint", "remap", "vgpu"), "gpu-virtual"),
    ],
)
def test_no_canary_is_tried_where_something_forbids_it(doctor, driver, version, cuda, features, expected):
    driver.driver(version=version, cuda=cuda, features=features)
    status, document = doctor()
    assert status == 4
    assert codes(document)[0] == expected
    assert not [code for code in codes(document) if code.startswith("gpu-canary")]
    assert driver.calls() == []


def test_what_a_driver_lacks_is_named_with_the_one_that_has_it(doctor, driver):
    driver.driver(version="570.86.15", cuda=12080, features=("checkpoint",))
    status, document = doctor()
    assert status == 0
    assert "580" in of(document, "gpu-no-remap")["remedy"]
    assert "610" in of(document, "gpu-no-shared")["remedy"]
    assert "13.4" in of(document, "gpu-no-direct")["remedy"]


def test_a_split_gpu_is_named_by_its_number(doctor, driver):
    driver.gpus(Gpu(FIRST), Gpu(SECOND, mig=True))
    status, document = doctor()
    assert status == 4
    found = of(document, "gpu-mig")
    assert found["flag"] == SECOND
    assert "GPU 1" in found["subject"]


def test_a_driver_without_gpus_is_a_problem(doctor, driver):
    driver.gpus()
    status, document = doctor()
    assert status == 4
    assert codes(document)[0] == "gpu-no-device"


@pytest.mark.parametrize("refused", [Refused(FIRST, 15), Refused(FIRST, 999), Refused(FIRST, 15, "memory")])
def test_a_gpu_that_is_lost_is_named_and_the_others_are_told(doctor, driver, refused):
    driver.gpus(Gpu(FIRST), Gpu(SECOND))
    driver.refused(refused)
    status, document = doctor()
    assert status == 0
    assert codes(document) == ["gpu-lost", "gpu-driver", "gpu-device", "gpu-canary"]
    assert document["driver"] == "610.80.02"
    assert [device["uuid"] for device in document["devices"]] == [SECOND]
    lost = of(document, "gpu-lost")
    assert lost["severity"] == "warning"
    assert "GPU 0" in lost["subject"]
    assert f"({refused.number})" in lost["message"]
    assert "reboot" in lost["remedy"]


def test_a_gpu_that_shares_the_machines_memory_is_not_taken_for_a_lost_one(doctor, driver):
    driver.gpus(Gpu(FIRST, model="NVIDIA GB10"))
    driver.refused(Refused(FIRST, 3, "memory"))
    status, document = doctor()
    assert status == 4
    assert codes(document)[0] == "gpu-platform"
    assert "gpu-lost" not in codes(document)


def test_gpus_that_a_job_may_not_use_are_named_and_its_own_is_told(doctor, driver):
    driver.gpus(Gpu(FIRST), Gpu(SECOND))
    status, document = doctor(**driver.restricted(FIRST))
    assert status == 0
    assert codes(document) == ["gpu-driver", "gpu-forbidden", "gpu-device", "gpu-canary"]
    assert [device["uuid"] for device in document["devices"]] == [SECOND]
    assert "GPU 0" in of(document, "gpu-forbidden")["subject"]
    status, document = doctor(**driver.restricted(FIRST, SECOND))
    assert status == 4
    assert codes(document)[0] == "gpu-no-device"
    assert document["driver"] == "610.80.02", "which driver it is does not depend on a GPU"


def test_a_library_that_does_not_load_is_a_driver_that_does_not_answer(doctor, driver, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "libnvidia-ml.so.1").write_bytes(b"not a library")
    status, document = doctor(LD_LIBRARY_PATH=str(broken))
    assert status == 4
    assert codes(document) == ["gpu-driver-silent"]


def test_nvml_that_crashes_takes_nobody_with_it(doctor, driver, tmp_path):
    crashing = tmp_path / "crashing"
    crashing.mkdir()
    (crashing / "nvml.c").write_text("#include <stdlib.h>\nint nvmlInit_v2(void) { abort(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(crashing / "libnvidia-ml.so.1"), str(crashing / "nvml.c")], check=True)
    status, document = doctor(LD_LIBRARY_PATH=str(crashing))
    assert status == 4
    assert codes(document) == ["gpu-driver-silent"]
    assert "signal 6" in document["findings"][0]["message"]


def test_libraries_without_a_kernel_driver_are_no_driver(doctor, driver):
    (driver.root / "driver").unlink()
    status, document = doctor()
    assert status == 4
    assert codes(document) == ["gpu-no-driver"]


def test_other_options_do_not_go_with_it(perdure):
    done = perdure("doctor", "--gpu", "--bring-criu")
    assert done.returncode == 2
    assert "--gpu" in done.stderr


def test_what_nvml_tells_of_processes_is_theirs(driver):
    environment = {**os.environ, **driver.environment, "PYTHONPATH": str(ROOT / "src")}
    holding = subprocess.Popen(
        [sys.executable, "-m", "perdure.checkpoint.host.gpu_buffers", FIRST, str(3 << 20)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holding.stdout.readline() == "ready\n"
        asked = [sys.executable, "-m", "perdure.checkpoint.host.gpu_nvml"]
        told = json.loads(subprocess.run(asked, env=environment, capture_output=True, check=True).stdout)
        assert told["uses"] == [{"uuid": FIRST, "pid": holding.pid, "memory_bytes": 3 << 20, "mps": False}]
        assert told["devices"][0]["free_bytes"] == (1 << 30) - (3 << 20)
        driver.driver(version="610.80.02", features=("checkpoint", "mps"))
        told = json.loads(subprocess.run(asked, env=environment, capture_output=True, check=True).stdout)
        assert [use["mps"] for use in told["uses"]] == [True]
        holding.stdin.write("digest\nstep 5\ndigest\n")
        holding.stdin.flush()
        before, stepped, after = (holding.stdout.readline().strip() for _ in range(3))
        assert stepped == "stepped"
        assert len(before) == len(after) == 64
        assert before != after
    finally:
        holding.stdin.close()
        holding.wait()
        holding.stdout.close()
