"""Where a command's words go: streams that are closed or full, outputs that are no files, folders that may not be entered."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import effects, errors
from perdure.base import files

ROOT = Path(__file__).resolve().parent.parent.parent
PERDURE = (sys.executable, "-m", "perdure")
DECIDE = ("decide", "--gpus", "8", "--work", "20h", "--mttf", "47d")
EACH = [("--help",), ("--version",), ("ps",), ("config", "show"), (*DECIDE, "--json"), DECIDE, ("completion", "bash")]


@pytest.fixture
def environment(tmp_path):
    places = {"PERDURE_STATE": str(tmp_path / "state"), "PERDURE_RUN_DIR": str(tmp_path / "run"), "PERDURE_STORE": str(tmp_path / "store")}
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT / "src"), **places}


def shell(streams: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """Run a command with its streams as the shell's redirections say."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", *PERDURE, *arguments], capture_output=True, text=True, timeout=300, **options
    )


@pytest.mark.parametrize("arguments", [one for one in EACH if one != ("ps",)], ids=" ".join)  # ps has nothing to say there
def test_a_full_disk_below_stdout_is_told(environment, arguments):
    done = shell(">/dev/full", *arguments, env=environment)
    assert done.returncode == errors.OutputError.exit_status == 20
    assert "cannot write to stdout: No space left on device" in done.stderr
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("arguments", EACH, ids=" ".join)
@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_nowhere(environment, arguments, streams):
    done = shell(streams, *arguments, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
"""Both streams take ASCII alone, and names beyond it arrive as bytes."""


@pytest.mark.parametrize("arguments", [(), *EACH, ("interval", "--help"), ("history", "--help")], ids=" ".join)
@pytest.mark.parametrize("more", [{}, {"PYTHONIOENCODING": "ascii"}], ids=str)
def test_a_terminal_without_our_characters_is_shown_others(environment, arguments, more):
    done = shell("", *arguments, env=environment | ASCII | more)
    assert (done.returncode, done.stderr) == (0, "")
    if arguments == (*DECIDE, "--json"):
        environment["LC_ALL"] = "C.UTF-8"
        assert json.loads(done.stdout) == json.loads(shell("", *arguments, env=environment).stdout)


def test_json_of_an_error_is_json_in_any_encoding(environment):
    done = shell("", "advise", "é→😀", "--json", env=environment | {"PYTHONIOENCODING": "ascii"})
    assert done.stderr.isascii()
    assert json.loads(done.stderr)["error"]["message"] == "é→😀: no such file"


NO_TEXT = os.fsdecode(b"caf\xe9")
"""Not UTF-8: a name that no record can hold."""


@pytest.mark.parametrize(
    "arguments",
    [
        ("ps", NO_TEXT),
        ("check", NO_TEXT),
        ("store", "ls", "--store", f"./{NO_TEXT}"),
        ("store", "ls", "--store", f"file:///{NO_TEXT}"),
        ("run", "--store", NO_TEXT, "--", "true"),
    ],
    ids=lambda words: " ".join(words).encode("ascii", "replace").decode(),
)
def test_a_name_that_is_no_text_is_refused(environment, arguments, tmp_path):
    (tmp_path / NO_TEXT).write_bytes(os.urandom(32))
    done = shell("", *arguments, env=environment, cwd=tmp_path)
    assert done.returncode == errors.UsageError.exit_status, done.stderr
    assert re.search("is not UTF-8|cannot be a workload's name", done.stderr.splitlines()[-1])


@pytest.mark.parametrize("command", [("store", "ls"), ("run",)], ids=" ".join)
def test_an_address_that_lacks_a_slash_is_no_folder(environment, tmp_path, command):
    done = shell("", *command, "--store", "s3:/bucket", "--", *(["true"] if command == ("run",) else []), env=environment, cwd=tmp_path)
    assert (done.returncode, "two slashes" in done.stderr) == (errors.UsageError.exit_status, True)
    assert not (tmp_path / "s3:").exists()


def test_folders_that_are_no_text_are_refused(environment):
    done = shell("", "ps", env=environment | {"PERDURE_STATE": f"/tmp/{NO_TEXT}"})
    assert (done.returncode, "is not UTF-8" in done.stderr) == (errors.UsageError.exit_status, True)


@pytest.mark.criu
@pytest.mark.parametrize("streams", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_a_workload_runs_although_streams_are_closed(environment, tmp_path, streams):
    script = f"cat; echo out; echo ended with $? >>{tmp_path}/seen; exit 7"
    done = shell(streams, "run", "--name", "closed", "--every", "never", "--", "sh", "-c", script, env=environment)
    assert done.returncode == 7, done.stderr
    assert (tmp_path / "seen").read_text() == "ended with 0\n"


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    pipe, socket_link, link = tmp_path / "pipe", tmp_path / "stdout", tmp_path / "link"
    os.mkfifo(pipe)
    socket_link.symlink_to(pipe)
    for place in (pipe, socket_link):
        with pytest.raises(errors.OutputError, match="is a device, a pipe or a socket"):
            files.write_text(place, "x")
    assert stat.S_ISFIFO(os.lstat(pipe).st_mode)
    assert socket_link.is_symlink()
    (tmp_path / "file").write_text("before")
    link.symlink_to(tmp_path / "file")
    files.write_text(link, "after")
    assert (tmp_path / "file").read_text() == "before"
    assert link.read_text() == "after"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_stays_what_it_is(environment, tmp_path):
    null = tmp_path / "null"
    os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    done = shell("", "history", "simulate", "--seed", "1", "--gpus", "32", "--days", "3", "-o", str(tmp_path / "fleet"), env=environment)
    assert done.returncode == 0, done.stderr
    done = shell("", "history", "import", str(tmp_path / "fleet/sacct.txt"), "-o", str(null), env=environment)
    assert (done.returncode, "name a file" in done.stderr) == (20, True)
    assert stat.S_ISCHR(os.stat(null).st_mode)


TOO_LONG = "x" * 300
"""No file can have this name: looking for it fails, as it does in a folder that one may not enter."""


@pytest.mark.parametrize(
    "arguments",
    [("advise",), ("history", "show"), ("history", "import", "-o", "out"), ("slurm", "policy", "check", "--file")],
    ids=" ".join,
)
def test_a_path_that_cannot_be_looked_at_is_told(environment, arguments):
    done = shell("", *arguments, TOO_LONG, "--json", env=environment)
    told = json.loads(done.stdout or done.stderr)["error"]
    assert "x" * 100 in told["message"]
    assert done.returncode in {2, 20}, told


def test_bash_completes_files_where_nothing_of_ours_fits():
    script = subprocess.run([*PERDURE, "completion", "bash"], capture_output=True, text=True, check=True).stdout
    shown = subprocess.run(["bash", "-c", f"{script}\ncomplete -p perdure"], capture_output=True, text=True, check=True).stdout
    assert "-o default" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("advise", "fleet/sacct.txt", "--csv", "fleet/sacct.txt"),
        ("advise", "fleet/sacct.txt", "--parquet", "link"),
        ("advise", "fleet/sacct.txt", "--policy", "policy.toml", "--rates", "policy.toml"),
        ("history", "import", "fleet/sacct.txt", "-o", "fleet/sacct.txt"),
        ("history", "anonymise", "fleet/sacct.txt", "-o", "link"),
        ("history", "anonymise", "fleet/sacct.txt", "--key-file", "secret", "-o", "secret"),
        ("effects", "export", "--ledger", "effects.db", "-o", "effects.db"),
    ],
    ids=" ".join,
)
def test_what_is_read_is_not_written_over(environment, tmp_path, arguments):
    made = shell("", "history", "simulate", "--seed", "1", "--gpus", "32", "--days", "3", "-o", "fleet", env=environment, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    (tmp_path / "link").symlink_to("fleet/sacct.txt")
    (tmp_path / "policy.toml").write_text("")
    (tmp_path / "secret").write_bytes(b"x" * 32)
    with effects.Ledger(str(tmp_path / "effects.db")) as ledger:
        ledger.once("paid", lambda: 1)
    named = [tmp_path / name for name in ("fleet/sacct.txt", "policy.toml", "secret", "effects.db")]
    before = [one.read_bytes() for one in named]
    done = shell("", *arguments, env=environment, cwd=tmp_path)
    assert (done.returncode, "would be lost" in done.stderr) == (2, True), done.stderr
    assert [one.read_bytes() for one in named] == before
