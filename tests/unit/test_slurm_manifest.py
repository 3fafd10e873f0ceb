"""What an installation lists, how nodes are named and reached, and what one path's making and unmaking leave."""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import re
import sys
import threading
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from supervised import LIMIT_S, wait_for

from perdure import errors
from perdure.slurm import daemons, fleet, manifest, nodelist, payload, placing, runner, unit
from perdure.slurm.manifest import KEPT, NEW, OLD, Entry
from perdure.slurm.runner import Answer
from perdure.slurm.site import Site

ROOT = Path(__file__).resolve().parents[2]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _file(path: Path, content: bytes, **more) -> Entry:
    return Entry(path=str(path), kind="file", mode=0o644, size_bytes=len(content), sha256=_digest(content), **more)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n[1-3,07],login2", "n1 n2 n3 n07 login2"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("r[1-2]n[1,3]-ib", "r1n1-ib r1n3-ib r2n1-ib r2n3-ib"),
        ("a, b ,a", "a b"),
        ("gpu[1-2].example.org", "gpu1.example.org gpu2.example.org"),
    ],
)
def test_lists_of_nodes_are_read_as_slurm_writes_them(text, names):
    assert nodelist.expand(text, scontrol=None) == tuple(names.split())


@pytest.mark.parametrize(
    "text",
    ["", ",", "n[1-", "n]1[", "n[[1]]", "n[3-1]", "n[a-b]", "n[]", "n[1-99999]", "-n1", "n 1", "n;reboot", "$(id)", "n[1-300]r[1-300]"],
)
def test_what_names_no_nodes_is_refused(text):
    with pytest.raises(errors.UsageError):
        nodelist.expand(text, scontrol=None)


@given(st.integers(0, 500), st.integers(0, 60), st.integers(1, 4))
def test_a_range_names_each_of_its_numbers_with_its_zeros(first, more, width):
    text = f"n[{first:0{width}d}-{first + more:0{width}d}]"
    assert nodelist.expand(text, scontrol=None) == tuple(f"n{number:0{width}d}" for number in range(first, first + more + 1))


def test_slurm_is_asked_first_and_a_dumb_one_is_not_missed(tmp_path):
    wise = tmp_path / "scontrol"
    wise.write_text('#!/bin/sh\n[ "$1 $2 $3" = "show hostnames rack" ] && printf "x1\\nx2\\n"\n')
    wise.chmod(0o755)
    assert nodelist.expand("rack", scontrol=str(wise)) == ("x1", "x2")
    assert nodelist.expand("n[1-2]", scontrol="/bin/false") == ("n1", "n2")
    assert nodelist.expand("n[1-2]", scontrol=str(tmp_path / "absent")) == ("n1", "n2")


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("ssh {node}", ["ssh", "n1", "python3 -c 'a b'"]),
        ("/usr/bin/ssh -p 22 root@{node} sudo", ["/usr/bin/ssh", "-p", "22", "root@n1", "sudo", "python3 -c 'a b'"]),
        ("srun -w {node}", ["srun", "-w", "n1", "python3", "-c", "a b"]),
        ("pdsh -w {node} {command}", ["pdsh", "-w", "n1", "python3 -c 'a b'"]),
        ("in-{node} sh -c 'exec {command}'", ["in-n1", "sh", "-c", "exec python3 -c 'a b'"]),
    ],
)
def test_a_runner_gets_words_and_only_a_remote_shell_a_quoted_line(text, argv):
    assert runner.read(text).argv("n1", ["python3", "-c", "a b"]) == argv


@pytest.mark.parametrize("text", ["", "ssh", "ssh 'x", "  "])
def test_a_runner_has_to_say_where_the_node_goes(text):
    with pytest.raises(errors.UsageError):
        runner.read(text)


def test_nodes_answer_each_for_itself(tmp_path):
    how = runner.read("env NODE={node}")
    words = ["sh", "-c", 'cat; echo "$NODE" >&2; test "$NODE" != n2']
    then = tmp_path / "then"
    then.write_bytes(b" world" * 100_000)
    found = {a.node: a for a in runner.run(how, ["n1", "n2", "n3"], lambda: runner.Command(words, b"hello", then), limit_s=60)}
    assert {node: answer.status for node, answer in found.items()} == {"n1": 0, "n2": 1, "n3": 0}
    assert all(answer.out == b"hello" + b" world" * 100_000 for answer in found.values())
    assert found["n3"].err == "n3\n"


def test_a_node_that_says_nothing_is_given_up_with_all_it_started():
    # The second sleep holds the streams open: unless it goes too, no answer comes for a long time.
    words = ["sh", "-c", "sleep 5000 & sleep 5000"]
    (answer,) = runner.run(runner.read("env N={node}"), ["n1"], lambda: runner.Command(words), limit_s=1)
    assert answer.status == 124


def test_a_runner_that_cannot_be_started_is_an_answer():
    (answer,) = runner.run(runner.read("/nonexistent/ssh {node}"), ["n1"], lambda: runner.Command(["true"]), limit_s=60)
    assert (answer.status, fleet.judge(answer).ok) == (255, False)


@pytest.mark.parametrize(
    ("answer", "ok", "code", "error"),
    [
        (Answer("n", 0, b'{"state": "installed"}', ""), True, "", ""),
        (Answer("n", 0, b"", ""), False, "runner", "it said nothing"),
        (Answer("n", 255, b"", "ssh: no route\n"), False, "runner", "ssh: no route"),
        (Answer("n", 4, b'{"findings": []}', 'x\n{"error":{"code":"findings","message":"no","hint":"do"}}\n'), False, "findings", "no"),
        (Answer("n", 124, b"", ""), False, "runner", "it took too long"),
        (Answer("n", 1, b"[1]", '{"error": 5}'), False, "runner", '{"error": 5}'),
    ],
)
def test_what_a_node_says_is_judged(answer, ok, code, error):
    result = fleet.judge(answer)
    assert (result.ok, result.code, result.error) == (ok, code, error)


def test_a_file_appears_whole_and_goes_only_as_it_came(tmp_path):
    path = tmp_path / "file"
    entry = _file(path, b"ours")
    assert placing.make(entry, b"ours", was=None) is True
    assert placing.make(entry, b"ours", was=entry) is False
    assert (path.read_bytes(), path.stat().st_mode & 0o7777) == (b"ours", 0o644)
    path.write_bytes(b"theirs")
    assert "was changed" in placing.unmake(entry)
    assert path.read_bytes() == b"theirs"
    path.write_bytes(b"ours")
    (tmp_path / f"file{NEW}").write_bytes(b"ou")
    assert placing.unmake(entry) == ""
    assert list(tmp_path.iterdir()) == []
    assert placing.unmake(entry) == ""


def test_another_s_file_is_put_aside_and_comes_back(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"theirs")
    path.chmod(0o640)
    entry = _file(path, b"ours", before=_digest(b"theirs"))
    placing.make(entry, b"ours", was=None)
    assert (path.read_bytes(), (tmp_path / f"file{OLD}").read_bytes()) == (b"ours", b"theirs")
    placing.unmake(entry)
    assert (path.read_bytes(), path.stat().st_mode & 0o777, os.listdir(tmp_path)) == (b"theirs", 0o640, ["file"])
    assert placing.unmake(entry) == ""
    assert path.read_bytes() == b"theirs"


def test_a_configuration_that_was_changed_is_neither_written_over_nor_thrown_away(tmp_path):
    path = tmp_path / "config.toml"
    entry = _file(path, b"ours", config=True)
    placing.make(entry, b"ours", was=None)
    path.write_bytes(b"the admin's")
    newer = _file(path, b"newer", config=True)
    assert placing.make(newer, b"newer", was=entry) is False
    assert path.read_bytes() == b"the admin's"
    assert "kept" in placing.unmake(newer)
    assert (tmp_path / f"config.toml{KEPT}").read_bytes() == b"the admin's"
    assert not path.exists()


@pytest.mark.parametrize("before", [b"", b"required x.so\n", b"required x.so", b"# a\ninclude /etc/x/*.conf\n"])
def test_a_line_goes_to_the_end_and_away_again(tmp_path, before):
    path = tmp_path / "plugstack.conf"
    path.write_bytes(before)
    path.chmod(0o604)
    number = path.stat().st_ino
    text = ("" if not before or before.endswith(b"\n") else "\n") + "optional ours.so\n"
    entry = Entry(path=str(path), kind="line", text=text, sha256=_digest(text.encode()), before=_digest(before))
    assert placing.make(entry, None, was=None) is True
    assert placing.make(entry, None, was=None) is False
    assert path.read_bytes() == before + text.encode()
    placing.unmake(entry)
    assert (path.read_bytes(), path.stat().st_ino, path.stat().st_mode & 0o777) == (before, number, 0o604)
    placing.unmake(entry)
    assert path.read_bytes() == before


def test_a_line_is_found_among_others_that_came_later(tmp_path):
    path = tmp_path / "plugstack.conf"
    path.write_bytes(b"a\n")
    entry = Entry(path=str(path), kind="line", text="optional ours.so\n")
    placing.make(entry, None, was=None)
    with path.open("ab") as handle:
        handle.write(b"b\n")
    path.chmod(0o600)
    placing.unmake(entry)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"a\nb\n", 0o600)
    assert os.listdir(tmp_path) == ["plugstack.conf"]


def test_a_link_that_leads_elsewhere_now_stays(tmp_path):
    entry = Entry(path=str(tmp_path / "link"), kind="link", target="first")
    placing.make(entry, None, was=None)
    moved = Entry(path=entry.path, kind="link", target="second")
    assert placing.make(moved, None, was=entry) is True
    assert os.readlink(entry.path) == "second"
    assert "leads to second" in placing.unmake(entry)
    assert placing.unmake(moved) == ""
    assert os.listdir(tmp_path) == []


def test_a_folder_with_something_in_it_stays_and_a_store_within_what_grew(tmp_path):
    folder = Entry(path=str(tmp_path / "folder"), kind="folder", mode=0o750)
    placing.make(folder, None, was=None)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750
    store = tmp_path / "folder" / "users" / "1000" / "store"
    store.mkdir(parents=True)
    (store / "perdure.json").write_text("{}")
    (tmp_path / "folder" / "users" / "1000" / "state.db").write_text("")
    os.symlink("/nonexistent", tmp_path / "folder" / "users" / "link")
    assert "users" in placing.unmake(folder)
    grown = Entry(path=str(tmp_path / "folder" / "users"), kind="grown")
    assert str(store) in placing.unmake(grown)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "folder",
        "folder/users",
        "folder/users/1000",
        "folder/users/1000/store",
        "folder/users/1000/store/perdure.json",
    ]
    assert placing.remove_tree(grown.path, stores=True) == ""
    assert placing.unmake(folder) == ""


def test_the_core_of_nodes_is_the_core_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(requirements):
        return {re.match(r"[A-Za-z0-9-]+", text)[0] for text in requirements}

    assert names(project["dependencies"]) == set(payload.CORE)
    for extra, wanted in payload.EXTRAS.items():
        assert names(project["optional-dependencies"][extra]) == set(wanted)


def test_a_payload_is_packed_and_unpacked_the_same_and_damage_is_found(tmp_path):
    made = payload.gather("/opt/perdure", shims=dict.fromkeys(payload.prebuilt("1.2.3", "x"), Path(sys.executable)))
    paths = {item.path for item in made.items}
    assert {f"{made.packages}/perdure/__main__.py", f"{made.packages}/perdure/slurm/boot.py", "share/shim/slurm-1.2.3-x.so"} <= paths
    assert {f"{made.packages}/msgspec/__init__.py", f"{made.packages}/cyclopts/__init__.py"} <= paths
    assert not [path for path in paths if "/numpy/" in path or path.endswith(".pyc") or ".." in path]
    archive = tmp_path / "payload.tar"
    size_bytes = payload.pack(made, archive)
    assert size_bytes == archive.stat().st_size
    folder = tmp_path / "unpacked"
    folder.mkdir()
    again = payload.unpack(archive, folder)
    assert (again.items, again.prefix) == (made.items, "/opt/perdure")
    item = again.find(f"{made.packages}/perdure/__main__.py")
    assert again.content(item) == made.content(item)
    Path(again.sources[item.path]).write_text("import os")
    with pytest.raises(errors.InputFormat):
        again.content(item)


@pytest.mark.parametrize("content", [b"", b"nonsense" * 1000])
def test_what_is_no_payload_is_said_to_be_none(tmp_path, content):
    (tmp_path / "x.tar").write_bytes(content)
    (tmp_path / "folder").mkdir()
    with pytest.raises(errors.InputError):
        payload.unpack(tmp_path / "x.tar", tmp_path / "folder")


@pytest.mark.parametrize(
    "change",
    [
        {"store": "relative"},
        {"store": "/a b"},
        {"store": "/a/../b"},
        {"store": 's3://b"x'},
        {"prefix": "/opt/per dure"},
        {"prefix": "/"},
        {"prefix": "/" + "x" * 100},
        {"lease_ttl": "0"},
        {"lease_ttl": "301s"},
        {"slurm": "opt"},
    ],
)
def test_a_site_that_cannot_be_meant_is_refused(change):
    Site(store="/shared/perdure").check()
    Site(store="s3://bucket/prefix").check()
    with pytest.raises(errors.UsageError):
        Site(**({"store": "/shared/perdure"} | change)).check()


def test_the_configuration_that_is_written_is_one_that_is_read():
    written = tomllib.loads(Site(store="/shared/perdure", lease_ttl="15s").config().decode())
    assert written == {"store": "/shared/perdure", "lease-ttl": "15s"}


def test_the_service_runs_what_is_installed():
    text = unit.text("/opt/elsewhere").decode()
    assert "ExecStart=/opt/elsewhere/bin/perdure agent\n" in text
    assert "KillMode=process\n" in text, "seats outlive the agent"
    assert "@" not in re.sub(r"[#].*", "", text)


def test_the_first_program_on_a_node_is_plain_enough_for_an_old_python():
    source = importlib.resources.files("perdure.slurm").joinpath("boot.py").read_text()
    assert not re.search(r"^from __future__|:=|^\s*match |removeprefix", source, re.MULTILINE)
    compile(source, "boot.py", "exec", flags=0, dont_inherit=True)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("include {0}/d/*.conf\n", "{0}/d"),
        ("# include {0}/d/*.conf\nrequired x.so\n", None),
        ("include d/*.conf\n", "{0}/d"),
        ("include {0}/missing/*.conf\n", None),
        ("include {0}/d/one.conf\n", None),
    ],
)
def test_a_folder_that_plugins_are_read_from_is_found(tmp_path, text, wanted):
    (tmp_path / "d").mkdir()
    plugstack = tmp_path / "plugstack.conf"
    plugstack.write_text(text.format(tmp_path))
    assert daemons.included(str(plugstack)) == (wanted.format(tmp_path) if wanted else None)


@pytest.mark.parametrize(
    ("text", "drop_in", "wanted"),
    [
        ("include d/*.conf\n", True, ("z.so",)),
        ("include d/*.conf\noptional last.so arg\n", True, ("z.so", "last.so")),
        ("optional last.so\ninclude d/*.conf\n", True, ("z.so",)),
        ("optional ours.so\nrequired last.so\n", False, ("last.so",)),
        ("required last.so\n", False, ()),
        ("include d/a.conf\noptional ours.so\n# required x.so\n", False, ()),
    ],
)
def test_plugins_that_come_after_ours_are_known_before_it_is_put_there(tmp_path, text, drop_in, wanted):
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "a.conf").write_text("required a.so\n")
    (folder / "zzzz.conf").write_text("optional z.so\n")
    plugstack = tmp_path / "plugstack.conf"
    plugstack.write_text(text)
    assert daemons.following(str(plugstack), "ours.so", drop_in=f"{folder}/zzz.conf" if drop_in else None) == wanted
    if drop_in:
        (folder / "zzz.conf").write_text("optional ours.so\n")
        assert daemons.following(str(plugstack), "ours.so", drop_in=None) == wanted


def test_commands_in_an_unusual_place_are_told_to_seats():
    assert tomllib.loads(Site(store="/s").config("/usr/bin").decode()).keys() == {"store", "lease-ttl"}
    assert tomllib.loads(Site(store="/s").config("/opt/slurm/bin").decode())["slurm-bin"] == "/opt/slurm/bin"


def test_whoever_waits_for_a_folder_that_is_removed_meanwhile_has_the_one_that_is_there(tmp_path, monkeypatch):
    folder = tmp_path / "perdure"
    monkeypatch.setattr(manifest, "FOLDER", str(folder))
    found, opened = [], []
    take = manifest._open_folder
    monkeypatch.setattr(manifest, "_open_folder", lambda: opened.append(take()) or opened[-1])

    def wait() -> None:
        with manifest.locked(patient=True) as bare:
            found.append((bare, folder.is_dir()))
            with pytest.raises(errors.StoreLocked), manifest.locked():
                pass

    with manifest.locked():
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        wait_for(lambda: len(opened) == 2, LIMIT_S)
        folder.rmdir()
    waiting.join(LIMIT_S)
    assert found == [(True, True)]
