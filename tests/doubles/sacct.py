"""A scripted sacct for what a real one cannot be made to show: databases that fail, answers that are cut off, long waits.

It answers from a list of records, as the real one: those that overlap the window. `plan` says how its n-th question ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PROGRAM = """\
#!{python} -IS
import json, os, sys, time
home = os.path.dirname(os.path.abspath(__file__))
script = json.load(open(home + "/script.json"))
arguments = sys.argv[1:]
sys.stderr.write(script["noise"])
if arguments == ["--version"]:
    print(script["version"])
    sys.exit()
if arguments == ["--helpformat"]:
    names = script["helpformat"]
    for at in range(0, len(names), 4):
        print("".join(name.ljust(20) for name in names[at : at + 4]))
    sys.exit()
options = dict(word[2:].split("=", 1) for word in arguments if "=" in word)
with open(home + "/asked.jsonl", "a") as asked:
    asked.write(json.dumps([options["starttime"], options["endtime"], arguments, dict(os.environ)]) + "\\n")
number = sum(1 for _ in open(home + "/asked.jsonl"))
act = script["plan"].get(str(number), {{}})
if act.get("hang"):
    open(home + "/hanging", "w").close()
    time.sleep(act["hang"])
names = options["format"].split(",")
lines = [names] + [
    [record.get(name, "") for name in names]
    for record in script["records"]
    if record["Eligible"] < options["endtime"] and record["End"] >= options["starttime"]
]
if act.get("rows") is not None:
    lines = lines[: act["rows"] + 1]
text = "".join(options["delimiter"].join(line) + "\\n" for line in lines)
sys.stdout.write(text[: -act["cut"]] if "cut" in act else text)
sys.stderr.write(act.get("stderr", ""))
sys.exit(act.get("status", 0))
"""

# fmt: off
FIELDS = [
    "Account", "AllocCPUS", "AllocNodes", "AllocTRES", "Cluster", "DBIndex", "Elapsed", "ElapsedRaw", "Eligible", "End", "ExitCode",
    "JobID", "JobIDRaw", "JobName", "NNodes", "NodeList", "Partition", "QOS", "ReqTRES", "Reserved", "Start",
    "State", "Submit", "SubmitLine", "Suspended", "TimelimitRaw", "UID", "User", "WorkDir",
]
# fmt: on
"""What the stand-in lists by default: the names of Slurm 22.05."""


class Double:
    """The stand-in in `folder`; `path` is its program."""

    def __init__(self, folder: Path, records: list[dict[str, str]], **changes) -> None:
        self.folder = folder
        self.path = folder / "sacct"
        self.path.write_text(PROGRAM.format(python=sys.executable))
        self.path.chmod(0o755)
        self._script = {"version": "slurm 22.05.8", "helpformat": FIELDS, "noise": "", "plan": {}, "records": records}
        self.change(**changes)

    def change(self, **changes) -> None:
        """Change what it does from now on: `plan`, `records`, `helpformat`, `noise`, `version`."""
        self._script |= changes
        (self.folder / "script.json").write_text(json.dumps(self._script))

    def asked(self) -> list[tuple[str, str, list[str], dict[str, str]]]:
        """Every question so far: start, end, arguments, environment."""
        log = self.folder / "asked.jsonl"
        return [tuple(json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []


def record(number: int, start: str, end: str, **changes: str) -> dict[str, str]:
    """A record of one job that ran from `start` to `end` (ISO)."""
    return {
        "Cluster": "lab",
        "DBIndex": str(number),
        "JobID": str(number),
        "JobIDRaw": str(number),
        "UID": "1000",
        "User": "alice",
        "Account": "physics",
        "Partition": "main",
        "QOS": "normal",
        "Submit": start,
        "Eligible": start,
        "Start": start,
        "End": end,
        "ElapsedRaw": "600",
        "Suspended": "00:00:00",
        "TimelimitRaw": "60",
        "State": "COMPLETED",
        "ExitCode": "0:0",
        "NNodes": "1",
        "AllocNodes": "1",
        "AllocCPUS": "8",
        "AllocTRES": "billing=8,cpu=8,gres/gpu=2,node=1",
        "NodeList": "n1",
        "JobName": f"train_{number}",
        "WorkDir": "/home/alice",
        **changes,
    }
