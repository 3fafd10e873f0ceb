"""Names that are no text: an argument, a variable, folders and files of bytes that are not UTF-8 come through every step as they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from supervised import Site, wait_for

pytestmark = pytest.mark.criu

ODD = b"caf\xe9-\xff"

TELLS = """
import os, sys, time
out = os.fsencode(os.path.join(os.getcwd(), os.fsdecode(sys.argv[1])))
with open(out, "ab", buffering=0) as handle:
    for number in range(int(sys.argv[2])):
        line = b"%d %s %s %s\\n" % (number, os.fsencode(sys.argv[1]), os.environb[b"ODD"], os.getcwdb())
        handle.write(line)
        os.write(1, line)
        if not os.path.exists("hurry"):
            time.sleep(0.05)
"""


def test_they_come_through_a_checkpoint_a_list_and_a_resume(tmp_path):
    site = Site(tmp_path)
    folder = os.fsencode(site.work) + b"/" + ODD
    os.mkdir(folder)
    (site.work / "tells.py").write_text(TELLS)
    site.environment["ODD"] = os.fsdecode(ODD)
    run = ["run", "--name", "odd", "--every", "never", "--outputs", os.fsdecode(folder + b"/" + ODD), "--"]
    command = ["python3", str(site.work / "tells.py"), os.fsdecode(ODD), "10000"]
    try:
        first = site.start(*run, *command, cwd=folder)
        wait_for(lambda: len(site.log("odd").splitlines()) >= 5)
        made = site.run("checkpoint", "odd", "--json")
        assert made.returncode == 0, made.stderr.decode()
        identifier = json.loads(made.stdout)["id"]
        wait_for(lambda: len(site.log("odd").splitlines()) >= 12)
        site.kill_all(first)
        (listed,) = json.loads(site.run("ps", "--json").stdout)["workloads"]
        assert (listed["name"], listed["state"]) == ("odd", "lost")
        assert site.run("ps").returncode == 0
        for arguments in (
            ("store", "show", identifier),
            ("store", "show", identifier, "--json"),
            ("check", "--restore", identifier, "--json"),
        ):
            shown = site.run(*arguments)
            assert shown.returncode in (0, 4), shown.stderr.decode()
            assert b"Traceback" not in shown.stderr
            shown.stdout.decode()  # whatever is printed is text
        shown = json.loads(site.run("store", "show", identifier, "--json").stdout)
        assert "tells.py" in " ".join(shown["command"])
        tried = site.run("store", "verify", "--restore", identifier)
        assert tried.returncode == 0, tried.stderr.decode()
        refused = site.run("run", "--json", "--name", "other", "--", os.fsdecode(ODD), cwd=folder)
        assert refused.returncode == 127
        assert "caf\\xe9-\\xff" in json.loads(refused.stderr.splitlines()[-1])["error"]["message"]
        Path(os.fsdecode(folder), "hurry").touch()
        second = site.run(*run, *command, cwd=folder)
        assert second.returncode == 0, second.stderr.decode("utf-8", "replace")
        assert f"goes on from {identifier}".encode() in second.stderr
    finally:
        site.close()
    expected = b"".join(b"%d %s %s %s\n" % (number, ODD, ODD, folder) for number in range(10000))
    assert Path(os.fsdecode(folder + b"/" + ODD)).read_bytes() == expected
    assert site.log("odd") == expected
