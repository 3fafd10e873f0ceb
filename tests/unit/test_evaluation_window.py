"""The hours of a whole window, how busy the device was beside them, and how both are said."""

from __future__ import annotations

import os
import time

import msgspec
import pytest
from synthetic_runs import Script, play

from perdure.evaluation import device, window, wording
from perdure.evaluation.device import Sampler
from perdure.model.evaluation import Arm, EventKind, FaultKind, Run

KILL = ((30, FaultKind.KILL),)


def told(run: Run, **data: object) -> Run:
    """A run whose end tells more."""
    (*events, ended) = run.events
    assert ended.kind is EventKind.ENDED
    return msgspec.structs.replace(run, events=(*events, msgspec.structs.replace(ended, data=ended.data | data)))


def test_hours_are_summed_and_not_averaged():
    # 207 s and 281 s allocated of which 198 s are delivered, each on 4 GPUs: see the tests of utilisation.
    runs = [play(Script()), play(Script(faults=KILL), pair=1)]
    (unmanaged,) = window.summarise(runs)
    assert unmanaged.runs == 2
    assert unmanaged.unit == "GPU-hours"
    assert unmanaged.allocated == pytest.approx(4 * (207 + 281) / 3600)
    assert unmanaged.delivered == pytest.approx(4 * 2 * 198 / 3600)
    assert unmanaged.share == pytest.approx(396 / 488)
    parts = unmanaged.delivered + unmanaged.recomputed + unmanaged.checkpoints + unmanaged.down + unmanaged.other
    assert parts == pytest.approx(unmanaged.allocated)
    assert unmanaged.source == "the harness's clock"


def test_both_arms_and_only_runs_that_count():
    broken = msgspec.structs.replace(play(Script(), pair=2), finished=False)
    baseline = msgspec.structs.replace(play(Script()), purpose="baseline")
    found = window.summarise([play(Script(), Arm.MANAGED), play(Script()), broken, baseline])
    assert [(each.arm, each.runs) for each in found] == [(Arm.UNMANAGED, 1), (Arm.MANAGED, 1)]
    assert window.summarise([broken]) == ()


def test_a_run_whose_hours_cannot_be_told_is_counted():
    run = play(Script(), pair=1)
    endless = msgspec.structs.replace(run, events=tuple(event for event in run.events if event.kind is not EventKind.ENDED))
    (found,) = window.summarise([play(Script()), endless])
    assert (found.runs, found.unmeasured) == (1, 1)


def test_the_device_is_weighed_by_hours_and_its_want_is_named():
    long, short = play(Script()), play(Script(steps=10), pair=1)
    (found,) = window.summarise([told(long, device_utilisation=0.9), told(short, device_utilisation=0.3), play(Script(), pair=2)])
    assert found.device == pytest.approx((0.9 * 207 + 0.3 * 27) / 234)
    assert wording.device(found) == "83.1 % (measured in 2 of 3 runs)"
    (without,) = window.summarise([told(long, device_lack="nvidia-smi gave no answer")])
    assert wording.device(without) == "not measured: nvidia-smi gave no answer"
    (on_processors,) = window.summarise([play(Script(), gpus=0)])
    assert wording.device(on_processors) == "not measured: the workload uses no GPU"
    assert on_processors.unit == "node-hours"


def test_hours_say_where_they_come_from():
    one, other = play(Script()), play(Script(), pair=1)
    (found,) = window.summarise([told(one, accounting=[]), told(other, accounting=[])])
    assert found.source == "the scheduler's accounting"
    (mixed,) = window.summarise([told(one, accounting=[]), other])
    assert mixed.source == "both, in different runs"


@pytest.mark.parametrize(
    ("answer", "share"), [("50\n", 0.5), ("100\n0\n", 0.5), ("[N/A]\n", None), ("", None), ("7\n[N/A]\n", 0.07), ("101\n-3\n", None)]
)
def test_what_the_driver_answers(answer, share):
    found = device.share_in(answer)
    assert found == (None if share is None else pytest.approx(share))


def test_the_driver_is_asked_while_a_run_goes_on(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\nprintf x >>"{tmp_path}/asked"\nprintf "25\\n75\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sampler = Sampler(2, between_s=600.0)
    sampler.start()
    while not (tmp_path / "asked").exists():
        time.sleep(0.01)
    assert sampler.close() == {"device_utilisation": 0.5, "device_samples": 1}


def test_nobody_is_asked_without_gpus_and_a_driver_that_fails_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    idle = Sampler(0)
    idle.start()
    assert idle.close() == {}
    failing = Sampler(1)
    failing.start()
    assert failing.close() == {"device_lack": "nvidia-smi gave no answer"}
