"""Files that are opened, added to and closed again each time are named at a checkpoint; others are not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from supervised import wait_for

from perdure.base.proc import mounts
from perdure.checkpoint import reopened

pytestmark = pytest.mark.criu

PROGRAM = """
import os, time
os.makedirs("runs", exist_ok=True)
held = open("held.txt", "a", buffering=1)
number = 0
while True:
    number += 1
    for path in ("added.csv", "runs/events"):
        with open(path, "a") as out:
            out.write(f"{number},{number * number}\\n")
    with open("anew.json", "w") as out:
        out.write("x" * (1000 + number) + str(number))
    with open("same.bin", "r+b" if os.path.exists("same.bin") else "w+b") as out:
        out.write(b"y" * 1000)
    with open(f"one-{number % 7}.txt", "w") as out:
        out.write(str(number))
    held.write(f"{number}\\n")
    print(number, flush=True)
    time.sleep(0.1)
"""


def _warned(site, name: str) -> set[str]:
    told = json.loads(site.run("checkpoint", name, "--json").stdout)
    return {Path(each["path"]).name for each in told["warnings"] if each["code"] == "file-reopened"}


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _adding(site, *options: str):
    (site.work / "program.py").write_text(PROGRAM)
    seen = _lines(site.work / "added.csv")
    kept = site.start("run", "--name", "a", "--every", "never", *options, "--", sys.executable, str(site.work / "program.py"))
    wait_for(lambda: _lines(site.work / "added.csv") > seen + 20)
    return kept


def test_they_are_named_in_each_life(site):
    for life in (1, 2, 3):
        kept = _adding(site)
        assert _warned(site, "a") == {"added.csv", "events"}, life
        site.kill_all(kept)


def test_what_is_included_is_not_named(site):
    _adding(site, "--outputs", str(site.work / "runs"))
    assert _warned(site, "a") == {"added.csv"}


@pytest.mark.parametrize(
    ("kind", "options", "watched"),
    [
        ("ext4", ("rw",), True),
        ("nfs4", ("rw",), True),
        ("fuse.juicefs", ("rw", "user_id=0", "group_id=0"), True),
        ("fuse.sshfs", ("rw", "user_id=1000", "group_id=1000"), False),
        ("proc", ("rw",), False),
    ],
)
def test_what_a_program_of_the_users_answers_for_is_not_watched(kind, options, watched):
    mount = mounts.Mount(1, 0, 0, "/", "/data", (), (), kind, "", options)
    assert reopened._is_watched(mount) is watched
