"""What holds for every command: exit statuses, errors, JSON, plain output, completion, and a first page of help that is cheap."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import errors
from perdure.cli import app

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [*app.COMMANDS, *(f"{group} {member}" for group, (_, members) in app.GROUPS.items() for member in members)]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(perdure, arguments):
    done = perdure(*arguments)
    assert done.returncode == 0
    for name in [*app.COMMANDS, *app.GROUPS]:
        assert re.search(rf"\b{name}\b", done.stdout)


def test_the_first_page_of_help_loads_nothing(perdure):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "perdure", "--help"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert not loaded & {"cyclopts", "rich", "msgspec", "numpy", "duckdb", "scipy"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(perdure, command):
    done = perdure(*command.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert f"Usage: perdure {command}" in done.stdout
    assert len(done.stdout.splitlines()) > 4


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("completion", "slurm seat")])
def test_every_command_takes_json(perdure, command):
    assert "--json" in perdure(*command.split(), "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["advice"], 2, "usage"),
        (["advise"], 2, "usage"),
        (["advise", "/nonexistent"], 2, "input-missing"),
        (["decide", "--work", "1h", "--mttf", "1"], 2, "quantity"),
        (["decide", "--work", "1h", "--mttf", "1h", "--colour"], 2, "usage"),
        (["history", "pull", "-o", "x.parquet", "--sacct", "/nonexistent/sacct"], 30, "scheduler"),
    ],
)
def test_errors_are_one_line_and_have_a_code(perdure, arguments, status, code):
    done = perdure(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("perdure: ")
    told = perdure(*arguments, "--json")
    assert told.returncode == status
    assert json.loads(told.stderr)["error"]["code"] == code


def test_options_behind_a_program_are_the_programs(perdure, tmp_path):
    assert perdure("eval", "init", "--dir", "trial", "python", "train.py", "--dir", "other", "--json").returncode == 0
    assert 'command = ["python", "train.py", "--dir", "other", "--json"]' in (tmp_path / "trial" / "evaluation.toml").read_text()
    done = perdure("eval", "init", "--dir", "trial", "python", "--json")
    assert done.stderr.startswith("perdure: ")
    told = perdure("eval", "init", "--dir", "trial", "--json", "--", "python", "--help")
    assert "is there already" in json.loads(told.stderr)["error"]["message"]


def test_every_error_class_has_a_code_of_its_own_and_stands_in_the_tree():
    classes = [errors.PerdureError]
    for one in classes:
        classes.extend(one.__subclasses__())
    ours = [one for one in classes if one.__module__ == "perdure.errors"]
    assert len({one.code for one in ours}) == len(ours)
    for one in ours[1:]:
        assert re.search(rf"── {one.__name__}\s+{one.code}\s+{one.exit_status}\s", errors.__doc__), one.__name__


def test_output_through_a_pipe_is_plain_and_on_a_terminal_honours_no_color(perdure):
    assert "\x1b" not in perdure("decide", "--work", "24h", "--mttf", "7.9h", "--gpus", "1024").stdout
    command = [sys.executable, "-m", "perdure", "decide", "--work", "24h", "--mttf", "7.9h", "--gpus", "1024"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color"}
    assert "\x1b[" in _on_terminal(command, environment)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", _on_terminal(command, environment | {"NO_COLOR": "1"}))


def _on_terminal(command, environment):
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    read = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:
            break
        if not chunk:
            break
        read += chunk
    os.close(leader)
    assert process.wait() == 0
    return read.decode()


@pytest.mark.parametrize("columns", ["0", "1", "2", "5"])
@pytest.mark.parametrize("arguments", ["run --help", "history --help", "interval --help", "config show"])
def test_the_narrowest_terminal_is_written_to(perdure, columns, arguments):
    done = perdure(*arguments.split(), env={"COLUMNS": columns})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_tables_are_drawn_in_the_narrowest_terminal():
    command = ["sh", "-c", 'stty cols 1 && exec "$@"', "sh", sys.executable, "-m", "perdure", "config", "show"]
    assert _on_terminal(command, {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"})


def test_a_reader_that_goes_away_is_no_error(perdure):
    command = f"{sys.executable} -m perdure history simulate --help | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] in ("0", "141")


def test_an_interrupt_ends_with_130(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "history", "import", fifo, "-o", tmp_path / "x.parquet"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")},
    )
    writer = os.open(fifo, os.O_WRONLY)  # returns when the command has opened its end: it is at work
    process.send_signal(signal.SIGINT)
    os.close(writer)
    _, told = process.communicate(timeout=240)
    assert "Traceback" not in told
    assert process.returncode in (130, errors.InputEmpty.exit_status)
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(perdure, shell):
    done = perdure("completion", shell)
    assert done.returncode == 0
    for word in ("advise", "simulate", "mttf"):
        assert word in done.stdout


def test_bash_accepts_its_completion(perdure, tmp_path):
    script = tmp_path / "completion.bash"
    script.write_text(perdure("completion", "bash").stdout)
    assert subprocess.run(["bash", "-n", script], capture_output=True).returncode == 0


def test_configuration_shows_where_each_value_came_from(perdure, tmp_path):
    (tmp_path / "perdure.toml").write_text('cluster = "alpha"\n')
    done = perdure("config", "show", "--json", env={"PERDURE_TZ": "Europe/Berlin"})
    shown = {one["key"]: one for one in json.loads(done.stdout)["settings"]}
    assert (shown["cluster"]["value"], shown["cluster"]["origin"]) == ("alpha", str(tmp_path / "perdure.toml"))
    assert shown["tz"]["origin"] == "$PERDURE_TZ"
    wrong = perdure("config", "show", env={"PERDURE_TIMEZONE": "x"})
    assert wrong.returncode == 2
    assert "PERDURE_TZ" in wrong.stderr or "known keys" in wrong.stderr


@pytest.mark.parametrize("address", ["postgresql://me:s3cr3t/x@host/db", "postgresql://host/db?user=me&password=s3cr3t/x&sslmode=require"])
def test_passwords_in_addresses_are_not_shown(perdure, address):
    for arguments in (["config", "show"], ["config", "show", "--json"]):
        done = perdure(*arguments, env={"PERDURE_LEDGER": address})
        assert "host/db" in done.stdout
        assert "s3cr3t" not in done.stdout


def test_a_bug_of_ours_is_named_as_one(monkeypatch, capsys):
    def fail():
        raise ZeroDivisionError("secret")

    monkeypatch.setitem(app.COMMANDS, "broken", "test_broken:fail")
    module = type(sys)("test_broken")
    module.fail = fail
    monkeypatch.setitem(sys.modules, "test_broken", module)
    assert app.run(["broken"]) == 1
    assert "PERDURE_DEBUG=1" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["cyclopts", "rich.console", "perdure.cli.console", "perdure.cli.ps", "sqlite3", "msgspec"])
def test_an_interrupt_while_modules_are_imported_ends_with_130(perdure, tmp_path, module):
    (tmp_path / "sitecustomize.py").write_text(
        "import signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )
    done = perdure("ps", env={"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"})
    assert (done.returncode, done.stderr) == (130, "perdure: interrupted\n")


@pytest.mark.parametrize("arguments", [["config", "show"], ["ps"], ["run", "--keep", "0", "true"]], ids=["done", "nothing", "refused"])
@pytest.mark.parametrize("instant", ["threading._register_atexit", "atexit.register"], ids=["threads", "exit"])
def test_an_interrupt_at_the_very_end_ends_it_without_a_word(perdure, tmp_path, arguments, instant):
    """As Python waits for its threads, and as it calls what was registered for its end."""
    (tmp_path / "sitecustomize.py").write_text(f"import atexit, signal, threading\n{instant}(lambda: signal.raise_signal(signal.SIGINT))\n")
    usual = perdure(*arguments)
    done = perdure(*arguments, env={"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"})
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, usual.stdout, usual.stderr)


def test_an_interrupt_that_comes_again_and_again_leaves_no_traceback(tmp_path):
    """Whatever is said of an interrupt, it is interrupted too."""
    (tmp_path / "sitecustomize.py").write_text(
        "import io, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'perdure.cli.ps':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "class Again(io.TextIOWrapper):\n"
        "    def write(self, text):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "        return super().write(text)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "sys.stderr = Again(sys.stderr.buffer, write_through=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "perdure", "ps"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"},
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
