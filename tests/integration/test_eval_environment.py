"""Where a run takes place, with GPUs: what nvidia-smi and `perdure doctor --gpu` say of them, on the stand-in driver."""

from __future__ import annotations

import shutil
from pathlib import Path

import evaluations
import pytest
from standin.world import Gpu, Standin

from perdure.evaluation import environment
from perdure.evaluation import plan as plans

GPU = "GPU-00000001-1111-2222-3333-444444444444"
SMI = f"""\
#!/bin/sh
case $* in
--query-gpu=name,uuid,driver_version*) echo "Stand-in H100, {GPU}, 610.80.02" ;;
"") echo "| NVIDIA-SMI 610.80.02   Driver Version: 610.80.02   CUDA Version: 13.4  |" ;;
*) exit 1 ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the stand-in driver")


@pytest.fixture
def plan(tmp_path: Path) -> plans.Plan:
    return plans.load(evaluations.begin(tmp_path).plan)


@pytest.fixture
def driver(tmp_path: Path, libraries: Path, monkeypatch) -> Standin:
    (tmp_path / "world").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text(SMI)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    standin = Standin(tmp_path / "world", libraries)
    standin.driver(version="610.80.02")
    for name, value in (standin.environment | {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}).items():
        monkeypatch.setenv(name, value)
    return standin


def test_gpus_and_what_stands_in_their_way_are_recorded(driver, plan):
    driver.gpus(Gpu(GPU, mig=True))
    found = environment.read(plan)
    assert (found.gpus, found.driver_version, found.cuda_version) == ((f"Stand-in H100 {GPU}",), "610.80.02", "13.4")
    assert found.gpu_findings == ("gpu-mig: GPU 0 (Stand-in H100)",)
    assert driver.calls() == [], "a GPU that is split is not tried"


def test_good_gpus_leave_nothing_to_say(driver, plan):
    driver.gpus(Gpu(GPU))
    found = environment.read(plan)
    assert (found.gpus, found.gpu_findings) == ((f"Stand-in H100 {GPU}",), ())
    assert driver.calls(), "each is tried with a tiny process"


def test_without_gpus_no_driver_is_asked_for(monkeypatch, plan):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has GPUs")
    assert environment.read(plan).gpu_findings == ()
