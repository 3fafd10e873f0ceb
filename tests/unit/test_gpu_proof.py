"""The proof's own arithmetic and report, and the room that GPU memory has in control groups."""

from __future__ import annotations

import math
import os

import gpu_specimens as gs
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from bench.gpuproof import __main__ as main
from bench.gpuproof import cases, hand, overhead, writing
from bench.gpuproof.place import Case, CaseFailed, NotRun, Place
from perdure.base.proc import machine
from perdure.checkpoint.preflight import gpu_room


class TestInterval:
    """The overhead and its interval."""

    @given(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=20).filter(lambda ratios: max(ratios) > min(ratios)))
    def test_agrees_with_scipy(self, ratios):
        logs = [math.log(ratio) for ratio in ratios]
        low, high = scipy.stats.t.interval(0.9, len(logs) - 1, loc=sum(logs) / len(logs), scale=scipy.stats.sem(logs))
        found = overhead.interval(ratios)
        assert found["overhead_low_percent"] == pytest.approx((math.exp(-high) - 1) * 100, rel=1e-4, abs=1e-4)
        assert found["overhead_high_percent"] == pytest.approx((math.exp(-low) - 1) * 100, rel=1e-4, abs=1e-4)

    def test_half_the_rate_is_a_hundred_per_cent_more_time(self):
        assert overhead.interval([0.5]) == {"overhead_percent": pytest.approx(100.0)}


class TestTime:
    """What a case is expected to take, under a time limit."""

    def test_the_first_of_a_kind_is_tried_with_little_time(self):
        assert main.expected_s(64 << 30, [], 60e6) == 15.0

    def test_one_has_a_fixed_part_that_does_not_grow(self):
        assert main.expected_s(2 << 30, [(1 << 30, 60.0)], 1 << 27) == 60.0 + 8

    def test_two_say_what_a_third_takes(self):
        assert main.expected_s(4 << 30, [(1 << 30, 60.0), (2 << 30, 80.0)], 60e6) == 80.0 + 1.5 * 40
        assert main.expected_s(4 << 30, [(1 << 30, 90.0), (2 << 30, 80.0)], 60e6) == 80.0


class TestReport:
    """What is said of a proof."""

    def test_what_was_not_run_is_listed_with_its_reason(self):
        def refuse():
            raise NotRun("there is no second GPU")

        def fail():
            raise CaseFailed("GPU memory is not what it was")

        found = [
            cases.attempt("one", lambda: ({"stopped_s": 1.5}, [{}])),
            cases.attempt("two", refuse),
            cases.attempt("three", fail),
        ]
        assert [case.outcome for case in found] == ["passed", "not run", "failed"]
        text = writing.text(writing.document(gs.gpus(is_open_driver=True), (), found, "4.2.1"))
        assert "Not run here:\n- two: there is no second GPU\n" in text
        assert "driver 610.80.02, CUDA 13.4, open kernel module; CRIU 4.2.1" in text
        assert "failed   three: GPU memory is not what it was" in text
        assert "80 GiB" in text

    def test_a_whole_proof_says_so(self):
        assert "Everything was run." in writing.text(writing.document(gs.gpus(), (), [Case(name="one", outcome="passed")], "4.2.1"))

    def test_ratios_are_only_of_what_both_measured(self):
        ours, theirs = {"stopped_s": 1.0, "restore_s": 3.0, "bytes": 50}, {"stopped_s": 2.0, "bytes": 100}
        assert hand.figures(ours, theirs) == {"stopped_x": 0.5, "bytes_x": 0.5}


class TestRoom:
    """Memory that a process may still take."""

    def test_without_limits_it_is_what_the_machine_has(self, tmp_path):
        assert gpu_room.free_bytes(os.getpid(), root=tmp_path) <= machine.memory().total_bytes

    def test_the_narrowest_control_group_counts(self, tmp_path, monkeypatch):
        monkeypatch.setattr(gpu_room.process, "cgroups", lambda _pid: {"": "/job/step", "cpu,cpuacct": "/x"})
        for folder, limit, usage, inactive in (("job/step", "max", 5, 0), ("job", 1000, 700, 200)):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "memory.max").write_text(f"{limit}\n")
            (tmp_path / folder / "memory.current").write_text(f"{usage}\n")
            (tmp_path / folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")
        assert gpu_room.free_bytes(7, root=tmp_path) == 500

    def test_groups_of_version_1_count_too(self, tmp_path, monkeypatch):
        monkeypatch.setattr(gpu_room.process, "cgroups", lambda _pid: {"memory": "/slurm/job"})
        folder = tmp_path / "memory/slurm/job"
        folder.mkdir(parents=True)
        (folder / "memory.limit_in_bytes").write_text("4096\n")
        (folder / "memory.usage_in_bytes").write_text("5000\n")
        assert gpu_room.free_bytes(7, root=tmp_path) == 0
        (folder / "memory.limit_in_bytes").write_text(f"{(1 << 63) - 4096}\n")
        assert gpu_room.free_bytes(7, root=tmp_path) > 0

    def test_a_path_that_leads_out_of_the_hierarchy_is_not_followed(self, tmp_path, monkeypatch):
        (tmp_path / "memory.max").write_text("1\n")
        (tmp_path / "memory.current").write_text("1\n")
        monkeypatch.setattr(gpu_room.process, "cgroups", lambda _pid: {"": "/../../elsewhere"})
        (tmp_path / "inside").mkdir()
        assert gpu_room.free_bytes(7, root=tmp_path / "inside") > 1


def test_programs_with_pytorch_get_none_of_our_libraries(tmp_path):
    """The Python that has PyTorch may be of another version, which could not even start with our standard library."""
    place = Place(tmp_path, gs.gpus(), python="/opt/other/bin/python")
    assert place.environment["PYTHONPATH"]
    assert place.with_torch("gpu_train.py", "cuda")[:4] == ["env", "-u", "PYTHONPATH", "/opt/other/bin/python"]
