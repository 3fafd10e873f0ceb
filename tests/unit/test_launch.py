"""What is decided before anything is started: which program a command means, where PIDs begin, where the init program lies."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.checkpoint import launch
from perdure.checkpoint.criu.locate import Init


def make(path: Path, content: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def find(name: str, tmp_path: Path, path: str | None = None) -> str:
    return launch.find_command(name, environment={} if path is None else {"PATH": path}, working_directory=str(tmp_path))


def test_a_bare_name_is_looked_for_along_path_and_the_first_one_that_may_run_counts(tmp_path: Path):
    make(tmp_path / "a/tool", mode=0o644)
    expected = make(tmp_path / "b/tool")
    make(tmp_path / "c/tool")
    assert find("tool", tmp_path, ":".join(str(tmp_path / folder) for folder in "abc")) == str(expected)


def test_a_name_with_a_slash_is_taken_from_the_workloads_folder_and_passed_on_as_it_is(tmp_path: Path):
    make(tmp_path / "here/tool")
    assert find("here/tool", tmp_path) == "here/tool"
    assert find("./here/tool", tmp_path) == "./here/tool"


def test_an_empty_place_in_path_is_the_workloads_folder(tmp_path: Path):
    make(tmp_path / "tool")
    assert find("tool", tmp_path, ":/nowhere") == f"{tmp_path}/./tool"


@pytest.mark.parametrize(("name", "mode"), [("data", 0o644), ("folder", None)])
def test_what_is_there_and_may_not_run_is_126(tmp_path: Path, name: str, mode: int | None):
    make(tmp_path / name, mode=mode) if mode else (tmp_path / name).mkdir()
    with pytest.raises(errors.CommandRefused) as caught:
        find(f"./{name}", tmp_path)
    assert caught.value.exit_status == 126


@pytest.mark.parametrize("name", ["nothing-of-this-name", "./nothing", "/nowhere/tool", "bad\0name"])
def test_what_is_not_there_is_127(tmp_path: Path, name: str):
    with pytest.raises(errors.CommandMissing) as caught:
        find(name, tmp_path)
    assert caught.value.exit_status == 127


def test_a_script_whose_interpreter_is_missing_is_127_and_names_it(tmp_path: Path):
    make(tmp_path / "script", "#!/opt/no/such/python -u\n")
    with pytest.raises(errors.CommandMissing, match="/opt/no/such/python is not there"):
        find("./script", tmp_path)


def test_a_program_of_another_kind_is_left_to_the_kernel(tmp_path: Path):
    make(tmp_path / "odd", "#!\n")
    assert find("./odd", tmp_path) == "./odd"


@given(st.text(min_size=1, max_size=64))
def test_pids_of_a_workload_begin_at_its_own_number_that_every_kernel_has(name: str):
    number = launch.first_pid(name)
    assert number == launch.first_pid(name)
    assert 10_000 <= number < 30_000


def test_pids_of_different_workloads_begin_far_apart():
    numbers = sorted(launch.first_pid(f"train-{number}") for number in range(20))
    assert len(set(numbers)) == 20


def test_the_init_program_is_installed_once_and_mended(tmp_path: Path):
    source = make(tmp_path / "tini-static", "program")
    init = Init(str(source), "tini", "a test")
    folder = tmp_path / "run" / "init"
    mask = os.umask(0o077)
    try:
        first = launch.install_init(init, folder)
    finally:
        os.umask(mask)
    assert first == launch.install_init(init, folder)
    assert [Path(first.path)] == list(folder.iterdir())
    assert stat.S_IMODE(os.stat(first.path).st_mode) == 0o755
    Path(first.path).write_text("changed")
    again = launch.install_init(init, folder)
    assert Path(again.path).read_text() == "program"
    source.write_text("a newer one")
    assert launch.install_init(init, folder).path != first.path


def test_an_init_that_cannot_be_read_is_told(tmp_path: Path):
    with pytest.raises(errors.InputError, match="cannot read the init program"):
        launch.install_init(Init(str(tmp_path / "nothing"), "tini", "a test"), tmp_path)
