"""The commands of `perdure store` on a store in a folder, as a person meets them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from stores import content, new_repository, noise, save

from perdure.cli import app
from perdure.model.checkpoint import CheckpointId
from perdure.store import codec, layout, lock_records
from perdure.store.backends.local import LocalBackend
from perdure.store.repository import Repository

KEY = b"k" * 32
BLOCKS = 4096 * 40


def fill(repository: Repository, folder: Path) -> None:
    shared = noise(BLOCKS, 0)
    save(repository, "w@1.1", {"a": shared + noise(BLOCKS, 1)}, folder=folder)
    save(repository, "w@1.2", {"a": shared + noise(BLOCKS, 2), "dir/b": b"text" * 5000}, folder=folder)
    save(repository, "v@1.1", {"a": shared}, folder=folder, command=("evil\x1b[31m",))


@pytest.fixture
def repository(tmp_path) -> Repository:
    made = new_repository(tmp_path / "own-cache", backend=LocalBackend(tmp_path / "store"))
    fill(made, tmp_path)
    return made


@pytest.fixture
def store(repository, tmp_path, monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command of the group on the store that the environment names; in this process, since there are many."""
    monkeypatch.setenv("PERDURE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PERDURE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        status = app.run(["store", *map(str, arguments)])
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    return run


def pack_of(repository: Repository, checkpoint: str, *, but_not_of: str | None = None) -> str:
    packs = repository.packs_of(CheckpointId.parse(checkpoint))
    if but_not_of is not None:
        packs -= repository.packs_of(CheckpointId.parse(but_not_of))
    return min(packs)


def flip(root: Path, key: str, at: int = -3) -> None:
    path = root / "store" / key
    changed = bytearray(path.read_bytes())
    changed[at] ^= 1
    path.write_bytes(changed)


def test_ls(store):
    done = store("ls")
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["checkpoint", "v@1.1", "w@1.1", "w@1.2"]
    assert "250ms" in lines[1]
    assert "node7" in lines[1]
    documents = json.loads(store("ls", "w", "--json").stdout)["checkpoints"]
    assert [one["id"] for one in documents] == ["w@1.1", "w@1.2"]
    assert documents[0]["logical_bytes"] == 2 * BLOCKS
    assert documents[1]["new_bytes"] < documents[0]["new_bytes"]
    assert documents[0]["stopped_s"] == 0.25
    assert store("ls", "u").returncode == 21


def test_ls_shows_what_is_damaged_and_pinned(store, repository, tmp_path):
    store("pin", "w@1.1")
    flip(tmp_path, layout.manifest_key(CheckpointId("w", 1, 2)), 60)
    done = store("ls")
    assert done.returncode == 0
    assert "damaged" in done.stdout.splitlines()[3]
    assert "pinned" in done.stdout.splitlines()[2]
    assert "1 cannot be read" in done.stderr
    document = json.loads(store("ls", "--json").stdout)["checkpoints"][-1]
    assert (document["id"], document["error"]["code"]) == ("w@1.2", "store-corrupt")


def test_show(store):
    done = store("show", "v")
    assert done.returncode == 0
    assert "v@1.1" in done.stdout
    assert "\\x1b" in done.stdout
    assert "\x1b" not in done.stdout
    for words in ("memory", "stopped", "4711", "CRIU 4.2.1"):
        assert words in done.stdout or words == "4711"
    document = json.loads(store("show", "w", "--json").stdout)
    assert document["id"] == "w@1.2"
    assert document["packs"] > 0
    assert [file["name"] for file in document["files"]] == ["a", "dir/b"]
    assert store("show", "w@7.7").returncode == 21
    assert store("show", "w@x").returncode == 2


def test_verify_finds_nothing_wrong(store):
    done = store("verify")
    assert (done.returncode, done.stdout) == (0, "")
    assert "3 good checkpoints of 2 workloads, 0 damages" in done.stderr
    document = json.loads(store("verify", "--json").stdout)
    assert document["damages"] == []
    assert document["newest_good"] == {"v": "v@1.1", "w": "w@1.2"}


def test_one_flipped_byte(store, repository, tmp_path):
    key = pack_of(repository, "w@1.2", but_not_of="w@1.1")
    flip(tmp_path, key)
    done = store("verify", "--json")
    assert done.returncode == 13
    document = json.loads(done.stdout)
    assert [one["key"] for one in document["damages"]] == [key]
    assert document["damages"][0]["lost"] == document["lost"] == ["w@1.2"]
    assert document["newest_good"]["w"] == "w@1.1"
    assert json.loads(done.stderr)["error"]["code"] == "store-corrupt"
    text = store("verify")
    assert text.returncode == 13
    assert key in text.stdout
    assert "w: newest good checkpoint: w@1.1" in text.stdout
    assert key in text.stderr.splitlines()[-1]


def test_dropping_what_is_damaged_lets_new_checkpoints_do_without_it(store, repository, tmp_path):
    key = pack_of(repository, "w@1.2", but_not_of="w@1.1")
    flip(tmp_path, key, 100)
    assert json.loads(store("verify", "--drop-damaged", "--json").stdout)["dropped"] == [key]
    assert not (tmp_path / "store" / key).exists()
    save(repository, "w@1.3", {"a": noise(BLOCKS, 0) + noise(BLOCKS, 2)}, folder=tmp_path)
    assert content(repository, "w@1.3")["a"] == noise(BLOCKS, 0) + noise(BLOCKS, 2)
    document = json.loads(store("verify", "--json").stdout)
    assert document["newest_good"]["w"] == "w@1.3"
    assert document["lost"] == ["w@1.2"]
    assert json.loads(store("prune", "--damaged", "--json").stdout)["removed"] == ["w@1.2"]
    assert store("verify").returncode == 0


def test_a_checkpoint_can_be_made_while_what_is_damaged_is_looked_for(store, repository, tmp_path, monkeypatch):
    key = pack_of(repository, "w@1.2", but_not_of="w@1.1")
    flip(tmp_path, key, 100)
    held = []
    check = Repository.check_object

    def checked(self: Repository, key: str) -> None:
        held.append({one.record.kind.value for one in lock_records.held(repository) if one.record is not None})
        check(self, key)

    monkeypatch.setattr(Repository, "check_object", checked)
    assert json.loads(store("verify", "--drop-damaged", "--json").stdout)["dropped"] == [key]
    assert held[-1] == {"exclusive"}
    assert len(held) > 5
    assert all(kinds == {"shared"} for kinds in held[:-1])


def test_a_newer_perdures_objects_are_told_from_damage(store, repository, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(codec, "VERSION", codec.VERSION + 1)
        save(repository, "new@1.1", {"a": noise(BLOCKS, 7)}, folder=tmp_path)
        (pack,) = repository.packs_of(CheckpointId("new", 1, 1))
    done = store("verify", "--drop-damaged")
    assert done.returncode == 22
    assert "use the Perdure that wrote it, or a newer one" in done.stdout
    assert "0 damages, 2 objects of a newer Perdure" in done.stderr
    assert (tmp_path / "store" / pack).exists()
    assert [one["newer"] for one in json.loads(store("verify", "--json").stdout)["damages"]] == [True, True]


def test_what_is_not_ours_is_named_and_left_alone(store, tmp_path):
    (tmp_path / "store" / "notes.txt").write_text("mine")
    done = store("verify")
    assert done.returncode == 4
    assert "notes.txt: not ours" in done.stdout
    assert (tmp_path / "store" / "notes.txt").exists()


def test_prune_and_gc(store, repository, tmp_path):
    assert store("prune").returncode == 2
    assert store("prune", "--keep-last", "0").returncode == 2
    before = sorted(info.key for info in repository.backend.list(""))
    done = store("prune", "--keep-last", "1", "--dry-run")
    assert "w@1.1       remove  not among the last 1" in done.stdout
    assert done.stderr == "1 would be removed\n"
    assert sorted(info.key for info in repository.backend.list("")) == before
    assert json.loads(store("gc", "--dry-run", "--json").stdout)["removed_packs"] == 0
    assert json.loads(store("prune", "--keep-last", "1", "--json").stdout)["removed"] == ["w@1.1"]
    planned = json.loads(store("gc", "--dry-run", "--json").stdout)
    result = json.loads(store("gc", "--json").stdout)
    assert planned["freed_bytes"] == result["freed_bytes"]
    assert store("gc").stderr.startswith("0 B freed in 0 packs")
    assert store("verify").returncode == 0


def test_prune_says_when_what_must_stay_is_too_much(store):
    done = store("prune", "--max-bytes", "1K")
    assert done.returncode == 0
    assert "what may not be removed takes" in done.stderr


def test_pins(store):
    assert json.loads(store("pin", "w@1.1", "--note", "why", "--json").stdout) == {"id": "w@1.1", "pinned": True}
    assert json.loads(store("prune", "--keep-last", "1", "--json").stdout)["removed"] == []
    assert store("pin", "--unpin", "w@1.1").stderr == "w@1.1 is not pinned any more\n"
    assert json.loads(store("prune", "--keep-last", "1", "--json").stdout)["removed"] == ["w@1.1"]
    assert store("pin", "w@1.1").returncode == 21


def test_stats(store, repository):
    document = json.loads(store("stats", "--json").stdout)
    own = {one["workload"]: one for one in document["workloads"]}
    assert own["w"]["checkpoints"] == 2
    assert own["w"]["logical_bytes_by_part"] == {"memory": 4 * BLOCKS + 20000}
    assert own["w"]["shared_bytes"] == own["v"]["shared_bytes"] > 0
    assert own["v"]["own_bytes"] == 0
    assert document["dedup_ratio"] == pytest.approx((5 * BLOCKS + 20000) / (3 * BLOCKS + 4096), rel=0.01)
    assert document["orphan_bytes"] == 0
    text = store("stats").stdout
    assert "saved by sharing" in text


def test_export_and_import_into_a_store_with_another_key(store, repository, tmp_path, monkeypatch):
    (tmp_path / "file.key").write_bytes(KEY)
    (tmp_path / "store.key").write_bytes(b"s" * 40)
    done = store("export", "w", "-o", "w.perdure", "--file-key", "file.key")
    assert done.returncode == 0
    assert (tmp_path / "w.perdure").stat().st_mode & 0o777 == 0o600
    assert b"text" not in (tmp_path / "w.perdure").read_bytes()
    there = ("--store", tmp_path / "other", "--key-file", "store.key")
    assert store("import", "w.perdure", *there).returncode == 12
    done = store("import", "w.perdure", "--file-key", "file.key", "--json", *there)
    assert json.loads(done.stdout)["is_new"] is True
    again = store("import", "w.perdure", "--file-key", "file.key", "--json", *there)
    assert json.loads(again.stdout)["is_new"] is False
    assert store("verify", *there).returncode == 0
    assert json.loads(store("show", "w", "--json", *there).stdout)["logical_bytes"] == 2 * BLOCKS + 20000
    assert store("ls", "--store", tmp_path / "other").returncode == 12
    assert store("export", "w", "-o", "again.perdure", *there).returncode == 0
    assert store("import", "again.perdure", *there).stderr == "w@1.2 is in the store already\n"


def test_a_file_without_a_key_is_taken_only_when_it_is_trusted(store, tmp_path):
    done = store("export", "w@1.1", "-o", "plain.perdure")
    assert "not encrypted" in done.stderr
    there = ("--store", tmp_path / "other")
    refused = store("import", "plain.perdure", *there)
    assert refused.returncode == 2
    assert "--trust" in refused.stderr
    assert store("import", "plain.perdure", "--trust", *there).returncode == 0
    assert store("ls", *there).stdout.splitlines()[1].startswith("w@1.1")
    assert store("export", "w", "--plain", "--file-key", "x", "-o", "y").returncode == 2


@pytest.mark.parametrize("command", [("ls",), ("verify",), ("gc",), ("stats",), ("prune", "--keep-last", "1"), ("show", "w")])
def test_an_absent_store_is_told_and_not_made(store, tmp_path, command):
    done = store(*command, "--store", tmp_path / "absent")
    assert done.returncode == 10
    assert "there is no store" in done.stderr
    assert not (tmp_path / "absent").exists()


def test_a_store_that_lost_its_configuration_is_not_made_anew(store, tmp_path):
    store("export", "w", "--plain", "-o", "w.perdure")
    (tmp_path / "store" / "perdure.json").rename(tmp_path / "away")
    for command in (("import", "w.perdure", "--trust"), ("ls",)):
        done = store(*command)
        assert done.returncode == 13
        assert "perdure.json" in done.stderr
        assert "copy" in done.stderr
    (tmp_path / "away").rename(tmp_path / "store" / "perdure.json")
    assert store("verify").returncode == 0


def test_the_store_lies_in_the_state_folder_when_nothing_else_is_said(store, repository, tmp_path, monkeypatch):
    monkeypatch.delenv("PERDURE_STORE")
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "store").rename(tmp_path / "state" / "store")
    assert store("ls").returncode == 0
